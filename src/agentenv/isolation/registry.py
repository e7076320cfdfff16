"""Finds the backends: AgentENV's own, and those that other packages name in the entry-point group `agentenv.backends`."""

from __future__ import annotations

import asyncio
import difflib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from agentenv.errors import BackendUnavailable, ConfigError, NotFound
from agentenv.isolation.contract import Backend, BackendFactory, Probe
from agentenv.monitoring.logs import logger

GROUP = "agentenv.backends"
STRONGEST_FIRST = ("firecracker", "gvisor", "namespace")
"""What "auto" tries, in this order: hardware isolation, a kernel of its own, namespaces. Others are used by name only."""

_OWN = tuple(
    metadata.EntryPoint(name, f"agentenv.isolation.{name}:open_backend", GROUP) for name in ("firecracker", "gvisor", "namespace", "qemu")
)
_log = logger(__name__)


def registered() -> dict[str, metadata.EntryPoint]:
    """Every backend by its name, not loaded yet. Raises `ConfigError` when two packages claim one name, or one claims "auto"."""
    found = {entry.name: entry for entry in _OWN}
    for entry in metadata.entry_points(group=GROUP):
        known = found.setdefault(entry.name, entry)
        if known.value != entry.value or entry.name == "auto":
            raise ConfigError(
                f"two backends are named {entry.name!r}: {known.value} and {entry.value}."
                if entry.name != "auto"
                else f"{entry.value} cannot be named 'auto': that stands for the strongest usable backend.",
                remedy="Uninstall one of the packages, or rename its entry point.",
            )
    return found


async def open_backend(name: str, owner_dir: Path) -> Backend:
    """Opens the backend `name` for the owner of `owner_dir`; "auto" is the strongest that is usable here.

    Raises `NotFound` for an unknown name, `BackendUnavailable` when it (for "auto": none) can be used.
    """
    known = registered()
    if name == "auto":
        return await _open_strongest(known, owner_dir)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise NotFound(f"there is no backend named {name!r}; there are: auto, {', '.join(sorted(known))}.{hint}")
    return await _factory(known[name])(owner_dir)


async def _open_strongest(known: dict[str, metadata.EntryPoint], owner_dir: Path) -> Backend:
    passed: list[str] = []
    for name in STRONGEST_FIRST:
        if name not in known:
            passed.append(f"{name}: not installed.")
            continue
        try:
            backend = await _factory(known[name])(owner_dir)
        except BackendUnavailable as error:
            passed.append(f"{name}: {error}")
            continue
        probe = await asyncio.to_thread(backend.probe)
        if probe.usable:
            _log.info("backend.chosen", backend=name, reason="the strongest that is usable here", passed_over=passed)
            return backend
        await backend.close()
        passed.append(f"{name}: {probe.reason} {probe.remedy or ''}".rstrip())
    raise BackendUnavailable(
        f"no backend can be used on this machine. {' '.join(passed)}", remedy="Run `agentenv doctor` for the whole report."
    )


def _factory(entry: metadata.EntryPoint) -> BackendFactory:
    factory: BackendFactory = entry.load()
    return factory


def probe_all() -> list[Probe]:
    """What each registered backend says of this machine, by name. Opens and closes each in a temporary directory (tens of milliseconds)."""
    # A thread of its own, since the caller may be inside an event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="agentenv-probe") as thread:
        return thread.submit(asyncio.run, _probe_each()).result()


async def _probe_each() -> list[Probe]:
    probes = []
    for name, entry in sorted(registered().items()):
        with tempfile.TemporaryDirectory(prefix="agentenv-probe-") as directory:
            probes.append(await _probe(name, entry, Path(directory)))
    return probes


async def _probe(name: str, entry: metadata.EntryPoint, directory: Path) -> Probe:
    try:
        backend = await _factory(entry)(directory)
    except BackendUnavailable as error:
        return Probe(name, usable=False, version=None, reason=error.message, remedy=error.remedy)
    try:
        return backend.probe()
    finally:
        await backend.close()
