"""Starting, pausing, resizing and ending sandboxes of the namespace backend, and every way in which a start can fail."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.isolation.sandboxes import MIB, Yard, open_descriptors, shell

from agentenv.errors import InfrastructureError, InvalidState, SandboxDied, StartupTimeout
from agentenv.isolation.contract import Machine, Network, Resources, RootFilesystem, Timeouts, Tree
from agentenv.isolation.namespace import backend as backend_module
from agentenv.isolation.namespace import endpoint, plan
from agentenv.isolation.namespace.backend import NamespaceBackend
from agentenv.isolation.namespace.cgroups import Cgroup
from agentenv.isolation.namespace.machine import NamespaceMachine
from agentenv.isolation.namespace.warm_groups import WarmGroups

NOTHING = {"processes": [], "cgroups": []}


async def test_stages_are_told(machine: NamespaceMachine) -> None:
    assert isinstance(machine, Machine)
    names = [stage.name for stage in machine.stages]
    parts = ["cgroup", "network", "files", "root", "mask", "confine", "exec"]
    assert names == ["prepare", "cgroup", "launch", *(f"launch.{part}" for part in parts), "agent"]
    assert all(stage.seconds >= 0 for stage in machine.stages)


async def test_many_at_once(yard: Yard) -> None:
    machines = await asyncio.gather(*(yard.backend.start(yard.spec()) for _ in range(12)))
    names = await asyncio.gather(*(shell(machine, "cat /proc/sys/kernel/hostname") for machine in machines))
    assert [name.strip() for name in names] == [f"box-{machine.id}" for machine in machines]
    await asyncio.gather(*(machine.kill() for machine in machines))
    assert yard.leftovers() == NOTHING


async def test_kill_frees_everything_and_says_the_same_again(yard: Yard) -> None:
    await (await yard.backend.start(yard.spec())).kill()
    before = open_descriptors()
    machine = await yard.backend.start(yard.spec())
    await shell(machine, "sleep 100 >/dev/null 2>&1 &")
    first, second = await asyncio.gather(machine.kill(), machine.kill())
    assert first is second is await machine.wait()
    assert (first.reason, first.signal) == ("it was killed", signal.SIGKILL)
    assert yard.leftovers() == NOTHING
    assert open_descriptors() == before
    with pytest.raises(SandboxDied, match="it was killed"):
        machine.dial()


async def test_an_agent_that_ends_is_told_with_evidence(machine: NamespaceMachine) -> None:
    os.kill(machine.pid, signal.SIGKILL)
    ended = await machine.wait()
    assert ended.reason == "its agent was ended by signal 9"
    assert set(ended.evidence) == {"oom_kills", "last_output"}
    with pytest.raises(SandboxDied):
        await machine.pause()
    assert await machine.kill() is ended


async def test_the_launchers_end_ends_its_sandboxes_and_the_next_start_gets_a_new_one(yard: Yard) -> None:
    machine = await yard.backend.start(yard.spec())
    os.kill(yard.backend._launcher._process.pid, signal.SIGKILL)
    assert (await machine.wait()).reason == "the launcher that held it ended"
    again = await yard.backend.start(yard.spec())
    assert "alive" in await shell(again, "echo alive")


async def test_close_ends_all_and_refuses_more(yard: Yard) -> None:
    machine = await yard.backend.start(yard.spec())
    await yard.backend.close()
    await yard.backend.close()
    assert (await machine.wait()).signal == signal.SIGKILL
    with pytest.raises(InvalidState, match="closed"):
        await yard.backend.start(yard.spec())


@pytest.mark.parametrize("freezer", [True, False])
async def test_pause_and_resume(yard: Yard, freezer: bool) -> None:
    machine = await yard.backend.start(yard.spec())
    if freezer and not machine._can_freeze:
        pytest.skip("no cgroup freezer for this user")
    machine._can_freeze = freezer
    await shell(machine, "echo 0 > /tmp/n; (n=0; while :; do n=$((n+1)); echo $n > /tmp/m; mv /tmp/m /tmp/n; done) >/dev/null 2>&1 &")
    await machine.pause()
    states = [line.split()[1] for line in _host_status(machine, "State:")]
    assert states
    assert set(states) <= {"T", "D", "S", "Z"}  # stopped, frozen where it was, or ended and not yet reaped by one that is stopped
    await machine.resume()
    before = int(await shell(machine, "cat /tmp/n"))
    assert int(await shell(machine, f"while [ $(cat /tmp/n) -le {before} ]; do :; done; cat /tmp/n")) > before


async def test_kill_works_while_paused(yard: Yard) -> None:
    machine = await yard.backend.start(yard.spec())
    await shell(machine, "sleep 100 >/dev/null 2>&1 &")
    await machine.pause()
    assert (await machine.kill()).reason == "it was killed"
    assert yard.leftovers() == NOTHING


async def test_resize_changes_limits_and_what_is_shown(yard: Yard) -> None:
    machine = await yard.backend.start(yard.spec(resources=Resources(cpu=1, memory=200 * MIB)))
    await machine.resize(Resources(cpu=2, memory=100 * MIB))
    cores = min(2, len(os.sched_getaffinity(0)))
    answers = await shell(machine, "nproc; grep MemTotal /proc/meminfo | tr -dc 0-9; echo; cat /sys/devices/system/cpu/online")
    assert answers.split() == [str(cores), str(100 * 1024), "0" if cores == 1 else f"0-{cores - 1}"]
    if os.geteuid() == 0:
        assert (await machine.usage()).memory_limit == 100 * MIB


async def test_usage_counts(machine: NamespaceMachine) -> None:
    usage = await machine.usage()
    if usage.processes is None:
        pytest.skip("no cgroup accounts this user's sandboxes")
    assert usage.processes >= 1
    assert await machine.oom_kills() == ()
    assert await machine.process_limit_hits() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="an unprivileged user's sandboxes have no memory limit")
async def test_a_memory_hog_is_ended_and_named_while_a_neighbour_goes_on(yard: Yard) -> None:
    hog = await yard.backend.start(yard.spec(resources=Resources(memory=48 * MIB)))
    neighbour = await yard.backend.start(yard.spec(resources=Resources(memory=48 * MIB)))
    assert "done" not in await shell(
        hog, "head -c 200000000 /dev/zero | tail -c 150000000 | wc -c > /tmp/x && grep 150000000 /tmp/x && echo done"
    )
    kills = await hog.oom_kills()
    assert kills
    assert kills[0].limit == 48 * MIB
    assert "alive" in await shell(hog, "echo alive")
    assert "alive" in await shell(neighbour, "echo alive")


@pytest.mark.skipif(os.geteuid() != 0, reason="an unprivileged user's sandboxes have no process limit")
async def test_a_fork_bomb_is_held(yard: Yard) -> None:
    machine = await yard.backend.start(yard.spec(resources=Resources(pids=40)))
    await shell(
        machine, "bomb() { bomb | bomb & }; bomb 2>/dev/null; i=0; while [ $i -lt 100 ]; do sleep 5 & i=$((i+1)); done", user="root"
    )
    assert await machine.process_limit_hits() > 0
    assert (await machine.kill()).reason == "it was killed"
    assert yard.leftovers() == NOTHING


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a named network namespace")
async def test_a_prepared_network_is_entered(yard: Yard) -> None:
    names = f"/proc/{os.getpid()}/ns/net"  # the test's own stands for a slot of the node's pool
    machine = await yard.backend.start(yard.spec(network=Network(enabled=True, netns=Path(names))))
    assert (await shell(machine, "readlink /proc/self/ns/net")).strip() == os.readlink(names)  # noqa: PTH115


def _host_status(machine: NamespaceMachine, field: str) -> list[str]:
    """A line of /proc/PID/status of each process of the sandbox but its agent."""
    wanted = Path(f"/proc/{machine.pid}/ns/pid").readlink()
    lines = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) != machine.pid and (entry / "ns/pid").readlink() == wanted:
                lines += [line for line in (entry / "status").read_text().splitlines() if line.startswith(field)]
        except OSError:
            continue  # it ended meanwhile
    return lines


def _refuse(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


async def _never(*_: object) -> None:
    await asyncio.Event().wait()


BROKEN = OSError(5, "made to fail")


def _break_listen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(endpoint, "listen", _refuse(BROKEN))


def _break_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(endpoint, "open_log", _refuse(BROKEN))


def _break_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WarmGroups, "take", _refuse(BROKEN))


def _break_limits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cgroup, "apply", _refuse(BROKEN))


def _break_connect(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(endpoint, "connect", _refuse(BROKEN))


def _break_plan(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "records", _refuse(BROKEN))


def _break_hello(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(backend_module, "readable", _refuse(BROKEN))


def _break_machine(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(backend_module, "NamespaceMachine", _refuse(BROKEN))


@pytest.mark.parametrize(
    "break_stage",
    [_break_listen, _break_log, _break_group, _break_limits, _break_connect, _break_plan, _break_hello, _break_machine],
    ids=lambda function: function.__name__.removeprefix("_break_"),
)
async def test_a_failure_at_any_step_leaves_nothing(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, break_stage: Callable[[pytest.MonkeyPatch], None]
) -> None:
    await (await yard.backend.start(yard.spec())).kill()
    before = open_descriptors()
    with monkeypatch.context() as patch:
        break_stage(patch)
        with pytest.raises(OSError, match="made to fail"):
            await yard.backend.start(yard.spec())
    assert yard.leftovers() == NOTHING
    assert open_descriptors() == before
    assert "alive" in await shell(await yard.backend.start(yard.spec()), "echo alive")


def _without_lower(image: RootFilesystem) -> RootFilesystem:
    return replace(image, trees=(Tree("/", "root", (Path("/no/such/layer"),)),))


@pytest.mark.parametrize(
    ("change", "stage"),
    [
        (lambda yard: {"image": _without_lower(yard.image)}, "mounting the overlay of / failed in stage 'files': No such file"),
        (
            lambda yard: {"network": Network(enabled=True, netns=Path("/no/such/network"))},
            "network namespace /proc/[0-9]+/root/no/such/network failed in stage 'network'",
        ),
        (lambda yard: {"env": {"BIG": "x" * 200_000}}, "in stage 'exec': Argument list too long"),
    ],
)
async def test_a_refusal_names_stage_and_cause_and_leaves_nothing(
    yard: Yard, change: Callable[[Yard], dict[str, object]], stage: str
) -> None:
    before = open_descriptors()
    with pytest.raises(InfrastructureError, match=stage):
        await yard.backend.start(yard.spec(**change(yard)))  # type: ignore[arg-type]
    assert yard.leftovers() == NOTHING
    assert open_descriptors() == before


async def test_an_agent_that_ends_at_once(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "agent_arguments", lambda *_, **__: ["agentenv-agent", "--no-such-option"])
    with pytest.raises(InfrastructureError, match=r"ended with status \d+ before it answered; it had printed: .*no-such-option"):
        await yard.backend.start(yard.spec())
    assert yard.leftovers() == NOTHING


async def test_a_slow_start_names_stage_timings_and_parameter(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "readable", _never)
    with pytest.raises(
        StartupTimeout, match=r"Sandbox startup timeout after 0.5 s in stage 'agent' .*launch .* ms.*timeouts\.startup"
    ) as caught:
        await yard.backend.start(yard.spec(timeouts=Timeouts(startup=0.5)))
    assert [stage.name for stage in caught.value.timings] == ["prepare", "cgroup", "launch"]
    assert yard.leftovers() == NOTHING


async def test_a_start_given_up_in_the_middle_leaves_nothing(yard: Yard) -> None:
    before = open_descriptors()
    for turns in range(6):
        start = asyncio.ensure_future(yard.backend.start(yard.spec()))
        for _ in range(turns):
            await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
    assert yard.leftovers() == NOTHING
    assert open_descriptors() == before


@pytest.mark.soak
async def test_a_thousand_lives_leave_nothing(yard: Yard) -> None:
    before = open_descriptors()
    for _ in range(250):
        machines = await asyncio.gather(*(yard.backend.start(yard.spec()) for _ in range(4)))
        assert (await shell(machines[0], "echo alive")) == "alive\n"
        await asyncio.gather(*(machine.kill() for machine in machines))
    assert yard.leftovers() == NOTHING
    assert open_descriptors() == before


async def test_a_nul_character_is_refused(yard: Yard) -> None:
    with pytest.raises(ValueError, match="NUL"):
        await yard.backend.start(yard.spec(env={"X": "a\0b"}))
    assert yard.leftovers() == NOTHING


async def test_a_path_too_long_for_a_socket(yard: Yard, tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100)
    directory.mkdir()
    machine = await yard.backend.start(replace(yard.spec(), directory=directory))
    assert len(str(directory / endpoint.SOCKET_NAME)) > 108
    assert "alive" in await shell(machine, "echo alive")
    assert "alive" in await shell(machine, "echo alive")  # the second connection


def test_open_names_the_backend() -> None:
    assert NamespaceBackend.name == "namespace"
