"""The steps of E2B's template builder as a plan (the body of `POST /v2/templates/{id}/builds/{id}`, E2B's openapi.yml).

Arguments are taken as they are, no variable is replaced. Commands run in a login shell as `user` in /home/user, unless a step says
otherwise; copied files belong to the present user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentenv.errors import ConfigError
from agentenv.images.oci import Reference
from agentenv.node.templates import SCHEME, Startup
from agentenv.templates.plan import Copy, Plan, Run, SetEnv, SetShell, SetUser, Stage, Step, Workdir
from agentenv.templates.stages import OWN

USER, HOME = "user", "/home/user"
SHELL = ("/bin/sh", "-c", 'if command -v bash >/dev/null; then exec bash -l -o pipefail -c "$0"; else exec sh -l -c "$0"; fi')
"""Alpine and its like have no bash."""

FILE = "template"
_HASH = re.compile(r"[0-9a-f]{64}")
_OCTAL = re.compile(r"[0-7]{3,4}")


def plan_of(build: Mapping[str, Any], base: str, *, on_template: bool = False) -> Plan:
    """The plan of a build's body on `base`, a reference as AgentENV has them; one on a template begins as that ended.

    Raises `ConfigError` with the number of a wrong step.
    """
    steps: list[Step] = [SetShell(0, "base", SHELL)]
    if not on_template:
        steps += [SetUser(0, "base", USER, verbatim=True), Workdir(0, "base", HOME, verbatim=True)]
    fresh_from = 0 if build.get("force") else None
    for number, described in enumerate(build.get("steps") or (), 1):
        made = _step(number, described)
        if described.get("force") and fresh_from is None:
            fresh_from = len(steps)
        steps.append(made)
    return Plan((Stage("template", base, 0, tuple(steps), verbatim=True, fresh_from=fresh_from),), file=FILE)


def base_of(build: Mapping[str, Any]) -> tuple[str, bool]:
    """The base that a build's body names, and whether that is a template (`template:` and its name or id). Raises `ConfigError`."""
    image, template = build.get("fromImage"), build.get("fromTemplate")
    if bool(image) == bool(template):
        raise ConfigError("a build starts from an image or from a template", remedy="Give one of fromImage and fromTemplate.")
    return (f"{SCHEME}{template}", True) if template else (registry_image(str(image)), False)


def startup_of(build: Mapping[str, Any]) -> Startup:
    """The start and ready commands of a build's body."""
    return Startup(command=build.get("startCmd") or None, ready=build.get("readyCmd") or None)


def file_hashes(build: Mapping[str, Any]) -> list[str]:
    """The names under which the files of a build's COPY steps were uploaded. Raises `ConfigError` for one that is no hash."""
    found = []
    for number, step in enumerate(build.get("steps") or (), 1):
        if str(step.get("type")).upper() == "COPY":
            found.append(check_hash(step.get("filesHash"), number))
    return found


def check_hash(value: object, number: int = 0) -> str:
    """A hash of files that was uploaded under. Raises `ConfigError`: it becomes the name of a file."""
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ConfigError(f"{value!r} is no hash of files", file=FILE, line=number or None, remedy="It has 64 hexadecimal digits.")
    return value


def registry_image(name: str) -> str:
    """An image of a registry, or one of AgentENV's own: who builds over the network names no file, daemon or kept image of this machine.

    Raises `ConfigError`.
    """
    if name in OWN:
        return name
    reference = Reference.from_docker(name)
    if reference is None:
        raise ConfigError(f"{name!r} is no name of an image", remedy=f"Write NAME:TAG, REGISTRY/NAME:TAG, or one of {', '.join(OWN)}.")
    return str(reference)


def _step(number: int, described: Mapping[str, Any]) -> Step:
    kind = str(described.get("type", "")).upper()
    made = _KINDS.get(kind)
    if made is None:
        raise ConfigError(f"there is no step {kind!r}", file=FILE, line=number, remedy=f"There are {', '.join(_KINDS)}.")
    args = [str(argument) for argument in described.get("args") or ()]
    try:
        return made(number, f"{kind} {' '.join(args)}".rstrip(), args, described)
    except (IndexError, ValueError) as error:
        raise ConfigError(f"{kind} does not take {args}", file=FILE, line=number) from error


def _run(number: int, text: str, args: Sequence[str], described: Mapping[str, Any]) -> Step:
    return Run(number, text, args[0], user=args[1] if len(args) > 1 and args[1] else None)


def _copy(number: int, text: str, args: Sequence[str], described: Mapping[str, Any]) -> Step:
    owner, mode = (args[2] if len(args) > 2 else ""), (args[3] if len(args) > 3 else "")
    if mode and not _OCTAL.fullmatch(mode):
        raise ValueError(mode)
    archive = check_hash(described.get("filesHash"), number)
    return Copy(number, text, (args[0],), args[1], chown=owner or None, chmod=mode or None, archive=archive, verbatim=True)


def _env(number: int, text: str, args: Sequence[str], described: Mapping[str, Any]) -> Step:
    if not args or len(args) % 2:
        raise ValueError(args)
    return SetEnv(number, text, tuple(zip(args[::2], args[1::2], strict=True)), verbatim=True)


def _workdir(number: int, text: str, args: Sequence[str], described: Mapping[str, Any]) -> Step:
    return Workdir(number, text, args[0], verbatim=True)


def _user(number: int, text: str, args: Sequence[str], described: Mapping[str, Any]) -> Step:
    return SetUser(number, text, args[0], verbatim=True)


_KINDS: Mapping[str, Callable[[int, str, Sequence[str], Mapping[str, Any]], Step]] = {
    "COPY": _copy,
    "ENV": _env,
    "RUN": _run,
    "USER": _user,
    "WORKDIR": _workdir,
}
