"""The proof: which backends can be used, and one environment that is started, asked to run a command, and removed."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING

from agentenv.cli.health.check import Finding
from agentenv.errors import AgentEnvError, Stage
from agentenv.isolation.contract import Probe
from agentenv.monitoring.stages import total_seconds
from agentenv.paths import state_home
from agentenv.units import format_duration

if TYPE_CHECKING:
    from agentenv.sandbox import CommandResult


def backends() -> list[Finding]:
    """One finding for each registered backend, from its own probe."""
    from agentenv.isolation import probe_all

    return [_backend(probe) for probe in probe_all()]


def _backend(probe: Probe) -> Finding:
    name = f"backend {probe.backend}"
    capabilities = asdict(probe.capabilities)
    lost = tuple(capabilities.pop("lost"))
    data = {"usable": probe.usable, "version": probe.version, "capabilities": capabilities, "lost": list(lost)}
    if not probe.usable:
        return Finding(name, "missing", probe.reason or "cannot be used", remedy=probe.remedy, data=data)
    can = ", ".join(capability.replace("_", " ") for capability, there in capabilities.items() if there)
    version = f" {probe.version}" if probe.version else ""
    return Finding(name, "limited" if lost else "ok", f"usable{version}: {can}", details=lost, data=data)


def environment() -> Finding:
    """Starts a sandbox with the strongest backend, runs a command in it, removes it, and looks whether anything of it stayed."""
    word = secrets.token_hex(8)
    try:
        # With the loop its node is closed, which waits for what is still being removed.
        identifier, stages, result = asyncio.run(_try(f"echo {word}"))
    except AgentEnvError as error:
        return Finding("environment", "failed", error.message, remedy=error.remedy or "Look at the lines above for what is missing.")
    data: dict[str, object] = {"sandbox": identifier, "stages": {stage.name: stage.seconds for stage in stages}}
    if result.exit_code != 0 or result.stdout.strip() != word:
        summary = f"a command in it ended with {result.exit_code} and printed {result.stdout!r} {result.stderr!r}"
        return Finding("environment", "failed", summary, remedy="Run `agentenv -vv doctor` and report what it says.", data=data)
    if left := _remains(identifier):
        summary = f"after its end there was still {', '.join(left)}"
        return Finding("environment", "failed", summary, remedy="Run the command again: a start cleans up.", data=data)
    took = format_duration(total_seconds(stages))
    return Finding("environment", "ok", f"started in {took}, ran a command, was removed", data=data)


async def _try(command: str) -> tuple[str, tuple[Stage, ...], CommandResult]:
    """The id of a sandbox that was started and ended, the stages of its start, and what came of `command` in it."""
    from agentenv.sandbox import AsyncSandbox

    async with await AsyncSandbox.create(timeout=120) as sandbox:
        return sandbox.id, tuple(sandbox.timings), await sandbox.commands.run(command)


def _remains(sandbox: str) -> list[str]:
    """Directories and cgroups that a sandbox has left."""
    from agentenv.isolation.namespace.cgroups import CgroupTree

    directories = [str(path) for path in (state_home() / "owners").glob(f"*/{sandbox}*")]
    return directories + [f"cgroup {name}" for name in CgroupTree.discover().names() if f"-{sandbox}" in name]
