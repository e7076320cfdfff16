"""What each instruction of a Dockerfile means, as a step of a plan."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentenv.errors import ConfigError
from agentenv.templates.dockerfile.lines import Instruction
from agentenv.templates.dockerfile.words import split_words
from agentenv.templates.plan import Command, Copy, DeclareArg, Fact, InlineFile, Note, Run, SetEnv, SetShell, SetUser, Step, Workdir

_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?(?:\s+|$)")
_ONLY_HEREDOC = re.compile(r"<<-?\s*[\"']?[A-Za-z_][A-Za-z0-9_.-]*[\"']?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OCTAL = re.compile(r"[0-7]{3,4}")
_CHECKSUM = re.compile(r"sha256:[0-9a-f]{64}")

UNSUPPORTED: Mapping[str, str] = {
    "ONBUILD": "an image's own instructions are not run in builds on it; write them into the Dockerfile that needs them.",
}


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads instructions of a file with this escape character. All methods raise `ConfigError` without a place."""

    escape: str

    def run(self, instruction: Instruction) -> Step:
        """RUN [--network=…] COMMAND, as a line for the shell, a JSON list, or a here-document."""
        flags, rest = _flags(instruction, {"network", "mount", "security"})
        for mount in [value for name, value in flags if name == "mount"]:
            if not re.search(r"\btype=(cache|tmpfs)\b", mount):
                raise ConfigError(f"RUN --mount={mount} is not supported", remedy="Caches may be mounted; for files use COPY.")
        if any(name == "security" and value != "sandbox" for name, value in flags):
            raise ConfigError("RUN --security is not supported: every step runs in a sandbox")
        network = ("network", "none") not in flags
        first = instruction.heredocs[0] if instruction.heredocs else None
        if first is not None and _ONLY_HEREDOC.fullmatch(rest):
            if first.content.startswith("#!"):
                return Run(instruction.line, f"RUN {rest}", "", network=network, script=first.content)
            return Run(instruction.line, f"RUN {rest}", first.content, network=network)
        if instruction.heredocs:
            documents = "".join(f"{one.content}{one.name}\n" for one in instruction.heredocs)
            return Run(instruction.line, f"RUN {rest}", f"{rest}\n{documents}", network=network)
        return Run(instruction.line, f"RUN {rest}", _command(rest), network=network)

    def copy(self, instruction: Instruction) -> Step:
        """COPY or ADD [--from=…] [--chown=…] [--chmod=…] SOURCE… DESTINATION, as words or a JSON list."""
        add = instruction.word == "ADD"
        flags, rest = _flags(instruction, {"chown", "chmod", "link", "checksum"} if add else {"chown", "chmod", "link", "from"})
        given = dict(flags)
        words = self._words(rest)
        inline = tuple(InlineFile(one.name, one.content, one.expand) for one in instruction.heredocs)
        sources = tuple(word for word in words[:-1] if not (inline and _ONLY_HEREDOC.fullmatch(word)))
        if len(words) < 2 or not (sources or inline):
            raise ConfigError(f"{instruction.word} needs a source and a destination")
        if (mode := given.get("chmod")) and "$" not in mode and not _OCTAL.fullmatch(mode):
            raise ConfigError(f"--chmod={mode} is not supported", remedy="Write the mode in octal: --chmod=755.")
        if (checksum := given.get("checksum")) and not _CHECKSUM.fullmatch(checksum):
            raise ConfigError(f"--checksum={checksum} is no sha256:… with 64 hexadecimal digits")
        return Copy(
            instruction.line,
            f"{instruction.word} {instruction.rest}",
            sources,
            words[-1],
            source=given.get("from"),
            chown=given.get("chown"),
            chmod=given.get("chmod"),
            add=add,
            checksum=given.get("checksum"),
            inline=inline,
        )

    def env(self, instruction: Instruction) -> Step:
        """ENV NAME=VALUE…, or the older ENV NAME VALUE."""
        return SetEnv(instruction.line, f"ENV {instruction.rest}", self._pairs(instruction, names=True))

    def label(self, instruction: Instruction) -> Step:
        """LABEL NAME=VALUE…"""
        return self._note(instruction, "labels", dict(self._pairs(instruction, names=False)))

    def maintainer(self, instruction: Instruction) -> Step:
        """MAINTAINER NAME, an old label."""
        return self._note(instruction, "labels", {"maintainer": instruction.rest})

    def arg(self, instruction: Instruction) -> Step:
        """ARG NAME[=DEFAULT]…"""
        pairs: list[tuple[str, str | None]] = []
        for word in split_words(instruction.rest, self.escape):
            name, equals, value = word.partition("=")
            if not _VARIABLE.fullmatch(name):
                raise ConfigError(f"ARG {word!r} is not NAME or NAME=DEFAULT")
            pairs.append((name, value if equals else None))
        return DeclareArg(instruction.line, f"ARG {instruction.rest}", tuple(pairs))

    def workdir(self, instruction: Instruction) -> Step:
        """WORKDIR PATH"""
        return Workdir(instruction.line, f"WORKDIR {instruction.rest}", instruction.rest)

    def user(self, instruction: Instruction) -> Step:
        """USER NAME[:GROUP]"""
        return SetUser(instruction.line, f"USER {instruction.rest}", instruction.rest)

    def shell(self, instruction: Instruction) -> Step:
        """SHELL ["program", "argument"…]"""
        words = _json_list(instruction.rest)
        if not words:
            raise ConfigError("SHELL needs a JSON list", remedy='Write SHELL ["/bin/bash", "-c"].')
        return SetShell(instruction.line, f"SHELL {instruction.rest}", tuple(words))

    def cmd(self, instruction: Instruction) -> Step:
        """CMD COMMAND"""
        return self._note(instruction, "cmd", _command(instruction.rest))

    def entrypoint(self, instruction: Instruction) -> Step:
        """ENTRYPOINT COMMAND"""
        return self._note(instruction, "entrypoint", _command(instruction.rest))

    def expose(self, instruction: Instruction) -> Step:
        """EXPOSE PORT[/PROTOCOL]…"""
        return self._note(instruction, "exposed", tuple(split_words(instruction.rest, self.escape)))

    def volume(self, instruction: Instruction) -> Step:
        """VOLUME PATH…: kept as a note, since a sandbox's files are all its own."""
        return self._note(instruction, "volumes", tuple(_json_list(instruction.rest) or split_words(instruction.rest, self.escape)))

    def stopsignal(self, instruction: Instruction) -> Step:
        """STOPSIGNAL SIGNAL"""
        return self._note(instruction, "stopsignal", instruction.rest)

    def healthcheck(self, instruction: Instruction) -> Step:
        """HEALTHCHECK [options] CMD COMMAND, or NONE"""
        _, rest = _flags(instruction, {"interval", "timeout", "start-period", "start-interval", "retries"})
        kind, _, command = rest.partition(" ")
        if kind.upper() == "NONE" and not command:
            return self._note(instruction, "healthcheck", None)
        if kind.upper() != "CMD" or not command.strip():
            raise ConfigError("HEALTHCHECK is neither HEALTHCHECK CMD COMMAND nor HEALTHCHECK NONE")
        return self._note(instruction, "healthcheck", _command(command.strip()))

    def _words(self, text: str) -> list[str]:
        """Words as they are written; those of a JSON list are quoted so that they mean themselves, variables aside."""
        listed = _json_list(text)
        return split_words(text, self.escape) if listed is None else [re.sub(r"([\\`\"'])", self._escaped, word) for word in listed]

    def _escaped(self, match: re.Match[str]) -> str:
        return match[1] if match[1] in "\\`" and match[1] != self.escape else self.escape + match[1]

    def _note(self, instruction: Instruction, fact: Fact, value: Command | Mapping[str, str] | tuple[str, ...] | None) -> Step:
        return Note(instruction.line, f"{instruction.word} {instruction.rest}", fact, value)

    def _pairs(self, instruction: Instruction, *, names: bool) -> tuple[tuple[str, str], ...]:
        words = split_words(instruction.rest, self.escape)
        if "=" not in words[0]:
            name, _, value = instruction.rest.partition(" ")
            words = [f"{name}={value.strip()}"]
            if not value.strip():
                raise ConfigError(f"{instruction.word} {instruction.rest!r} is not NAME=VALUE")
        pairs = []
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or (names and not _VARIABLE.fullmatch(name)) or not name:
                raise ConfigError(f"{instruction.word} {word!r} is not NAME=VALUE")
            pairs.append((name, value))
        return tuple(pairs)


