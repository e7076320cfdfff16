"""Which benchmarks there are; a module is imported only when its benchmark runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

from agentenv.benchmarks.row import Row, Scale
from agentenv.errors import NotFound

BENCHMARKS = {
    "start": "agentenv.benchmarks.start:run",
    "exec": "agentenv.benchmarks.commands:run_exec",
    "shell": "agentenv.benchmarks.commands:run_shell",
    "fork": "agentenv.benchmarks.fork:run",
    "step": "agentenv.benchmarks.step:run",
    "density": "agentenv.benchmarks.density:run",
    "files": "agentenv.benchmarks.files:run",
    "train": "agentenv.benchmarks.train:run",
    "api-start": "agentenv.benchmarks.api:run_start",
    "api-exec": "agentenv.benchmarks.api:run_exec",
    "api-files": "agentenv.benchmarks.api_files:run",
    "api-mass-create": "agentenv.benchmarks.api:run_many",
    "api-hold": "agentenv.benchmarks.api:run_hold",
    "dashboard": "agentenv.benchmarks.dashboard:run",
    "firecracker-restore": "agentenv.benchmarks.firecracker:run_restore",
    "firecracker-fork": "agentenv.benchmarks.firecracker:run_fork",
    "firecracker-pause": "agentenv.benchmarks.firecracker:run_pause",
    "gvisor-start": "agentenv.benchmarks.gvisor:run_start",
    "gvisor-fork": "agentenv.benchmarks.gvisor:run_fork",
    "gvisor-pause": "agentenv.benchmarks.gvisor:run_pause",
    "qemu-fork": "agentenv.benchmarks.qemu:run_fork",
    "qemu-checkpoint": "agentenv.benchmarks.qemu:run_checkpoint",
    "qemu-pause": "agentenv.benchmarks.qemu:run_pause",
    "matrix": "agentenv.benchmarks.matrix:run",
}
ALL = tuple(name for name in BENCHMARKS if name != "matrix")
"""What "all" runs: the matrix measures the same things again, beside each other on every backend, and is asked for by its name."""


def load(name: str) -> Callable[[Scale], Iterator[Row]]:
    """The benchmark called `name`; raises `NotFound` with the names there are."""
    if name not in BENCHMARKS:
        raise NotFound(f"there is no benchmark {name!r}.", remedy=f"There are: {', '.join(BENCHMARKS)}, and all.")
    module, function = BENCHMARKS[name].split(":")
    benchmark: Callable[[Scale], Iterator[Row]] = getattr(import_module(module), function)
    return benchmark
