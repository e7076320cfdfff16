"""The bottom layer of the image `host`: a root of empty directories and an /etc that holds what programs need and nothing private."""

from __future__ import annotations

import compileall
import grp
import hashlib
import json
import os
import platform
import pwd
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from agentenv.images.layout import HostLayout

REVISION = 1
"""Raised when the skeleton is made differently, so that those made before are not used any more."""

DIRECTORIES = {
    "dev": 0o755, "etc": 0o755, "home": 0o755, "home/user": 0o755, "media": 0o755, "mnt": 0o755, "opt": 0o755, "proc": 0o555, "root": 0o700,
    "run": 0o755, "srv": 0o755, "sys": 0o555, "tmp": 0o1777, "var": 0o755, "var/cache": 0o755, "var/lib": 0o755, "var/log": 0o755,
    "var/spool": 0o755, "var/tmp": 0o1777,
}  # fmt: skip

LINKS = {"var/run": "/run", "var/lock": "/run/lock", "etc/mtab": "/proc/self/mounts"}

ETC_FILES = (
    "bash.bashrc", "debian_version", "ethertypes", "gai.conf", "host.conf", "inputrc", "ld.so.cache", "ld.so.conf", "locale.alias",
    "locale.conf", "localtime", "login.defs", "magic", "magic.mime", "mime.types", "nsswitch.conf", "os-release", "profile", "protocols",
    "rpc", "services", "shells", "timezone", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "ssl/cert.pem", "ssl/openssl.cnf",
)  # fmt: skip
"""Public files, copied as they are; none of them holds a name, a password or an address of this machine's users."""

ETC_TREES = ("alternatives", "fonts", "ld.so.conf.d", "pki/ca-trust/extracted", "pki/tls/certs", "ssl/certs", "terminfo")
"""Directories whose public files are copied; a file with a private key in it is left out."""

HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
IMPORTED_IN_SANDBOXES = ("", "envs", "envs/guest")
"""Folders of the package with what an environment's process imports."""

USER_ID = 1000
LARGEST_CERTIFICATE_FILE = 16 << 20


