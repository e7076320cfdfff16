"""Reads what `agentenv-launch` answers, and turns its refusals into errors that say what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass

from agentenv.errors import BackendUnavailable, InfrastructureError, Stage


@dataclass(frozen=True, slots=True)
class Facts:
    """What the daemon found when it took up its post."""

    user_namespace: bool
    many_ids: bool
    landlock: int
    full_proc: bool = True


def parse(message: bytes) -> dict[str, str]:
    """The records of an answer; later ones of the same name win."""
    pairs = (record.partition("=") for record in message.decode(errors="replace").split("\0") if record)
    return {key: value for key, _, value in pairs}


def refused(answer: Mapping[str, str]) -> InfrastructureError:
    """The error for an `event=failed` answer: what was being done, in which stage, and the kernel's reason."""
    number = int(answer.get("errno", "0"))
    return InfrastructureError(
        f"the sandbox could not be built: {answer.get('what', 'something')} failed in stage '{answer.get('stage', '?')}':"
        f" {os.strerror(number)}.",
        remedy="Run `agentenv doctor`; it says what this machine allows.",
    )


def facts(answer: Mapping[str, str]) -> Facts:
    """What an `event=ready` answer says. Raises `BackendUnavailable` for any other."""
    if answer.get("event") != "ready":
        reason, remedy = explain(answer)
        raise BackendUnavailable(f"the namespace backend cannot work here: {reason}", remedy=remedy)
    return Facts(answer["user_namespace"] == "1", answer["many_ids"] == "1", int(answer["landlock"]), answer.get("full_proc") != "0")


def stages(text: str) -> tuple[Stage, ...]:
    """`name:nanoseconds,…` as stages."""
    pairs = (part.partition(":") for part in text.split(","))
    return tuple(Stage(name, int(duration) / 1e9) for name, _, duration in pairs)


def explain(answer: Mapping[str, str]) -> tuple[str, str]:
    """A refusal of the launcher as a reason and a remedy."""
    number, what = int(answer.get("errno", "0")), answer.get("what", "starting")
    reason = f"{what} failed: {os.strerror(number)}."
    if "user namespace" in what or "mapping the" in what:
        return reason, (
            "This user may not make user namespaces. Allow it (`sysctl -w kernel.unprivileged_userns_clone=1` on Debian,"
            " `kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu, `user.max_user_namespaces` above 0), or run as root."
        )
    if "overlay" in what:
        return reason, (
            "The file system under AGENTENV_HOME cannot hold the writable layer of an overlay (overlayfs itself, NFS, FAT): set"
            " AGENTENV_HOME to a directory on ext4, XFS, btrfs or tmpfs. Unprivileged overlays need Linux 5.11."
        )
    if "/proc" in what and number == errno.EPERM:
        return (
            reason,
            "This container hides parts of /proc, so no new one can be mounted: run it with `--security-opt systempaths=unconfined`.",
        )
    if number in (errno.EPERM, errno.EACCES):
        return reason, "Run with CAP_SYS_ADMIN, or where unprivileged user namespaces are allowed; container runtimes often forbid both."
    if number == errno.ENOSYS:
        return reason, "This kernel is too old: Linux 5.12 is needed."
    return reason, "Run `agentenv doctor` and report what it says."
