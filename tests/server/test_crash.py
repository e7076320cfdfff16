"""The server is killed at every stage of what it does to sandboxes: what was promised is there for the next one, and nothing half made."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import pytest
from tests.conditions import more_in_soak, needs_namespaces
from tests.server.crashing import LOADED, Death, serve

pytestmark = [needs_namespaces, pytest.mark.timeout(600)]

KEY = "a-key-of-the-crash-tests"
ENVD_PORT = "49983"

REGISTER = "agentenv.server.fleet.register:Register"
BIRTHS = "agentenv.server.fleet.births:Births"
MACHINE = "agentenv.node.sandbox:NodeSandbox"
CATALOGUE = "agentenv.server.catalogue.catalogue:Catalogue"
STORED = "agentenv.server.fleet.stored:Stored"


@dataclass(frozen=True)
class Server:
    """A server as a process of its own, over HTTP."""

    process: BaseProcess
    http: httpx.Client

    def create(self, **fields: object) -> str:
        answer = self.http.post("/v2/sandboxes", json={"templateID": "base", **fields})
        answer.raise_for_status()
        return str(answer.json()["sandboxID"])

    def connect(self, sandbox: str) -> None:
        self.http.post(f"/v2/sandboxes/{sandbox}/connect", json={}).raise_for_status()

    def pause(self, sandbox: str, *, memory: bool = True) -> None:
        self.http.post(f"/sandboxes/{sandbox}/pause", json={"memory": memory}).raise_for_status()

    def states(self) -> dict[str, str]:
        return {one["sandboxID"]: one["state"] for one in self.http.get("/v2/sandboxes").raise_for_status().json()}

    def snapshots(self) -> list[str]:
        return [one["snapshotID"] for one in self.http.get("/snapshots").raise_for_status().json()]

    def write(self, sandbox: str, content: str) -> None:
        """Writes a file, as E2B's clients do."""
        self.http.post("/files", headers=self._inside(sandbox), params=FILE, files={"file": ("f", content)}).raise_for_status()

    def read(self, sandbox: str) -> str:
        return self.http.get("/files", headers=self._inside(sandbox), params=FILE).raise_for_status().text

    def _inside(self, sandbox: str) -> dict[str, str]:
        token = self.http.get(f"/sandboxes/{sandbox}").raise_for_status().json()["envdAccessToken"]
        return {"e2b-sandbox-id": sandbox, "e2b-sandbox-port": ENVD_PORT, "X-Access-Token": token}


FILE = {"path": "/root/file", "username": "root"}


