"""All checks in the order of the report."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

from agentenv.cli.health import kernel, machine, programs, python_environment, sandboxes
from agentenv.cli.health.check import Finding
from agentenv.errors import AgentEnvError

_UNABLE = (AgentEnvError, OSError, ImportError, subprocess.SubprocessError)
"""What a check may run into on a machine unlike the ones it was written for."""


def survey(*, start_environment: bool = True) -> Iterator[Finding]:
    """Each finding as soon as it is known; the real start of an environment comes last."""
    yield attempt("python", python_environment.python_environment)
    yield attempt("native programs", programs.native_programs)
    yield attempt("hardware", machine.hardware)
    yield attempt("kernel", kernel.kernel)
    yield attempt("user namespaces", kernel.user_namespaces)
    yield attempt("cgroups", kernel.cgroups)
    yield attempt("network", machine.network)
    yield attempt("disk", machine.disk)
    yield attempt("limits", machine.limits)
    yield attempt("kvm", machine.kvm)
    yield attempt("firecracker", programs.firecracker)
    yield attempt("docker", programs.docker)
    try:
        yield from sandboxes.backends()
    except _UNABLE as error:
        yield _unable("backends", error)
    if start_environment:
        yield attempt("environment", sandboxes.environment)


def attempt(name: str, check: Callable[[], Finding]) -> Finding:
    """What `check` finds; where the machine does not even let it look, that is the finding."""
    try:
        return check()
    except _UNABLE as error:
        return _unable(name, error)


def _unable(name: str, error: Exception) -> Finding:
    remedy = error.remedy if isinstance(error, AgentEnvError) else None
    message = error.message if isinstance(error, AgentEnvError) else f"{type(error).__name__}: {error}"
    return Finding(name, "failed", f"could not be looked at: {message}", remedy=remedy)


def works(findings: list[Finding]) -> bool:
    """Whether environments can be used here: nothing that they need has failed, and the one that was tried started, ran and went."""
    return not any(finding.state == "failed" and finding.name in {"python", "native programs", "environment"} for finding in findings)
