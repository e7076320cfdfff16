"""A node for builds, and what a build says while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from tests.conditions import needs_namespaces

from agentenv.node import Node
from agentenv.templates import BuildLine, Options, TemplateRecord, Wanted, build_template

pytestmark = needs_namespaces


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One AGENTENV_HOME for all tests: its first sandbox makes the layers of the image."""
    return tmp_path_factory.mktemp("templates-home")


@pytest.fixture
async def node(home: Path) -> AsyncIterator[Node]:
    async with await Node.open(home) as opened:
        yield opened


class Yard:
    """A directory to build in. `lines` is what the last build said."""

    def __init__(self, node: Node, directory: Path) -> None:
        self.node = node
        self.directory = directory
        self.lines: list[BuildLine] = []
        self._awaited: dict[str, asyncio.Event] = {}

    async def said(self, message: str) -> None:
        """Returns when the build says that line."""
        await self._awaited.setdefault(message, asyncio.Event()).wait()

    def write(self, files: Mapping[str, str]) -> None:
        """Files of the build's directory."""
        for name, content in files.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    async def build(self, dockerfile: str, name: str = "test", *, wanted: Wanted | None = None, **options: object) -> TemplateRecord:
        """Builds it with namespaces."""
        self.lines = []
        (self.directory / "Dockerfile").write_text(dockerfile)
        given = Options(isolation="namespace", network=False, **options)  # type: ignore[arg-type]
        return await build_template(self.directory, name, node=self.node, options=given, wanted=wanted, log=self._hear)

    def _hear(self, line: BuildLine) -> None:
        self.lines.append(line)
        self._awaited.setdefault(line.message, asyncio.Event()).set()

    @property
    def printed(self) -> list[str]:
        """What steps printed, or were said about them, without the headings."""
        return [line.message for line in self.lines if not line.message.startswith("[")]

    def cached(self) -> int:
        """How many steps had been done before."""
        return self.printed.count("CACHED")


@pytest.fixture
def yard(node: Node, tmp_path: Path) -> Yard:
    directory = tmp_path / "context"
    directory.mkdir()
    return Yard(node, directory)