@contextmanager
def serving(home: Path, death: Death | None = None, *, policy: str = "lifecycle") -> Iterator[Server]:
    """A server in `home`, with a point of death if one is named; killed at the end of the block."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    heard, told = context.Pipe(duplex=False)
    environment = {"AGENTENV_HOME": str(home), "AGENTENV_API_KEY": KEY, "AGENTENV_CRASH_POLICY": policy}
    process = context.Process(target=serve, args=(environment, told, death))
    process.start()
    told.close()
    try:
        with open(heard.fileno(), closefd=False) as lines:
            url = json.loads(lines.readline())["url"]
        with httpx.Client(base_url=url, headers={"X-API-Key": KEY}, timeout=60) as http:
            yield Server(process, http)
    finally:
        process.kill()
        process.join(60)
        process.close()
        heard.close()


def machines(home: Path) -> list[str]:
    """The directories of machines, of whichever owner."""
    return [path.name for owner in (home / "owners").iterdir() for path in owner.glob("sb*")]


@dataclass(frozen=True)
class Point:
    """Where the server dies while it does `operation` to a sandbox, and what may have become of that sandbox."""

    operation: str
    target: str
    when: str
    nth: int
    allowed: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.operation}-{self.when}-{self.target.rpartition('.')[2]}-{self.nth}"

    def outcome(self, policy: str) -> tuple[str, ...]:
        """What may have become of the sandbox by the policy for crashes: kept is every one that had been handed out and not ended."""
        return PAUSED if policy == "keep" and self.operation != "kill paused" else self.allowed

    @property
    def whole(self) -> bool:
        """Whether what the operation makes is complete when the server dies, though nobody was told."""
        return self.target.endswith((".create", "Branches.fork"))


GONE, PAUSED = ("gone",), ("paused",)
EITHER = (*GONE, *PAUSED)
POINTS = [
    Point("create", f"{REGISTER}.plan", "before", 1, GONE),
    Point("create", f"{REGISTER}.plan", "after", 1, GONE),
    Point("create", f"{BIRTHS}.from_build", "after", 1, GONE),
    Point("create", "agentenv.server.fleet.creating:Creating.create", "after", 1, GONE),
    Point("pause", f"{REGISTER}.note", "before", 1, GONE),
    Point("pause", f"{REGISTER}.note", "after", 1, GONE),
    Point("pause", f"{MACHINE}.pause", "after", 1, GONE),
    Point("pause", f"{MACHINE}.snapshot", "after", 1, PAUSED),
    Point("pause", f"{REGISTER}.note", "before", 2, PAUSED),
    Point("pause", f"{REGISTER}.note", "after", 2, PAUSED),
    Point("pause without memory", f"{MACHINE}.kill", "after", 1, PAUSED),
    Point("resume", f"{REGISTER}.note", "before", 1, PAUSED),
    Point("resume", f"{REGISTER}.note", "after", 1, PAUSED),
    Point("resume", f"{MACHINE}.resume", "after", 1, PAUSED),
    Point("resume", f"{REGISTER}.note", "before", 2, PAUSED),
    Point("resume", f"{REGISTER}.note", "after", 2, GONE),
    Point("resume", f"{STORED}.discard", "after", 1, GONE),
    Point("resume from disk", f"{BIRTHS}.from_snapshot", "before", 1, PAUSED),
    Point("resume from disk", f"{BIRTHS}.from_snapshot", "after", 1, PAUSED),
    Point("fork", f"{REGISTER}.plan", "after", 1, GONE),
    Point("fork", f"{MACHINE}.fork", "after", 1, GONE),
    Point("fork", "agentenv.server.fleet.branches:Branches.fork", "after", 1, GONE),
    Point("snapshot", f"{MACHINE}.snapshot", "after", 1, GONE),
    Point("snapshot", f"{CATALOGUE}.create", "after", 1, GONE),
    Point("snapshot", f"{CATALOGUE}.add_build", "after", 1, GONE),
    Point("kill paused", f"{REGISTER}.end", "before", 1, PAUSED),
    Point("kill paused", f"{REGISTER}.end", "after", 1, GONE),
]
IN_SHORT = {("pause-after-snapshot-1", "lifecycle")}
CASES = [(point, policy) for point in POINTS for policy in ("lifecycle", "keep")]


def act(server: Server, operation: str, sandbox: str) -> None:
    """Asks for what the server dies of."""
    path = f"/sandboxes/{sandbox}"
    requests = {
        "create": ("POST", "/v2/sandboxes", {"templateID": "base"}),
        "pause": ("POST", f"{path}/pause", {}),
        "pause without memory": ("POST", f"{path}/pause", {"memory": False}),
        "resume": ("POST", f"/v2{path}/connect", {}),
        "resume from disk": ("POST", f"/v2{path}/connect", {}),
        "fork": ("POST", f"{path}/fork", {"count": 2}),
        "snapshot": ("POST", f"{path}/snapshots", {"name": "half"}),
        "kill paused": ("DELETE", path, None),
    }
    method, url, body = requests[operation]
    with pytest.raises(httpx.TransportError):
        server.http.request(method, url, json=body)
    server.process.join(60)
    assert server.process.exitcode == -signal.SIGKILL


def in_short(case: tuple[Point, str]) -> bool:
    return (str(case[0]), case[1]) in IN_SHORT


@pytest.mark.parametrize(
    ("point", "policy"), more_in_soak([one for one in CASES if in_short(one)], [one for one in CASES if not in_short(one)]), ids=str
)
def test_killed_at_any_stage_nothing_is_lost_and_nothing_left(tmp_path: Path, point: Point, policy: str) -> None:
    home, armed = tmp_path / "home", tmp_path / "armed"
    with serving(home, (point.target, point.when, point.nth, armed), policy=policy) as first:
        bystander, victim = first.create(), first.create()
        for sandbox in (bystander, victim):
            first.write(sandbox, f"of {sandbox}")
        kept = first.http.post(f"/sandboxes/{victim}/snapshots", json={"name": "kept"}).raise_for_status().json()["snapshotID"]
        first.pause(bystander)
        if point.operation in ("resume", "resume from disk", "kill paused"):
            first.pause(victim, memory=point.operation != "resume from disk")
        armed.touch()
        act(first, point.operation, victim)
    with serving(home) as second:
        states = second.states()
        assert states.pop(bystander) == "paused"
        assert states.pop(victim, "gone") in point.outcome(policy)
        assert states == {} or (policy == "keep" and point.whole and set(states.values()) == {"paused"})
        whole = point.operation == "snapshot" and point.target.endswith("add_build")
        assert set(second.snapshots()) == ({kept, "half:default"} if whole else {kept})
        assert machines(home) == []
        for sandbox in (bystander, victim) if point.outcome(policy) == PAUSED else (bystander,):
            second.connect(sandbox)
            assert second.read(sandbox) == f"of {sandbox}"
        for snapshot in second.snapshots():
            again = second.create(templateID=snapshot)
            assert second.read(again) == f"of {victim}"
            assert again not in (bystander, victim)
        for sandbox in second.states():
            assert second.http.delete(f"/sandboxes/{sandbox}").status_code == 204
        for snapshot in second.snapshots():
            second.http.delete(f"/snapshots/{snapshot}").raise_for_status()
        second.http.post("/admin/gc").raise_for_status()
    if policy == "keep":
        # What lay below a salvaged snapshot could not go before it, and is too young then for anybody but the next start.
        with serving(home):
            pass
    assert list((home / "snapshots" / "tree").glob("*.json")) == []
    assert list((home / "snapshots" / "layers").glob("[ald]*")) == []
    assert len(list((home / "owners").iterdir())) == 1


def test_what_ran_outlives_a_crash_where_it_would_have_been_paused_at_its_end(server_home: Path) -> None:
    home = server_home.parent / "crash"
    with serving(home) as first:
        gone, kept = first.create(), first.create(autoPause=True)
        first.write(kept, "once")
    with serving(home) as second:
        assert second.states() == {kept: "paused"}
        second.connect(kept)
        assert second.read(kept) == "once"
        second.write(kept, "twice")
    with serving(home) as third:
        assert third.states() == {kept: "paused"}
        third.connect(kept)
        assert third.read(kept) == "twice"
        assert third.create() not in (gone, kept)
        for sandbox in third.states():
            assert third.http.delete(f"/sandboxes/{sandbox}").status_code == 204
        third.http.post("/admin/gc").raise_for_status()
        assert list((home / "snapshots" / "tree").glob("*.json")) == []
        assert list((home / "snapshots" / "layers").glob("[ald]*")) == []


@dataclass
class Promises:
    """What a client was told, sandbox by sandbox. While a request is under way, nothing is promised of its sandbox."""

    paused: dict[str, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    snapshots: dict[str, str] = field(default_factory=dict)


def live(server: Server, chance: random.Random, name: str, promises: Promises, stop: threading.Event) -> None:
    """A client that does this and that to sandboxes of its own until the server is gone."""
    mine: list[str] = []
    try:
        while not stop.is_set():
            if len(mine) < 3:
                sandbox = server.create(timeout=600)
                promises.seen.add(sandbox)
                mine.append(sandbox)
                continue
            sandbox = chance.choice(mine)
            content = f"{name} {chance.random()}"
            match chance.choice(["pause", "pause", "fork", "snapshot", "kill"]):
                case "pause":
                    server.write(sandbox, content)
                    server.pause(sandbox, memory=chance.random() < 0.7)
                    promises.paused[sandbox] = content
                    if chance.random() < 0.6:
                        del promises.paused[sandbox]
                        server.connect(sandbox)
                    else:
                        mine.remove(sandbox)
                case "fork":
                    born = server.http.post(f"/sandboxes/{sandbox}/fork", json={"count": 2, "timeout": 600}).raise_for_status().json()
                    promises.seen.update(one["sandbox"]["sandboxID"] for one in born)
                case "snapshot":
                    server.write(sandbox, content)
                    kept = server.http.post(f"/sandboxes/{sandbox}/snapshots", json={}).raise_for_status().json()
                    promises.snapshots[kept["snapshotID"]] = content
                case "kill":
                    mine.remove(sandbox)
                    server.http.delete(f"/sandboxes/{sandbox}").raise_for_status()
                    promises.ended.add(sandbox)
    except httpx.TransportError:
        return


def check(server: Server, promises: Sequence[Promises]) -> None:
    """Holds what the server has against what was promised."""
    states = server.states()
    everyone = {sandbox for one in promises for sandbox in one.seen}
    assert set(states.values()) <= {"paused"}
    assert set(states) <= everyone
    for one in promises:
        assert not one.ended & set(states)
        for sandbox, content in one.paused.items():
            assert states.get(sandbox) == "paused", f"{sandbox} was promised to be paused"
            server.connect(sandbox)
            assert server.read(sandbox) == content
            server.pause(sandbox)
        kept = set(server.snapshots())
        for snapshot, content in one.snapshots.items():
            assert snapshot in kept
            started = server.create(templateID=snapshot)
            assert started not in everyone
            assert server.read(started) == content
            server.http.delete(f"/sandboxes/{started}").raise_for_status()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_killed_at_any_moment_while_clients_work_it_keeps_its_promises(server_home: Path, seed: int) -> None:
    home, chance = server_home.parent / f"crash-{seed % 2}", random.Random(seed)
    promises = [Promises() for _ in range(3)]
    with serving(home) as first:
        stop = threading.Event()
        threads = [
            threading.Thread(target=live, args=(first, random.Random(seed * 10 + number), f"client {number}", one, stop))
            for number, one in enumerate(promises)
        ]
        for thread in threads:
            thread.start()
        killer = threading.Timer(2 + 6 * chance.random(), first.process.kill)
        killer.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    with serving(home) as second:
        check(second, promises)
        for sandbox in second.states():
            second.http.delete(f"/sandboxes/{sandbox}").raise_for_status()
        for snapshot in second.snapshots():
            second.http.delete(f"/snapshots/{snapshot}").raise_for_status()
        second.http.post("/admin/gc").raise_for_status()
        assert list((home / "snapshots" / "tree").glob("*.json")) == []
        assert len(list((home / "owners").iterdir())) == 1
