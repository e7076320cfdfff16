"""How backends are found, chosen and refused."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from agentenv.errors import BackendUnavailable, ConfigError, NotFound
from agentenv.isolation import open_backend, probe_all, registry
from agentenv.isolation.contract import Backend, Machine, MachineSpec, Probe


class Stand:
    """A backend that only says whether it can be used."""

    def __init__(self, name: str, usable: bool) -> None:
        self.name = name
        self.closed = False
        self._usable = usable

    def probe(self) -> Probe:
        return Probe(
            self.name, self._usable, "1", None if self._usable else "it is switched off.", None if self._usable else "Switch it on."
        )

    async def start(self, spec: MachineSpec) -> Machine:
        raise NotImplementedError

    async def close(self) -> None:
        self.closed = True


async def open_usable(directory: Path) -> Backend:
    return Stand("gvisor", usable=True)


async def open_switched_off(directory: Path) -> Backend:
    return Stand("firecracker", usable=False)


async def open_nothing(directory: Path) -> Backend:
    raise BackendUnavailable("there is no such wall.", remedy="Build one.")


def _register(patch: pytest.MonkeyPatch, **factories: str) -> None:
    entries = [metadata.EntryPoint(name, f"{__name__}:{function}", registry.GROUP) for name, function in factories.items()]
    patch.setattr(registry.metadata, "entry_points", lambda group: entries)


async def test_an_unknown_name_lists_names_and_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no backend named 'namespaces'; there are: auto, .*namespace.*\. Did you mean 'namespace'\?"):
        await open_backend("namespaces", tmp_path)


async def test_auto_takes_the_strongest_that_is_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _register(monkeypatch, firecracker="open_switched_off", gvisor="open_usable")
    monkeypatch.setattr(registry, "_OWN", ())
    assert (await open_backend("auto", tmp_path)).name == "gvisor"


async def test_auto_says_of_each_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _register(monkeypatch, firecracker="open_switched_off")
    monkeypatch.setattr(registry, "_OWN", (metadata.EntryPoint("namespace", f"{__name__}:open_nothing", registry.GROUP),))
    expected = r"firecracker: it is switched off\. Switch it on\. gvisor: not installed\. namespace: there is no such wall\. Build one\."
    with pytest.raises(BackendUnavailable, match=expected):
        await open_backend("auto", tmp_path)


def test_two_of_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _register(monkeypatch, namespace="open_usable")
    with pytest.raises(ConfigError, match="two backends are named 'namespace'"):
        registry.registered()


def test_the_same_one_twice_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: list(registry._OWN))
    assert list(registry.registered()) == ["firecracker", "gvisor", "namespace", "qemu"]


def test_auto_is_no_name_for_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    _register(monkeypatch, auto="open_usable")
    with pytest.raises(ConfigError, match="cannot be named 'auto'"):
        registry.registered()


async def test_probe_all_asks_each_even_from_within_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    _register(monkeypatch, firecracker="open_switched_off", gvisor="open_usable", other="open_nothing")
    monkeypatch.setattr(registry, "_OWN", ())
    answers = {probe.backend: (probe.usable, probe.reason, probe.remedy) for probe in probe_all()}
    assert answers == {
        "firecracker": (False, "it is switched off.", "Switch it on."),
        "gvisor": (True, None, None),
        "other": (False, "there is no such wall.", "Build one."),
    }
