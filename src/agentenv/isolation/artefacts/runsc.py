"""gVisor's `runsc`: the machine's own, or Debian's backport."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import BackendUnavailable
from agentenv.isolation.artefacts import apt
from agentenv.isolation.artefacts.manifest import manifest
from agentenv.isolation.artefacts.programs import on_path, version_text
from agentenv.isolation.artefacts.recipe import Artefact, Places, Progress, variable


@dataclass(frozen=True, slots=True)
class RunscRecipe:
    """Versions are dates; builds from before 2024 are refused."""

    name: str = "runsc"

    def inspect(self, path: Path, origin: str) -> Artefact:
        return Artefact(self.name, path, release_date(path, version_text(path)), origin)

    def installed(self) -> list[tuple[Path, str]]:
        return on_path(self.name)

    def kept_file(self, kept: Path) -> Path:
        return kept / self.name

    def fetch(self, places: Places, target: Path, progress: Progress) -> str:
        pins = manifest().runsc
        remedy = f"Install gVisor (https://gvisor.dev/docs/user_guide/install/), or set {variable(self.name)} to the path of its runsc."
        package = places.offline_file("runsc_*.deb")
        if package is None:
            package = apt.download_from_suite(pins["debian_package"], pins["debian_suite"], places, remedy=remedy, progress=progress)
        apt.unpack(package, target / "unpacked")
        found = next((path for path in sorted((target / "unpacked").rglob("runsc")) if path.is_file()), None)
        if found is None:
            raise BackendUnavailable(f"{package.name} has no runsc in it.", remedy=remedy)
        found.rename(target / self.name)
        shutil.rmtree(target / "unpacked")
        apt.discard(package, places)
        return f"Debian package {package.name}"


def release_date(path: Path, text: str) -> str:
    """The date of a build, YYYYMMDD. Raises `BackendUnavailable` when it is too old, or tells none."""
    found = re.search(r"\b(20\d{6})\b", text)
    oldest = manifest().runsc["oldest"]
    if found is None:
        raise BackendUnavailable(f"{path} tells no date of its build: {text.strip()[:80]!r}.", remedy="Use an official build of gVisor.")
    if found[1] < oldest:
        raise BackendUnavailable(
            f"{path} is a build of {found[1]}; {oldest} or newer is needed, since older ones hang when they take a checkpoint.",
            remedy=f"Install a newer gVisor, or set {variable('runsc')} to the path of one.",
        )
    return found[1]
