"""QEMU: a program of the machine; installed by its package manager where that may be done."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from agentenv.isolation.artefacts import apt
from agentenv.isolation.artefacts.manifest import manifest
from agentenv.isolation.artefacts.programs import at_least, on_path, version_text
from agentenv.isolation.artefacts.recipe import Artefact, Places, Progress, variable


@dataclass(frozen=True, slots=True)
class QemuRecipe:
    """`qemu-system-x86_64` and the files that it needs."""

    name: str = "qemu"

    def inspect(self, path: Path, origin: str) -> Artefact:
        return Artefact(self.name, path, at_least(path, version_text(path), manifest().qemu["oldest"]), origin)

    def installed(self) -> list[tuple[Path, str]]:
        return on_path(f"qemu-system-{platform.machine()}")

    def kept_file(self, kept: Path) -> Path:
        return kept / f"qemu-system-{platform.machine()}"

    def fetch(self, places: Places, target: Path, progress: Progress) -> str:
        package = manifest().qemu["debian_package"]
        remedy = f"Install QEMU (Debian: apt-get install {package}), or set {variable(self.name)} to its path."
        apt.install(package, offline=places.offline is not None, remedy=remedy, progress=progress)
        return f"package {package}"
