"""Everything that a monitor needs to start a guest, as files: kernel, initramfs, root image, empty disk."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from agentenv.guest.native import binary
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.artefacts.kernel_image import Kernel
from agentenv.isolation.artefacts.storing import remove_unused, used
from agentenv.isolation.contract import RootFilesystem
from agentenv.isolation.vm.disk import clone_disk, empty_disk
from agentenv.isolation.vm.initramfs import Initramfs, Transport, build_initramfs, module_names
from agentenv.isolation.vm.rootimage import Progress, RootImage, root_image


@dataclass(frozen=True, slots=True)
class GuestFiles:
    """`kernel` is what was asked for (an ELF file, or whatever there is), `initrd` the initramfs, `root` the read-only disk."""

    kernel: Path
    initrd: Path
    root: RootImage
    release: str
    modules: tuple[str, ...]


def prepare_guest(
    root: RootFilesystem,
    store: ArtefactStore,
    *,
    transport: Transport,
    elf: bool,
    pci: bool = False,
    progress: Progress | None = None,
) -> GuestFiles:
    """The files of a guest with the image `root`, made where they are not there yet. `elf`: the monitor takes no bzImage.

    Raises `CapabilityError` for an image that no machine can have, `BackendUnavailable` for a missing kernel or program.
    """
    image = root_image(root, store.directory / "roots", progress)
    path = store.obtain("kernel", progress=progress).path
    agent = binary("agentenv-agent")
    names = module_names(transport, image.filesystem, pci=pci)
    wanted = (path, _signature(path), agent, _signature(agent), names, store.directory, elf)
    boot = _boot_files(*wanted)
    if not used(boot.initramfs.path):
        _boot_files.cache_clear()  # somebody has tidied up
        boot = _boot_files(*wanted)
    return GuestFiles(boot.kernel, boot.initramfs.path, image, boot.release, boot.initramfs.modules)


@dataclass(frozen=True, slots=True)
class _BootFiles:
    kernel: Path
    initramfs: Initramfs
    release: str


@functools.lru_cache(maxsize=8)
def _boot_files(
    path: Path, _kernel: tuple[int, ...], agent: Path, _agent: tuple[int, ...], names: tuple[str, ...], directory: Path, elf: bool
) -> _BootFiles:
    """Remembered for as long as neither file changes: reading a kernel and its modules takes a fifth of a second."""
    kernel = Kernel.read(path)
    initramfs = build_initramfs(agent, kernel.modules, names, directory / "initramfs")
    return _BootFiles(kernel.elf(directory / "vmlinux") if elf else path, initramfs, kernel.release)


def _signature(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def tidy(store: ArtefactStore) -> int:
    """Removes what was made for guests and not used for weeks; returns how many bytes of the disk that frees."""
    return sum(remove_unused(store.directory / kind) for kind in ("roots", "initramfs", "disks"))


def make_upper(path: Path, size: int | None, store: ArtefactStore) -> None:
    """Makes the empty disk of the writable files at `path`, of `size` bytes (None: unlimited, as far as the host's disk goes)."""
    clone_disk(empty_disk(size, store.directory / "disks"), path)
