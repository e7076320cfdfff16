"""Finds out what the namespace backend can do on this machine by doing it: the launcher starts a sandbox in an empty directory."""

from __future__ import annotations

import getpass
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from agentenv.errors import AgentEnvError
from agentenv.guest.native import binary
from agentenv.isolation.contract import Capabilities, Probe
from agentenv.isolation.namespace.answers import Facts, explain, facts, parse
from agentenv.isolation.namespace.cgroups import DIRECT_WRITES_ONLY, CgroupTree
from agentenv.isolation.namespace.seccomp import compile_filter

NAME = "namespace"
_SECONDS = 20.0


def launcher_command() -> list[str]:
    """The daemon's path and those of its options that depend on this machine and user."""
    command = [str(binary("agentenv-launch")), "--agent", str(binary("agentenv-agent"))]
    if os.geteuid() != 0 and shutil.which("newuidmap") and shutil.which("newgidmap"):
        users, groups = subordinate_ids(Path("/etc/subuid")), subordinate_ids(Path("/etc/subgid"))
        if users and groups:
            command += ["--users", users, "--groups", groups]
    return command


def subordinate_ids(file: Path) -> str | None:
    """The first range that /etc/subuid or /etc/subgid (subuid(5): `user:start:count`) grants this user, as `start:count`."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    names = {str(os.geteuid()), _user_name()}
    for line in lines:
        user, _, span = line.partition(":")
        start, _, count = span.partition(":")
        if user in names and start.isdigit() and count.isdigit():
            return f"{start}:{count}"
    return None


def _user_name() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None  # a user id without an entry in /etc/passwd


def probe(directory: Path) -> Probe:
    """Tries a whole start in a temporary directory below `directory`; says what is weaker than it could be, why, and how to mend it."""
    try:
        filter_ = compile_filter()
        command = launcher_command()
    except AgentEnvError as error:
        return Probe(NAME, usable=False, version=None, reason=error.message, remedy=error.remedy)
    with tempfile.TemporaryDirectory(prefix="probe-", dir=directory) as scratch:
        answers = _try_start(command, filter_, Path(scratch))
    version = f"Linux {platform.release()}"
    for answer in answers:
        if answer.get("event") in ("unusable", "failed"):
            reason, remedy = explain(answer)
            return Probe(NAME, usable=False, version=version, reason=reason, remedy=remedy)
    if not any(answer.get("event") == "started" for answer in answers):
        return Probe(NAME, usable=False, version=version, reason="the launcher gave no answer.", remedy="Reinstall the package.")
    return Probe(NAME, usable=True, version=version, capabilities=capabilities(facts(answers[0]), CgroupTree.discover()))


def _try_start(command: list[str], filter_: bytes, scratch: Path) -> list[dict[str, str]]:
    for name in ("lower", "upper", "work"):
        (scratch / name).mkdir()
    program = os.memfd_create("agentenv-seccomp", 0)
    try:
        os.write(program, filter_)
        words = [*command, "--filter", str(program), "--probe", str(scratch)]
        done = subprocess.run(words, pass_fds=(program,), stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return []
    finally:
        os.close(program)
    return [parse(block.replace(b"\n", b"\0")) for block in done.stdout.split(b"\n\n") if block]


def capabilities(found: Facts, cgroups: CgroupTree) -> Capabilities:
    """What can be promised given the launcher's facts and the cgroups that can be used."""
    lost = list(cgroups.lost)
    if found.user_namespace and not found.many_ids:
        lost.append(
            "users: everything in a sandbox runs as one user, since this user has no subordinate ids;"
            " add a range for it to /etc/subuid and /etc/subgid and install the package uidmap."
        )
    if found.user_namespace:
        lost.append(
            "files: what belongs to other users of this machine (the /usr of the image `host`) can be read but not changed in a sandbox;"
            " use an image made of files of your own to install into it, or run as root."
        )
        lost.append("network: a sandbox has a loopback only, since only root can connect it; ports still work through the agent.")
    if not found.full_proc:
        lost.append(
            "/proc: this container covers parts of its own, so the kernel lets no new one be mounted. Sandboxes get a few files about the"
            " machine (meminfo, cpuinfo, …) and no processes: ps, /dev/fd, /dev/stdin, <(…) in a shell and whatever else reads /proc/self"
            " do not work in them. Run the container with `--security-opt systempaths=unconfined` (Docker), or AgentENV as its root."
        )
    if "memory" not in cgroups.controllers:
        lost.append("memory: the limit is shown to a sandbox but not enforced.")
    if found.landlock < 6:
        lost.append(
            "Landlock: this kernel has no scopes for signals and abstract sockets (Linux 6.12); namespaces alone keep sandboxes apart."
        )
    cpu = "cpu" in cgroups.controllers
    if not cpu:
        lost.append("cpu: a limit is rounded up to whole cores, which the sandbox is pinned to.")
    if cgroups.limits_direct_writes_only:
        lost.append(DIRECT_WRITES_ONLY)
    return Capabilities(
        filesystem_snapshot=True,
        pause=True,
        live_resize=True,
        memory_limit="memory" in cgroups.controllers,
        cpu_limit=True,
        process_limit="pids" in cgroups.controllers,
        disk_limit="io" in cgroups.controllers,
        network=not found.user_namespace,
        users=not found.user_namespace or found.many_ids,
        rootless=True,
        lost=tuple(lost),
    )
