"""Which mirror a machine uses is read from its own sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentenv.errors import BackendUnavailable
from agentenv.isolation.artefacts import apt


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "sources.list.d/debian.sources",
            "Types: deb\nURIs: http://security.test/debian-security\nSuites: x-security\n\nTypes: deb\nURIs: http://mirror.test/debian\n",
        ),
        (
            "sources.list",
            "# deb http://no.test/debian x main\ndeb http://other.test/ubuntu x main\ndeb [arch=amd64] http://mirror.test/debian x\n",
        ),
        ("sources.list.d/a.list", "deb-src http://no.test/debian x main\ndeb http://mirror.test/debian x main"),
    ],
)
def test_the_mirror_of_the_machine(name: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    assert apt.mirror(tmp_path) == "http://mirror.test/debian"
    assert apt.security_mirror(tmp_path) == ("http://security.test/debian-security" if "security.test" in content else None)


def test_a_machine_without_one(tmp_path: Path) -> None:
    assert apt.mirror(tmp_path) is None


def test_a_damaged_package_is_told(tmp_path: Path) -> None:
    (tmp_path / "p.deb").write_bytes(b"no package")
    with pytest.raises(BackendUnavailable, match=r"p\.deb cannot be unpacked"):
        apt.unpack(tmp_path / "p.deb", tmp_path / "out")