INSTRUCTIONS: Mapping[str, Callable[[Reader, Instruction], Step]] = {
    "ADD": Reader.copy,
    "ARG": Reader.arg,
    "CMD": Reader.cmd,
    "COPY": Reader.copy,
    "ENTRYPOINT": Reader.entrypoint,
    "ENV": Reader.env,
    "EXPOSE": Reader.expose,
    "HEALTHCHECK": Reader.healthcheck,
    "LABEL": Reader.label,
    "MAINTAINER": Reader.maintainer,
    "RUN": Reader.run,
    "SHELL": Reader.shell,
    "STOPSIGNAL": Reader.stopsignal,
    "USER": Reader.user,
    "VOLUME": Reader.volume,
    "WORKDIR": Reader.workdir,
}


def _flags(instruction: Instruction, known: set[str]) -> tuple[list[tuple[str, str]], str]:
    """The flags at the beginning, and what follows them."""
    flags, rest = [], instruction.rest
    while (match := _FLAG.match(rest)) is not None:
        if match[1] not in known:
            raise ConfigError(
                f"{instruction.word} has no flag --{match[1]} here", remedy=f"It has {', '.join(f'--{name}' for name in sorted(known))}."
            )
        flags.append((match[1], match[2] or ""))
        rest = rest[match.end() :]
    if not rest.strip():
        raise ConfigError(f"{instruction.word} says nothing but flags")
    return flags, rest.strip()


def _json_list(text: str) -> list[str] | None:
    """A JSON list of texts; None for everything else, which then is words or a line for the shell, as Docker has it."""
    if not text.startswith("["):
        return None
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        return None
    return data if isinstance(data, list) and all(isinstance(word, str) for word in data) else None


def _command(text: str) -> Command:
    words = _json_list(text)
    return text if words is None else tuple(words)
