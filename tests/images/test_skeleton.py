"""The synthesized root: everything public that programs need, nothing private, the same whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.images.layout import HostLayout
from agentenv.images.skeleton import build, digest


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A machine with public files and secrets side by side."""
    files = {
        "etc/services": "http 80/tcp",
        "etc/shadow": "root:$6$hash",
        "etc/pip.conf": "index-url = https://user:password@example.invalid",
        "etc/ssh/ssh_host_ed25519_key": "BEGIN OPENSSH PRIVATE KEY",
        "etc/ssl/certs/ca-certificates.crt": "BEGIN CERTIFICATE",
        "etc/ssl/certs/careless.pem": "-----BEGIN PRIVATE KEY-----",
        "etc/ssl/private/server.key": "-----BEGIN PRIVATE KEY-----",
        "etc/alternatives/README": "links",
        "usr/share/zoneinfo/UTC": "TZif",
    }
    for name, content in files.items():
        path = tmp_path / "host" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (tmp_path / "host/etc/localtime").symlink_to("/usr/share/zoneinfo/UTC")
    (tmp_path / "host/etc/ssl/certs/outside.pem").symlink_to("/root/.ssh/id_rsa")
    return tmp_path / "host"


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_shows_public_files_and_no_secret(host: Path, tmp_path: Path) -> None:
    target = tmp_path / "skeleton"
    target.mkdir()
    build(HostLayout(), target, host)
    assert (target / "etc/services").read_text() == "http 80/tcp"
    assert (target / "etc/localtime").readlink() == Path("/usr/share/zoneinfo/UTC")
    assert (target / "etc/ssl/certs/ca-certificates.crt").is_file()
    present = {str(path.relative_to(target)) for path in target.rglob("*")}
    secrets = {"etc/shadow", "etc/pip.conf", "etc/ssh", "etc/ssl/private", "etc/ssl/certs/careless.pem", "etc/ssl/certs/outside.pem"}
    assert not present & secrets


def test_names_no_person_of_this_machine(tmp_path: Path) -> None:
    target = tmp_path / "skeleton"
    target.mkdir()
    build(HostLayout(), target)
    accounts = [line.split(":") for line in (target / "etc/passwd").read_text().splitlines()]
    assert accounts[0][:4] == ["root", "x", "0", "0"]
    assert {name for name, _, uid, *_ in accounts if int(uid) >= 1000 and uid != "65534"} == {"user"}
    assert all(len(account) == 7 for account in accounts)
    groups = [line.split(":") for line in (target / "etc/group").read_text().splitlines()]
    assert all(members == "" for *_, members in groups)


@pytest.mark.usefixtures("strict_umask")
def test_everybody_in_the_sandbox_can_read_it_whatever_the_umask(host: Path, tmp_path: Path) -> None:
    target = tmp_path / "skeleton"
    target.mkdir()
    layout = HostLayout(trees={Path("/home/me/.pyenv/versions/3.11"): host}, links={Path("/data/py"): "/home/me/.pyenv"})
    build(layout, target, host)
    (target).chmod(0o755)
    for path in target.rglob("*"):
        if path.is_symlink() or path == target / "root":  # which is private, unless a Python lies below it
            continue
        wanted = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
        assert path.stat().st_mode & wanted == wanted, path
    assert (target / "tmp").stat().st_mode & 0o7777 == 0o1777


def test_every_mount_point_and_link_is_there(host: Path, tmp_path: Path) -> None:
    target = tmp_path / "skeleton"
    target.mkdir()
    build(HostLayout(trees={Path("/opt/py/3.11"): host, Path("/usr"): host}, links={Path("/bin"): "usr/bin"}), target, host)
    assert (target / "opt/py/3.11").is_dir()
    assert (target / "usr").is_dir()
    assert (target / "bin").readlink() == Path("usr/bin")


def test_the_package_comes_compiled(host: Path, tmp_path: Path) -> None:
    package = tmp_path / "clone/src/agentenv"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("answer = 42\n")
    (package.parent / "secret.txt").write_text("mine")
    target = tmp_path / "skeleton"
    target.mkdir()
    build(HostLayout(package=package), target, host)
    copy = target / package.relative_to("/")
    assert (copy / "__init__.py").read_text() == "answer = 42\n"
    assert list((copy / "__pycache__").glob("__init__.*.pyc"))
    assert not (copy.parent / "secret.txt").exists()


def test_the_digest_follows_what_the_skeleton_is_made_of(host: Path, tmp_path: Path) -> None:
    package = tmp_path / "agentenv"
    package.mkdir()
    (package / "module.py").write_text("one")
    layout = HostLayout(package=package)
    seen = {digest(layout, host)}
    assert digest(layout, host) in seen
    (host / "etc/services").write_text("http 80/tcp, and more")
    seen.add(digest(layout, host))
    (package / "module.py").write_text("two!")
    seen.add(digest(layout, host))
    layout.links[Path("/bin")] = "usr/bin"
    seen.add(digest(layout, host))
    layout.trees[Path("/usr")] = host
    seen.add(digest(layout, host))
    assert len(seen) == 5
    (host / "etc/shadow").write_text("changed")
    assert digest(layout, host) in seen
