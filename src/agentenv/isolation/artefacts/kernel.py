"""The guests' kernel: a given one, or that of a distribution's package with its modules, unpacked and not installed."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import BackendUnavailable, InfrastructureError
from agentenv.isolation.artefacts import apt
from agentenv.isolation.artefacts.kernel_image import Kernel
from agentenv.isolation.artefacts.manifest import manifest
from agentenv.isolation.artefacts.recipe import Artefact, Places, Progress, variable


@dataclass(frozen=True, slots=True)
class KernelRecipe:
    """A vmlinux or bzImage; its modules lie beside it as in a package (../lib/modules/RELEASE), or in /lib/modules."""

    name: str = "kernel"

    def inspect(self, path: Path, origin: str) -> Artefact:
        try:
            kernel = Kernel.read(path)
        except InfrastructureError as error:
            raise BackendUnavailable(error.message, remedy=error.remedy) from error
        return Artefact(self.name, path, kernel.release, origin)

    def installed(self) -> list[tuple[Path, str]]:
        """None: which of the machine's own kernels suits a guest, and may be read, nobody knows."""
        return []

    def kept_file(self, kept: Path) -> Path:
        return next(iter(sorted((kept / "boot").glob("vmlinuz-*"))), kept / "boot" / "vmlinuz")

    def fetch(self, places: Places, target: Path, progress: Progress) -> str:
        remedy = (
            "Use an x86-64 kernel with virtio, EROFS and overlayfs: set "
            f"{variable(self.name)} to its path (its modules in ../lib/modules or /lib/modules), for example /boot/vmlinuz-$(uname -r)."
        )
        if platform.machine() != "x86_64":
            raise BackendUnavailable(f"no guest kernel is known for {platform.machine()}.", remedy=remedy)
        package = places.offline_file("linux-image-*.deb")
        if package is None:
            package = apt.download_kernel(manifest().kernel["debian_package"], places, remedy=remedy, progress=progress)
        progress(f"unpacking {package.name}", 0, 0)
        apt.unpack(package, target)
        apt.discard(package, places)
        return f"Debian package {package.name}"