def digest(layout: HostLayout, host: Path = Path("/")) -> str:
    """What the skeleton of `layout` depends on, as 16 hexadecimal digits: it changes when any of the copied files does."""
    etc = host / "etc"
    described = {
        "revision": REVISION,
        "machine": platform.machine(),
        "root": os.geteuid() == 0,
        "trees": sorted(map(str, layout.trees)),
        "links": {str(path): target for path, target in layout.links.items()},
        "files": [_signature(path) for path in (*layout.files, *_package_sources(layout))],
        "etc": [_signature(etc / name) for name in (*ETC_FILES, *ETC_TREES, "passwd", "group")],
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def build(layout: HostLayout, target: Path, host: Path = Path("/")) -> None:
    """Writes the skeleton into the empty or missing directory `target`."""
    for name, mode in DIRECTORIES.items():
        _directory(target / name, mode)
    for mount_point in layout.trees:
        inside = mount_point.relative_to("/")
        for parent in [*reversed(inside.parents), inside]:
            _directory(target / parent, 0o755)
    for name, link in LINKS.items():
        (target / name).symlink_to(link)
    for path, link in layout.links.items():
        _link(target / path.relative_to("/"), link)
    for path in layout.files:
        _parent(target / path.relative_to("/"))
        shutil.copy2(path, target / path.relative_to("/"))
    if layout.package is not None:
        _copy_package(layout.package, target / layout.package.relative_to("/"))
    _fill_etc(host / "etc", target / "etc")
    (target / "tmp").chmod(0o1777)
    if os.geteuid() == 0:
        os.chown(target / "home/user", USER_ID, USER_ID)


def _package_sources(layout: HostLayout) -> list[Path]:
    if layout.package is None:
        return []
    return sorted(path for path in _files_below(layout.package) if path.parent.name != "__pycache__")


def _copy_package(source: Path, target: Path) -> None:
    """With compiled modules, those of the source that are up to date, and with those that a sandbox imports in any case, so that none has
    to compile them. To compile all of a package that was just changed would keep its first sandbox waiting for a second.
    """
    for path in _files_below(source):
        copy = target / path.relative_to(source)
        _parent(copy)
        # In a working tree that somebody is editing, files come and go.
        with suppress(FileNotFoundError):
            shutil.copy2(path, copy)
    for room in IMPORTED_IN_SANDBOXES:
        if (target / room).is_dir():
            compileall.compile_dir(target / room, maxlevels=0, stripdir=target, prependdir=source, quiet=2)


def _fill_etc(source: Path, target: Path) -> None:
    for name in ETC_FILES:
        if os.path.lexists(source / name):
            _copy_public(source / name, target / name)
    for name in ETC_TREES:
        for path in _files_below(source / name):
            _copy_public(path, target / path.relative_to(source))
    made = {
        "passwd": "".join(f"{line}\n" for line in _accounts()),
        "group": "".join(f"{line}\n" for line in _groups()),
        "hosts": HOSTS,
        "hostname": "sandbox\n",
        "resolv.conf": "",
    }
    for name, content in made.items():
        (target / name).write_text(content)
        (target / name).chmod(0o644)


def _accounts() -> Iterator[str]:
    """Root, the system's accounts (files of /usr belong to them) without their comments, and `user`; no person of this machine."""
    shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
    yield f"root:x:0:0:root:/root:{shell}"
    for account in pwd.getpwall():
        if _is_system(account.pw_uid) and account.pw_name != "user":
            yield f"{account.pw_name}:x:{account.pw_uid}:{account.pw_gid}::{account.pw_dir}:/usr/sbin/nologin"
    yield f"user:x:{USER_ID}:{USER_ID}::/home/user:{shell}"


def _groups() -> Iterator[str]:
    yield "root:x:0:"
    for group in grp.getgrall():
        if _is_system(group.gr_gid) and group.gr_name != "user":
            yield f"{group.gr_name}:x:{group.gr_gid}:"
    yield f"user:x:{USER_ID}:"


def _is_system(number: int) -> bool:
    return 0 < number < 1000 or number == 65534


def _files_below(directory: Path) -> Iterator[Path]:
    for folder, directories, names in os.walk(directory):
        # A link to a directory is listed among the directories though it is not walked into.
        yield from (Path(folder) / name for name in (*names, *directories) if (Path(folder) / name).is_symlink() or name in names)


def _copy_public(source: Path, target: Path) -> None:
    """Copies a file, or a link that also leads somewhere in the sandbox; leaves out what may hold a secret or cannot be read."""
    try:
        status = source.lstat()
        if stat.S_ISLNK(status.st_mode):
            if _leads_into_image(source):
                _link(target, str(source.readlink()))
                return
            status = source.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_CERTIFICATE_FILE or not status.st_mode & stat.S_IROTH:
            return
        content = source.read_bytes()
    except (FileNotFoundError, PermissionError):
        return
    if b"PRIVATE KEY" in content:
        return
    _parent(target)
    target.write_bytes(content)
    target.chmod(status.st_mode & 0o755)


def _leads_into_image(link: Path) -> bool:
    """Whether a link of /etc leads into /usr (or through /etc/alternatives there), or to a neighbour that is copied as well."""
    target = Path(os.path.normpath(link.parent / link.readlink()))
    return target.parts[1:2] == ("usr",) or "alternatives" in (*target.parts, *link.parts) or target.parent == link.parent


def _link(path: Path, target: str) -> None:
    _parent(path)
    if not os.path.lexists(path):
        path.symlink_to(target)


def _directory(path: Path, mode: int) -> None:
    """Makes the directory with just this mode, whatever the umask; those above it that are missing get 0755."""
    _parent(path)
    path.mkdir(exist_ok=True)
    path.chmod(mode)


def _parent(path: Path) -> None:
    if not path.parent.is_dir():
        _directory(path.parent, 0o755)


def _signature(path: Path) -> list[int | str]:
    try:
        status = path.stat()
    except OSError:
        return [str(path)]
    return [str(path), status.st_ino, status.st_size, status.st_mtime_ns]
