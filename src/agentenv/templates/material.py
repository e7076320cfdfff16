"""Where the files of a build come from: a directory with a .dockerignore, or archives that were uploaded."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.errors import ConfigError
from agentenv.images.extract import extract_archive
from agentenv.templates.dockerfile.ignore import Ignored

IGNORE_FILE = ".dockerignore"
LARGEST = 16 << 30
"""Bytes of the files of one step: of an archive once it is unpacked, and of what is fetched for it."""


@dataclass(frozen=True, slots=True)
class Material:
    """`directory` with what `ignored` leaves out of it; `archives` (tar, compressed or not) by the names that steps have for them."""

    directory: Path | None = None
    ignored: Ignored = field(default_factory=Ignored)
    archives: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def of_directory(cls, directory: Path, dockerfile: Path | None = None) -> Material:
        """A build's directory; `<Dockerfile>.dockerignore` beside the Dockerfile counts before `.dockerignore`. Raises `ConfigError`."""
        if not directory.is_dir():
            raise ConfigError(f"{directory} is no directory to build from", remedy="Name the directory that COPY takes files of.")
        own = [dockerfile.with_name(f"{dockerfile.name}{IGNORE_FILE}")] if dockerfile else []
        for path in (*own, directory / IGNORE_FILE):
            if path.is_file():
                return cls(directory, Ignored.parse(path.read_text(), str(path)))
        return cls(directory)

    @contextlib.contextmanager
    def tree(self, archive: str | None, place: Path | None = None) -> Iterator[tuple[Path, Ignored]]:
        """The directory that a step copies from, for the moment: of an archive, what was in it, unpacked below `place`.

        Raises `ConfigError`, `CapabilityError`.
        """
        if archive is None:
            if self.directory is None:
                raise ConfigError("this build has no directory to copy from")
            yield self.directory, self.ignored
            return
        path = self.archives.get(archive)
        if path is None:
            raise ConfigError(f"the files {archive} were not uploaded")
        with unpacked(path, place) as tree:
            yield tree, Ignored()


@contextlib.contextmanager
def unpacked(archive: Path, place: Path | None = None) -> Iterator[Path]:
    """An archive's files in a directory for the moment, below `place` (None: where this machine has temporary files).

    Raises `CapabilityError` for what is no archive, or no safe one, or too large.
    """
    with tempfile.TemporaryDirectory(prefix="agentenv-build-", dir=place) as scratch:
        tree = Path(scratch, "files")
        tree.mkdir()
        extract_archive(archive, tree, limit=LARGEST)
        yield tree
