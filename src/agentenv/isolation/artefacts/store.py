"""The artefacts of one machine: programs and kernels that backends need and AgentENV does not bring along.

On disk: `<name>/` is a complete artefact with its `artefact.json`, `given/<name>` a link to one that the user named, `partial/` what is
being fetched, `lock` the right to change any of it. `roots`, `vmlinux`, `initramfs` and `disks` hold what guests are made of
(agentenv.isolation.vm).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import BackendUnavailable, InfrastructureError, NotFound
from agentenv.isolation.artefacts.firecracker import FirecrackerRecipe
from agentenv.isolation.artefacts.kernel import KernelRecipe
from agentenv.isolation.artefacts.qemu import QemuRecipe
from agentenv.isolation.artefacts.recipe import Artefact, Places, Progress, Recipe, given_by_environment, silent, variable
from agentenv.isolation.artefacts.runsc import RunscRecipe
from agentenv.paths import state_home

DIRECTORY_VARIABLE = "AGENTENV_ARTEFACTS"
RECORD = "artefact.json"

NEEDS: dict[str, tuple[str, ...]] = {
    "firecracker": ("firecracker", "jailer", "kernel"),
    "gvisor": ("runsc",),
    "namespace": (),
    "qemu": ("qemu", "kernel"),
}
"""Which artefacts each of our backends needs."""


def recipes() -> dict[str, Recipe]:
    """Every artefact by its name."""
    known: tuple[Recipe, ...] = (
        FirecrackerRecipe("firecracker"),
        FirecrackerRecipe("jailer"),
        KernelRecipe(),
        RunscRecipe(),
        QemuRecipe(),
    )
    return {recipe.name: recipe for recipe in known}


@dataclass(frozen=True, slots=True)
class ArtefactStore:
    """The store in `directory`. Where `offline` is given, nothing is fetched from a network, only from files in that directory."""

    directory: Path
    offline: Path | None = None

    @classmethod
    def open(cls, directory: Path | None = None, *, offline: Path | None = None) -> ArtefactStore:
        """The store in `directory`, by default AGENTENV_ARTEFACTS, else `artefacts` in AGENTENV_HOME; made when it is first used."""
        chosen = os.environ.get(DIRECTORY_VARIABLE)
        place = directory or (Path(chosen).expanduser() if chosen else state_home() / "artefacts")
        return cls(place.absolute(), offline)

    def find(self, name: str) -> Artefact | None:
        """The artefact, if this machine has a usable one: that which was given, else kept, else installed. Fetches nothing."""
        try:
            return self._present(_recipe(name))
        except BackendUnavailable:
            return None

    def require(self, name: str) -> Artefact:
        """As `find`; raises `BackendUnavailable` with the reason and the remedy where there is none. Fetches nothing."""
        found = self._present(_recipe(name))
        if found is None:
            raise BackendUnavailable(
                f"{name} is not on this machine.", remedy=f"`agentenv setup` fetches it; or set {variable(name)} to its path."
            )
        return found

    def obtain(self, name: str, *, progress: Progress | None = None) -> Artefact:
        """The artefact, fetched first where it is not on this machine; one process at a time does that.

        Raises `BackendUnavailable`: what was tried, why it failed, and how to get it by hand.
        """
        recipe = _recipe(name)
        if (found := self._present(recipe)) is not None:
            return found
        with self._lock():
            return self._present(recipe) or self._fetch(recipe, progress or silent)

    def give(self, name: str, path: Path) -> Artefact:
        """From now on the artefact is the one at `path`. Raises `BackendUnavailable` when that cannot be used."""
        recipe = _recipe(name)
        found = recipe.inspect(path.expanduser().absolute(), "given by the user")
        link = self.directory / "given" / name
        with self._lock():
            link.parent.mkdir(exist_ok=True)
            fresh = link.with_name(f".{name}.partial")
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(found.path)
            fresh.replace(link)
        return found

    def _present(self, recipe: Recipe) -> Artefact | None:
        if (chosen := given_by_environment(recipe.name)) is not None:
            return recipe.inspect(chosen, f"named by {variable(recipe.name)}")
        given = self.directory / "given" / recipe.name
        if given.is_symlink():
            return recipe.inspect(given.readlink(), "given by the user")
        kept = self.directory / recipe.name
        if (kept / RECORD).is_file():
            return recipe.inspect(recipe.kept_file(kept), str(json.loads((kept / RECORD).read_text())["origin"]))
        return _first_usable(recipe)

    def _fetch(self, recipe: Recipe, progress: Progress) -> Artefact:
        kept = self.directory / recipe.name
        scratch = self.directory / "partial"
        fresh = scratch / f"new-{recipe.name}"
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            fresh.mkdir(parents=True)
            origin = recipe.fetch(Places(scratch, self.offline), fresh, progress)
            if not any(fresh.iterdir()):
                # Installed on the machine itself rather than kept here.
                installed = _first_usable(recipe)
                if installed is None:
                    raise BackendUnavailable(f"{recipe.name} was installed, and still cannot be used.", remedy="Run `agentenv doctor`.")
                return installed
            found = recipe.inspect(recipe.kept_file(fresh), origin)
            (fresh / RECORD).write_text(json.dumps({"version": found.version, "origin": origin}))
            shutil.rmtree(kept, ignore_errors=True)
            fresh.rename(kept)
        except OSError as error:
            raise InfrastructureError(f"{recipe.name} could not be put into {self.directory}: {error.strerror or error}.") from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return recipe.inspect(recipe.kept_file(kept), origin)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _recipe(name: str) -> Recipe:
    known = recipes()
    if name not in known:
        raise NotFound(f"there is no artefact {name!r}; there are {', '.join(known)}.")
    return known[name]


def _first_usable(recipe: Recipe) -> Artefact | None:
    """The first that the machine has and that can be used; when it has only unusable ones, the reason of the first."""
    problem: BackendUnavailable | None = None
    for path, origin in recipe.installed():
        try:
            return recipe.inspect(path, origin)
        except BackendUnavailable as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return None
