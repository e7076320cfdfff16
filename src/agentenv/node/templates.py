"""The templates of one AGENTENV_HOME: names for snapshots that were built, with what sandboxes made from them get besides files.

`templates/<name>.json` (the name quoted as in a URL) is replaced as a whole. A template is named `NAME:TAG`; without a tag, `latest`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import msgspec

from agentenv.errors import ConfigError, NotFound
from agentenv.images.files import write_durably
from agentenv.images.held import wait_for
from agentenv.isolation.contract import Resources
from agentenv.naming import near
from agentenv.node.records import SandboxRequest

SCHEME = "template:"
LATEST = "latest"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}(?:/[a-z0-9][a-z0-9._-]{0,63})?")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Startup(msgspec.Struct, frozen=True):
    """What runs in a fresh sandbox before it is handed out: `command` in the background, and `ready` until it succeeds.

    It may take `timeout` seconds.
    """

    command: str | None = None
    ready: str | None = None
    timeout: float = 120.0
    user: str | None = None
    cwd: str | None = None


class TemplateRecord(msgspec.Struct, frozen=True):
    """A template: `snapshot` is what its sandboxes start from. `resources` are theirs where they ask for no others.

    `warm` is a snapshot that holds the started process too, for the backend `isolation`; with others the command is started anew.
    `facts` are notes of the build: labels, ports, entrypoint, command. `base` is the image that it was built on, `source` what it was
    built from, `created` unix seconds.
    """

    name: str
    tag: str
    snapshot: str
    created: float
    base: str
    env: dict[str, str] = {}
    user: str = "root"
    cwd: str = "/"
    startup: Startup = Startup()
    resources: Resources = Resources(pids=None)
    isolation: str | None = None
    warm: str | None = None
    facts: dict[str, object] = {}
    source: dict[str, str] = {}

    @property
    def label(self) -> str:
        """`NAME:TAG`."""
        return f"{self.name}:{self.tag}"


class Templates:
    """The records under `home`. Every method reads the disk anew, since other processes change it too."""

    def __init__(self, home: Path) -> None:
        self._directory = home / "templates"

    def all(self) -> list[TemplateRecord]:
        """Every template, by name."""
        return sorted((self._read(path) for path in self._directory.glob("*.json")), key=lambda record: record.label)

    def find(self, reference: str) -> TemplateRecord:
        """The template `NAME[:TAG]`, with or without `template:` before it. Raises `NotFound` with a near match, `ConfigError`."""
        name, tag = split_name(reference.removeprefix(SCHEME))
        try:
            return self._read(self._place(name, tag))
        except FileNotFoundError:
            known = [record.label for record in self.all()]
            meant = near(f"{name}:{tag}", known)
            remedy = f"Did you mean {meant!r}?" if meant else "`agentenv template ls` shows those that there are."
            raise NotFound(f"there is no template {name}:{tag}.", remedy=remedy) from None

    def put(self, record: TemplateRecord) -> None:
        """Lets its name and tag mean this template from now on; sandboxes and snapshots keep what they were made of."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with wait_for(self._directory):
            write_durably(self._place(record.name, record.tag), msgspec.to_builtins(record))

    def delete(self, reference: str) -> TemplateRecord:
        """Forgets a name and returns what it meant; the snapshot stays. Raises `NotFound`."""
        record = self.find(reference)
        self._place(record.name, record.tag).unlink(missing_ok=True)
        return record

    def needed_snapshots(self) -> dict[str, str]:
        """The snapshots that templates are made of, each with one of those."""
        needed: dict[str, str] = {}
        for record in self.all():
            needed |= {snapshot: record.label for snapshot in (record.snapshot, record.warm) if snapshot is not None}
        return needed

    def _place(self, name: str, tag: str) -> Path:
        return self._directory / f"{quote(f'{name}:{tag}', safe='')}.json"

    def _read(self, path: Path) -> TemplateRecord:
        return msgspec.json.decode(path.read_bytes(), type=TemplateRecord)


def from_template(request: SandboxRequest, record: TemplateRecord) -> SandboxRequest:
    """The request for a sandbox of a template as one for a sandbox of its snapshot, with the template's limits where it asks for none.

    It is the one with the started process where the request leaves the backend, the limits and whether memory is wanted to the template.
    """
    wanted = request.resources
    resources = replace(record.resources.changed_by(wanted), pids=wanted.pids)
    fitting = request.isolation in ("auto", record.isolation) and wanted.cpu is None and wanted.memory is None
    if record.warm is not None and fitting and request.memory is not False and not request.network.enabled:
        return replace(request, snapshot=record.warm, resources=resources)
    return replace(request, snapshot=record.snapshot, resources=resources)


def split_name(reference: str) -> tuple[str, str]:
    """The name and the tag of `NAME[:TAG]`. Raises `ConfigError` for what is none."""
    name, _, tag = reference.partition(":")
    tag = tag or LATEST
    if not NAME.fullmatch(name) or not TAG.fullmatch(tag):
        raise ConfigError(
            f"{reference!r} is no name for a template",
            remedy="Use a-z, 0-9, '.', '_' and '-' (one '/' may be between), and after a ':' a tag of letters, digits, '.', '_' and '-'.",
        )
    return name, tag
