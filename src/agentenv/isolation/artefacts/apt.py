"""Debian packages through apt, fetched and unpacked without installing them: no privilege is needed, and the machine stays as it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentenv.errors import BackendUnavailable
from agentenv.isolation.artefacts.recipe import Places, Progress

SOURCES = Path("/etc/apt")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def unpack(package: Path, target: Path) -> None:
    """The files of a package, below `target`. Raises `BackendUnavailable` when it is damaged or dpkg is missing."""
    target.mkdir(parents=True, exist_ok=True)
    _run(["dpkg-deb", "-x", str(package), str(target)], f"{package.name} cannot be unpacked", "Fetch it again; dpkg is needed for it.")


def discard(package: Path, places: Places) -> None:
    """Removes a package that was fetched; one that the user brought along stays."""
    if package.parent == places.scratch:
        package.unlink()


def install(package: str, *, offline: bool, remedy: str, progress: Progress) -> None:
    """Installs a package on this machine; only root can. Raises `BackendUnavailable`."""
    if offline or os.geteuid() != 0 or shutil.which("apt-get") is None:
        why = "offline" if offline else "only root can install it" if shutil.which("apt-get") else "there is no apt-get"
        raise BackendUnavailable(f"{package} is not installed ({why}).", remedy=remedy)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "--no-install-recommends", package]
    _with_progress(command, f"installing {package}", remedy, progress, environment=environment)


def download_kernel(package: str, places: Places, *, remedy: str, progress: Progress) -> Path:
    """The package that the kernel metapackage `package` stands for, from the machine's own sources."""
    _need_network(places, remedy)
    with _private_apt(places, remedy, progress, suite=None) as apt:
        return _download(apt, _dependency(apt, package, remedy), places.scratch, remedy, progress)


def download_from_suite(package: str, suite: str, places: Places, *, remedy: str, progress: Progress) -> Path:
    """`package` of a Debian suite that the machine need not have among its sources; its own mirror is asked."""
    _need_network(places, remedy)
    with _private_apt(places, remedy, progress, suite=suite) as apt:
        return _download(apt, package, places.scratch, remedy, progress)


def mirror(sources: Path = SOURCES) -> str | None:
    """The address of the Debian mirror that this machine uses, without those for security updates and of other makers."""
    return _source(sources, r"/debian/?$")


def security_mirror(sources: Path = SOURCES) -> str | None:
    """The address from which this machine has Debian's security updates."""
    return _source(sources, r"/debian-security/?$")


def _source(sources: Path, wanted: str) -> str | None:
    files = [sources / "sources.list", *sorted((sources / "sources.list.d").glob("*"))]
    for path in files:
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        for address in re.findall(r"^(?:URIs:|deb(?:\s+\[[^]]*\])?)\s*(\S+)", path.read_text(), re.MULTILINE):
            if re.search(wanted, address):
                return str(address)
    return None


def _need_network(places: Places, remedy: str) -> None:
    if places.offline is not None:
        raise BackendUnavailable(f"its package is not in {places.offline}.", remedy=remedy)
    if shutil.which("apt-get") is None:
        raise BackendUnavailable("there is no apt-get to fetch its package with.", remedy=remedy)


@contextmanager
def _private_apt(places: Places, remedy: str, progress: Progress, *, suite: str | None) -> Iterator[tuple[str, ...]]:
    """Options that give apt lists of its own, up to date; with `suite`, that suite of the machine's mirror is its only source."""
    with tempfile.TemporaryDirectory(prefix="apt-", dir=places.scratch) as scratch:
        place = Path(scratch)
        for name in ("lists/partial", "cache/archives/partial"):
            (place / name).mkdir(parents=True)
        options = [f"Dir::State::lists={place}/lists", f"Dir::Cache={place}/cache", "Debug::NoLocking=true", "APT::Sandbox::User=root"]
        if suite is not None:
            address = mirror()
            if address is None:
                raise BackendUnavailable(f"this machine has no Debian mirror among its sources ({SOURCES}).", remedy=remedy)
            signed = f"[signed-by={KEYRING}] " if KEYRING.is_file() else ""
            (place / "sources.list").write_text(f"deb {signed}{address} {suite} main\n")
            options += [f"Dir::Etc::sourcelist={place}/sources.list", "Dir::Etc::sourceparts=/dev/null"]
        flags = tuple(part for option in options for part in ("-o", option))
        _with_progress(["apt-get", *flags, "update"], "reading package lists", remedy, progress)
        yield flags


def _dependency(apt: tuple[str, ...], package: str, remedy: str) -> str:
    text = _run(["apt-cache", *apt, "depends", package], f"{package} is unknown to apt", remedy)
    found = re.search(r"^\s+Depends: (linux-image-\S+)", text, re.MULTILINE)
    if found is None:
        raise BackendUnavailable(f"{package} leads to no kernel package.", remedy=remedy)
    return found[1]


def _download(apt: tuple[str, ...], package: str, scratch: Path, remedy: str, progress: Progress) -> Path:
    before = {path: path.stat().st_mtime_ns for path in scratch.glob("*.deb")}
    _with_progress(["apt-get", *apt, "download", package], f"fetching {package}", remedy, progress, directory=scratch)
    fetched = [path for path in scratch.glob(f"{package}_*.deb") if before.get(path) != path.stat().st_mtime_ns] or [
        *scratch.glob(f"{package}_*.deb")
    ]
    if not fetched:
        raise BackendUnavailable(f"apt-get said that it fetched {package}, and there is no such file.", remedy=remedy)
    return max(fetched, key=lambda path: path.stat().st_mtime)


def _with_progress(
    command: list[str],
    what: str,
    remedy: str,
    progress: Progress,
    *,
    directory: Path | None = None,
    environment: dict[str, str] | None = None,
) -> None:
    """Runs apt-get and passes on the percentages of its status descriptor (apt's README.progress-reporting)."""
    progress(what, 0, 0)
    full = [command[0], "-q", "-o", "APT::Status-Fd=1", *command[1:]]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(full, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=directory, env=environment) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.match(r"(?:dl|pm)status:[^:]*:([\d.]+):", line):
                progress(what, round(float(found[1]) * 100), 10000)
        if process.wait() != 0:
            errors.seek(0)
            raise BackendUnavailable(f"{what} failed: {_last_line(errors.read())}.", remedy=remedy)


def _run(command: list[str], what: str, remedy: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BackendUnavailable(f"{what}: {command[0]}: {error.strerror}.", remedy=remedy) from error
    if done.returncode != 0:
        raise BackendUnavailable(f"{what}: {_last_line(done.stderr)}.", remedy=remedy)
    return done.stdout


def _last_line(text: str) -> str:
    errors = [line.removeprefix("E: ") for line in text.strip().splitlines() if line.startswith("E: ")]
    return (errors or text.strip().splitlines()[-1:] or ["no reason was given"])[0].rstrip(".")
