"""The directory that is one Firecracker process's whole world: its root under the jailer, else the directory that it works in.

Every file in it has the same name in every jail. Firecracker writes the names of a machine's files into its snapshots, and a clone finds
its own files under them, because it is in a jail of its own.
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import InfrastructureError
from agentenv.isolation.artefacts.storing import make_once
from agentenv.isolation.firecracker.release import Programs
from agentenv.isolation.vm.disk import clone_disk

API, VSOCK, METRICS = "api", "vsock", "metrics"
KERNEL, INITRD, ROOT, UPPER = "kernel", "initrd", "root.img", "upper.img"
STATE, MEMORY = "state", "memory"
"""The files of a jail, by the names under which Firecracker knows them."""

_USERS = range(1_900_000_000, 2_100_000_000)
"""No distribution gives accounts from these numbers, nor systemd to its containers (systemd, docs/UIDS-GIDS.md)."""

_READABLE = 0o004


@dataclass(frozen=True, slots=True)
class Jail:
    """`root` on the host; `user` is the number of the user and group that it belongs to, None without the jailer."""

    id: str
    base: Path
    root: Path
    user: int | None

    @classmethod
    def plan(cls, base: Path, programs: Programs) -> Jail:
        """One below `base` with a name and a user of its own, laid out as the jailer wants it. Nothing is made yet."""
        name = secrets.token_hex(8)
        root = base / programs.firecracker.name / name / "root"
        return cls(name, base, root, None if programs.jailer is None else secrets.choice(_USERS))

    def make(self) -> None:
        """Makes the directory. Raises OSError."""
        self.root.mkdir(mode=0o700, parents=True)
        os.mkfifo(self.root / METRICS, 0o600)
        self._hand_over(self.root)
        self._hand_over(self.root / METRICS)

    def command(self, programs: Programs) -> list[str]:
        """What starts Firecracker in it. It is as quiet as it can be, since what it says shares its output with the guest's console."""
        options = ["--api-sock", API, "--metrics-path", METRICS, "--level", "Error"]
        if programs.jailer is None:
            return [str(programs.firecracker), "--id", self.id, *options]
        who = ["--id", self.id, "--uid", str(self.user), "--gid", str(self.user)]
        where = ["--exec-file", str(programs.firecracker), "--chroot-base-dir", str(self.base)]
        return [str(programs.jailer), *who, *where, "--", *options]

    def bring(self, source: Path, name: str) -> None:
        """Makes a file that is only read appear as `name`. Raises OSError, `InfrastructureError`.

        By a link. What the jail's user may not read, and what lies on another file system, is copied once for all jails of the owner.
        """
        target = self.root / name
        if self.user is None:
            target.symlink_to(source.absolute())
        elif not source.stat().st_mode & _READABLE or not _linked(source, target):
            target.hardlink_to(self._staged(source))

    def give(self, source: Path, name: str) -> None:
        """Makes a file that is written appear as `name`; both are one file from now on. Raises OSError, `InfrastructureError`."""
        target = self.root / name
        if self.user is None:
            target.symlink_to(source.absolute())
        elif _linked(source, target):
            self._hand_over(target)
        else:
            raise InfrastructureError(
                f"{source} and the jail of its machine, {self.root}, are on two file systems.",
                remedy="Let AGENTENV_HOME be one file system.",
            )

    def take(self, name: str, target: Path) -> None:
        """Moves a file that Firecracker has written to `target`, to be read by everybody who gets there. Raises OSError."""
        source = self.root / name
        if self.user is not None:
            os.chown(source, 0, 0)
        source.chmod(0o444)
        try:
            source.rename(target)
        except OSError:
            # Another file system. What is full there is told by the copy.
            clone_disk(source, target)
            target.chmod(0o444)
            source.unlink()

    def drop(self, *names: str) -> None:
        """Removes files from it, if they are there."""
        for name in names:
            (self.root / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes it with all that is in it. Idempotent."""
        shutil.rmtree(self.root.parent, ignore_errors=True)

    def _staged(self, source: Path) -> Path:
        status = source.stat()
        staged = self.base.with_name("staged") / f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"

        def copy(partial: Path) -> None:
            clone_disk(source, partial)
            partial.chmod(0o444)

        make_once(staged, copy)
        return staged

    def _hand_over(self, path: Path) -> None:
        if self.user is not None:
            os.chown(path, self.user, self.user)


def _linked(source: Path, target: Path) -> bool:
    try:
        target.hardlink_to(source.resolve())
    except OSError:
        return False
    return True
