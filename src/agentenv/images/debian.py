"""The image `debian`: a minimal Debian with Python, made by mmdebstrap or debootstrap from the mirror that this machine uses.

It is the one image whose making runs programs (the packages' own scripts, in a chroot). What is kept is an ordinary archive image, named
by its content; `images/names/debian.json` says which one `debian` means now. The same packages on the same day give the same bytes.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentenv.errors import CapabilityError, InfrastructureError, NotFound
from agentenv.images import archive
from agentenv.images.names import named, set_name
from agentenv.isolation.artefacts.apt import mirror, security_mirror
from agentenv.isolation.contract import RootFilesystem

if TYPE_CHECKING:
    from agentenv.images.kept import KeptImages, Progress

NAME = "debian"
SUITE = "bookworm"
PACKAGES = ("python3",)
STEPS = 8
"""Lines of news that mmdebstrap has, about."""

_EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")

FINISH = """
root="$1"
rm -rf "$root"/var/cache/* "$root"/var/log/* "$root"/var/lib/apt/lists/* "$root"/tmp/* "$root"/run/* "$root"/debootstrap
rm -f "$root"/var/lib/dpkg/*-old "$root"/etc/passwd- "$root"/etc/group- "$root"/etc/shadow- "$root"/etc/gshadow-
: > "$root"/etc/machine-id
: > "$root"/etc/resolv.conf
echo sandbox > "$root"/etc/hostname
printf '127.0.0.1 localhost\\n::1 localhost ip6-localhost ip6-loopback\\n' > "$root"/etc/hosts
echo 'user:x:1000:1000::/home/user:/bin/bash' >> "$root"/etc/passwd
echo 'user:x:1000:' >> "$root"/etc/group
mkdir -p "$root"/home/user "$root"/etc/agentenv/restored.d
chown 1000:1000 "$root"/home/user
"""
"""What is taken away (logs, caches, what tells this machine's name) and added (an ordinary user); run with the tree as its argument."""


@dataclass(frozen=True, slots=True)
class Build:
    """A Debian image to make: its suite, the day that all files are dated with at most, and the program that makes it."""

    suite: str
    date: dt.date
    program: str

    @property
    def epoch(self) -> int:
        """The day's first second (UTC), as SOURCE_DATE_EPOCH has it (https://reproducible-builds.org/specs/source-date-epoch/)."""
        return int(dt.datetime.combine(self.date, dt.time(), dt.UTC).timestamp())


def resolve(store: KeptImages) -> RootFilesystem:
    """The image as it was built last. Raises `NotFound` where it was not built yet."""
    digest = named(store.directory, NAME)
    if digest is None:
        raise NotFound(
            "the image `debian`, from which virtual machines start where no other is named, has not been built on this machine.",
            remedy="Run `agentenv image build debian` once; it takes minutes.",
        )
    return archive.resolve_digest(store, digest)


def build(store: KeptImages, *, suite: str = SUITE, date: dt.date | None = None, progress: Progress | None = None) -> RootFilesystem:
    """Builds the image from today's packages and lets `debian` mean it from now on; sandboxes and snapshots keep the earlier one.

    `date` (default: today) dates the files. Takes minutes. Raises `CapabilityError` where the programs or the rights for it are missing,
    `InfrastructureError` when it fails.
    """
    plan = Build(suite, date or dt.datetime.now(dt.UTC).date(), _program())
    store.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".debian-", dir=store.directory) as scratch:
        path = Path(scratch) / f"debian-{plan.suite}-{plan.date:%Y%m%d}.tar"
        if Path(plan.program).name == "mmdebstrap":
            _run(_mmdebstrap(plan, path), plan, progress)
        else:
            _run_debootstrap(plan, Path(scratch) / "root", path, progress)
        root = archive.resolve(store, path, progress)
    digest = root.image.removeprefix("sha256:")
    set_name(store.directory, NAME, digest, {"suite": plan.suite, "date": plan.date.isoformat(), "packages": list(PACKAGES)})
    return root


def _program() -> str:
    search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if found := shutil.which("mmdebstrap", path=search):
        if os.geteuid() != 0 and not shutil.which("newuidmap"):
            raise CapabilityError(
                "an ordinary user cannot build the image `debian` here: mmdebstrap needs a range of user ids for that.",
                remedy="Install the package uidmap and give the user ranges in /etc/subuid and /etc/subgid, or build it as root.",
            )
        return found
    found = shutil.which("debootstrap", path=search)
    if found and os.geteuid() == 0:
        return found
    raise CapabilityError(
        f"the image `debian` cannot be built here: {'debootstrap works as root only' if found else 'there is no mmdebstrap'}.",
        remedy="apt-get install mmdebstrap; or build it on another machine and use its archive as `tar:PATH`.",
    )


def _mmdebstrap(plan: Build, target: Path) -> list[str]:
    excluded = [f"--dpkgopt=path-exclude={pattern}" for pattern in _EXCLUDED]
    hook = target.with_name("finish")
    hook.write_text(f"#!/bin/sh\nset -eu\n{FINISH}")
    hook.chmod(0o755)
    options = ["--variant=minbase", f"--include={','.join(PACKAGES)}", "--dpkgopt=force-unsafe-io", *excluded, f"--customize-hook={hook}"]
    sources = []
    if (address := mirror()) is not None:
        sources = [f"deb {address} {plan.suite} main", f"deb {address} {plan.suite}-updates main"]
        if (security := security_mirror()) is not None:
            sources.append(f"deb {security} {plan.suite}-security main")
    return [plan.program, *options, plan.suite, str(target), *sources]


def _run_debootstrap(plan: Build, tree: Path, target: Path, progress: Progress | None) -> None:
    """The same with the older program, which knows neither archives nor dates."""
    command = [plan.program, "--variant=minbase", f"--include={','.join(PACKAGES)}", plan.suite, str(tree), *filter(None, [mirror()])]
    _run(command, plan, progress)
    _run(["sh", "-euc", FINISH, "finish", str(tree)], plan, None)
    normal = ["--sort=name", "--numeric-owner", f"--mtime=@{plan.epoch}", "--clamp-mtime", "--xattrs", "--xattrs-include=*"]
    _run(["tar", *normal, "--exclude=./dev/*", "-C", str(tree), "-cf", str(target), "."], plan, None)


def _run(command: list[str], plan: Build, progress: Progress | None) -> None:
    """Runs one program of the build, and tells its lines of news as steps."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(plan.epoch), "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    last, steps = [""], 0
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = [*last[-4:], line.strip()]
            if progress is not None and (news := re.match(r"I: (.+)", line)):
                steps += 1
                progress(f"debian: {news[1].strip()}", min(steps, STEPS), STEPS)
    if process.returncode != 0:
        ending = " / ".join(filter(None, last))
        raise InfrastructureError(
            f"the image `debian` could not be built: {Path(command[0]).name} ended with status {process.returncode}: {ending}",
            remedy="Is the Debian mirror of this machine reachable (`apt-get update`), and is there room on the disk?",
        )
