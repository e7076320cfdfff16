"""What only this machine can tell: are there so many cores, so much memory, such a file?

These are validators of the models. They look at the `Surroundings` that a validation is given as its context; without them (a configuration
that another machine has checked already) they let everything pass.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationInfo

from agentenv.naming import near
from agentenv.units import format_size


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The limits of a machine: `cores` that this process may use and `memory` in bytes."""

    cores: int
    memory: int

    @classmethod
    def here(cls) -> MachineFacts:
        """Those of this machine."""
        return cls(cores=len(os.sched_getaffinity(0)), memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a configuration is to be used: on which machine, and from which folder its relative paths are taken.

    `machine` None is one that is not known here: a server's.
    """

    machine: MachineFacts | None
    folder: Path


def within_cores(cores: float, info: ValidationInfo) -> float:
    """Refuses more cores than the machine has."""
    machine = _machine(info)
    if machine is not None and cores > machine.cores:
        raise ValueError(f"asks for {cores:g} cores, but this machine has {machine.cores}; write {machine.cores} or less")
    return cores


def within_memory(size: int, info: ValidationInfo) -> int:
    """Refuses more memory than the machine has."""
    machine = _machine(info)
    if machine is not None and size > (have := machine.memory):
        raise ValueError(f"asks for {format_size(size)}, but this machine has {format_size(have)}; write {have // 1024**2}MiB or less")
    return size


def _machine(info: ValidationInfo) -> MachineFacts | None:
    return info.context.machine if isinstance(info.context, Surroundings) else None


def image_path(image: str, info: ValidationInfo) -> str:
    """`dir:PATH` and `tar:PATH` with the absolute path of something that is there; other images as they are."""
    kind, separator, path = image.partition(":")
    if not (separator and kind in {"dir", "tar"} and isinstance(info.context, Surroundings)):
        return image
    place = _absolute(path, info.context.folder)
    if not (place.is_dir() if kind == "dir" else place.is_file()):
        raise _missing(place, "directory" if kind == "dir" else "file")
    return f"{kind}:{place}"


def environment_path(name: str, info: ValidationInfo) -> str:
    """`path.py:Class` with the absolute path of a file that is there; other environments as they are."""
    path, separator, attribute = name.rpartition(":")
    if not (separator and path.endswith(".py") and isinstance(info.context, Surroundings)):
        return name
    place = _absolute(path, info.context.folder)
    if not place.is_file():
        raise _missing(place, "file")
    return f"{place}:{attribute}"


def _absolute(path: str, folder: Path) -> Path:
    return (folder / Path(path).expanduser()).absolute()


def _missing(place: Path, wanted: str) -> ValueError:
    siblings = [entry.name for entry in place.parent.iterdir()] if place.parent.is_dir() else []
    hint = near(place.name, siblings)
    right = f"did you mean {place.parent / hint}?" if hint and hint != place.name else f"give the path of an existing {wanted}"
    return ValueError(f"there is no {wanted} {place}; {right}")
