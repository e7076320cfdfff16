"""What a build is to do, whoever described it (a Dockerfile, E2B's steps): stages, each a base and steps over it. Plain data.

Words in steps are as they were written; variables in them are replaced when the step is carried out, since only then are they known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Command = str | tuple[str, ...]
"""A line for the shell, or a program with its arguments."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: `text` is how people see it, `line` where it stands (0: nowhere)."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Run(Step):
    """Runs a command, as `user` in the place of the present one, without `network` where that is False.

    `script` is the content of a program that is run in the place of the command.
    """

    command: Command
    user: str | None = None
    network: bool = True
    script: str | None = None


@dataclass(frozen=True, slots=True)
class InlineFile:
    """A file whose content stands in the description itself."""

    name: str
    content: str
    expand: bool = True


@dataclass(frozen=True, slots=True)
class Copy(Step):
    """Copies files to `destination`: from the build's directory, from a stage or image (`source`), or those of `archive`.

    `add` also takes URLs and unpacks archives. `chmod` is octal digits, `chown` USER[:GROUP]. `verbatim`: no variable is replaced.
    """

    sources: tuple[str, ...]
    destination: str
    source: str | None = None
    chown: str | None = None
    chmod: str | None = None
    add: bool = False
    checksum: str | None = None
    inline: tuple[InlineFile, ...] = ()
    archive: str | None = None
    """The name of an archive that the build's material has, whose files are copied in the place of the build's directory."""
    verbatim: bool = False


@dataclass(frozen=True, slots=True)
class SetEnv(Step):
    """Sets variables for all that comes after, and for the sandboxes of the template."""

    pairs: tuple[tuple[str, str], ...]
    verbatim: bool = False


@dataclass(frozen=True, slots=True)
class DeclareArg(Step):
    """Makes a variable of the build known to the steps after it; None: there is no default."""

    pairs: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Workdir(Step):
    """Makes a directory and lets the steps after it run in it."""

    path: str
    verbatim: bool = False


@dataclass(frozen=True, slots=True)
class SetUser(Step):
    """Lets the steps after it run as this user, who is made where the files have none of that name."""

    user: str
    verbatim: bool = False


@dataclass(frozen=True, slots=True)
class SetShell(Step):
    """The program that lines for the shell are given to from now on."""

    shell: tuple[str, ...]


Fact = Literal["cmd", "entrypoint", "labels", "exposed", "healthcheck", "volumes", "stopsignal"]


@dataclass(frozen=True, slots=True)
class Note(Step):
    """Keeps something about the template that changes no file: what it would start, its labels, ports, …"""

    fact: Fact
    value: Command | Mapping[str, str] | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Stage:
    """A base (an image, or the name of a stage before) and steps over it."""

    name: str
    base: str
    line: int
    steps: tuple[Step, ...] = ()
    verbatim: bool = False
    """The base is a reference as AgentENV has them, with no variable in it."""
    fresh_from: int | None = None
    """Steps after so many are done anew, whatever was kept."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole build. `args` are those declared before the first stage. `file` is what errors call it."""

    stages: tuple[Stage, ...]
    args: tuple[DeclareArg, ...] = ()
    escape: str = "\\"
    file: str = "Dockerfile"
