"""What every virtual machine of ours has inside, whoever makes it: kernel, initramfs, root image, disk, command line, connections.

docs/vm-guest.md says how a driver puts them together.
"""

from agentenv.isolation.artefacts.kernel_image import Kernel
from agentenv.isolation.vm.cmdline import VSOCK_PORT, GuestConfig, GuestNetwork, Platform
from agentenv.isolation.vm.disk import clone_disk
from agentenv.isolation.vm.network import GuestLink, connect_guest
from agentenv.isolation.vm.prepare import GuestFiles, make_upper, prepare_guest
from agentenv.isolation.vm.rootimage import RootImage, root_image
from agentenv.isolation.vm.streams import configure_guest, dial_serial, dial_vsock

__all__ = [
    "VSOCK_PORT",
    "GuestConfig",
    "GuestFiles",
    "GuestLink",
    "GuestNetwork",
    "Kernel",
    "Platform",
    "RootImage",
    "clone_disk",
    "configure_guest",
    "connect_guest",
    "dial_serial",
    "dial_vsock",
    "make_upper",
    "prepare_guest",
    "root_image",
]
