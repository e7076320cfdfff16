"""Brings the code that an environment needs into its sandbox: our own guest package, and the user's module or file."""

from __future__ import annotations

import importlib.util
import io
import marshal
import sys
import zipfile
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from agentenv.envs.handle import SandboxHandle
from agentenv.errors import NotFound
from agentenv.paths import PACKAGE

HOME: Final = "/opt/agentenv"
"""Where in a sandbox everything lies that is brought along."""

_PACKAGE: Final = PACKAGE.resolve()
_GUEST_FILES: Final = ("__init__.py", "envs/__init__.py", "envs/gymnasium_ids.py", "envs/spaces.py", "envs/guest/*.py")


@dataclass(frozen=True, slots=True)
class Delivered:
    """What the server is started with: where our package is imported from, the target as the sandbox knows it, more folders of modules."""

    root: str
    target: str
    paths: tuple[str, ...] = ()


def deliver(sandbox: SandboxHandle, target: str) -> Delivered:
    """Uploads what the sandbox does not hold already. Raises `NotFound` for a file that is neither here nor, as an absolute path, there."""
    root = deliver_guest(sandbox)
    source, _, name = target.rpartition(":")
    if source.split(":")[0] == "gymnasium" or source.split(".")[0] == "agentenv":
        return Delivered(root, target)
    if source.endswith(".py"):
        return Delivered(root, f"{_deliver_file(sandbox, source)}:{name}")
    return Delivered(root, target, _deliver_module(sandbox, source))


def deliver_guest(sandbox: SandboxHandle) -> str:
    """Makes `agentenv.envs.guest` importable in the sandbox, in exactly this version; returns what to put on the import path."""
    if sandbox.files.exists(str(_PACKAGE / "envs" / "guest" / "server.py")):
        return str(_PACKAGE.parent)
    name, content = guest_archive()
    path = f"{HOME}/{name}"
    if not sandbox.files.exists(path):
        sandbox.files.write(path, content)
    return path


@cache
def guest_archive() -> tuple[str, bytes]:
    """(file name, content) of a zip archive from which Python imports the guest package.

    It carries the modules compiled for this Python beside their source, which any other Python falls back on. The name holds a digest of
    the source.
    """
    sources = {
        path.relative_to(_PACKAGE.parent).as_posix(): path.read_bytes()
        for pattern in _GUEST_FILES
        for path in sorted(_PACKAGE.glob(pattern))
    }
    digest = sha256(b"".join(name.encode() + b"\0" + source for name, source in sources.items())).hexdigest()[:16]
    archive = f"guest-{digest}.zip"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name, source in sources.items():
            code = compile(source, f"{HOME}/{archive}/{name}", "exec", dont_inherit=True)
            bundle.writestr(zipfile.ZipInfo(name + "c"), _UNCHECKED + marshal.dumps(code))
            bundle.writestr(zipfile.ZipInfo(name), source)
    return archive, buffer.getvalue()


_UNCHECKED: Final = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
"""The head of a compiled module that is not compared with its source (PEP 552)."""


def _deliver_file(sandbox: SandboxHandle, source: str) -> str:
    local = Path(source).expanduser()
    if local.is_file():
        remote = f"{HOME}/user/{local.name}"
        sandbox.files.write(remote, local.read_bytes())
        return remote
    if local.is_absolute() and sandbox.files.exists(source):
        return source
    raise NotFound(f"there is no file {source} (seen from {Path.cwd()}), and the sandbox's image holds none of that name.")


def _deliver_module(sandbox: SandboxHandle, module: str) -> tuple[str, ...]:
    """The folder from which the sandbox can import the module: empty where its Python finds it by itself."""
    top = module.split(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:
        spec = None
    if spec is None or spec.origin is None or top in sys.stdlib_module_names:
        return ()
    origin = Path(spec.origin)
    home = origin.parent.parent if spec.submodule_search_locations else origin.parent
    if sandbox.files.exists(spec.origin):
        return () if str(home).startswith((sys.prefix, sys.base_prefix)) else (str(home),)
    if spec.submodule_search_locations:
        sandbox.upload_dir(str(origin.parent), f"{HOME}/user/{top}")
    else:
        sandbox.files.write(f"{HOME}/user/{origin.name}", origin.read_bytes())
    return (f"{HOME}/user",)
