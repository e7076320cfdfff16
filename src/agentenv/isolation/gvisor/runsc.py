"""The program `runsc`: where it is, which version, and how it is called."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import BackendUnavailable, InfrastructureError
from agentenv.isolation.gvisor.ordinary import AS_ROOT
from agentenv.paths import state_home

VARIABLE = "AGENTENV_RUNSC"
OLDEST = 20240101
"""Debian 12's own runsc is of 2022: a checkpoint hangs, and it knows neither `-compression=none` nor the platform systrap."""

HOW_TO_GET = (
    "Run `agentenv setup --isolation gvisor`, or install runsc (Debian: `apt-get install -t bookworm-backports runsc`),"
    f" or name one in {VARIABLE}."
)
_DATE = re.compile(r"\b(20\d{6})(\.\d+)?\b")
_SECONDS = 60.0
_TOLD = 400


@dataclass(frozen=True, slots=True)
class Runsc:
    """A runsc that is new enough. `version` is its date."""

    path: Path
    version: str

    @classmethod
    def find(cls) -> Runsc:
        """The one that AGENTENV_RUNSC names, else the one on PATH, else that of `agentenv setup`.

        Raises `BackendUnavailable` where there is none, it does not run, or it is too old.
        """
        path = _locate()
        try:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise BackendUnavailable(f"{path} does not run: {error}.", remedy=HOW_TO_GET) from error
        date = _DATE.search(done.stdout)
        if date is None:
            raise BackendUnavailable(f"{path} does not tell its version; it printed {done.stdout.strip()[:100]!r}.", remedy=HOW_TO_GET)
        if int(date[1]) < OLDEST:
            raise BackendUnavailable(
                f"{path} is of {date[1]}, and versions before 2024 cannot be used: their checkpoints hang.", remedy=HOW_TO_GET
            )
        return cls(path, f"runsc {date[0]}")

    def command(self, state: Path, *words: str, network: str = "none", log: Path | None = None) -> list[str]:
        """The arguments of one call; `state` is where runsc keeps what it knows of the machine."""
        options = [
            f"--root={state}",
            "--platform=systrap",
            f"--network={network}",
            "--overlay2=none",  # the overlay is ours, on the host's side, so that snapshots of files need not ask gVisor
            "--file-access=exclusive",
            "--file-access-mounts=exclusive",
            "--ignore-cgroups",
            "--cgroupfs",
            *((f"--log={log}",) if log else ()),
        ]
        return [str(self.path), *options, *words]

    def call(self, state: Path, *words: str, what: str) -> None:
        """Runs a command on a live machine. Raises `InfrastructureError` with what runsc said; `what` names the attempt."""
        try:
            done = subprocess.run(
                [*(() if os.geteuid() == 0 else AS_ROOT), *self.command(state, *words)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InfrastructureError(f"{what} has not ended after {_SECONDS:g} s.") from error
        if done.returncode != 0:
            raise InfrastructureError(f"{what} failed: {explain(done.stderr or done.stdout)}")


def _locate() -> Path:
    if named := os.environ.get(VARIABLE):
        return Path(named)
    if found := shutil.which("runsc"):
        return Path(found)
    prepared = state_home() / "artefacts/runsc/runsc"
    if prepared.is_file():
        return prepared
    raise BackendUnavailable("there is no runsc (gVisor's program) on this machine.", remedy=HOW_TO_GET)


def explain(output: str) -> str:
    """The first line that a failed runsc printed, without the stack of its goroutines."""
    lines = [line.strip() for line in output.strip().splitlines() if line.strip()]
    return lines[0][:_TOLD].rstrip(":") + "." if lines else "it printed nothing."
