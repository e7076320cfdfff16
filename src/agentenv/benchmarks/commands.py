"""How long one command takes in a sandbox that is already there: by itself, and in a persistent shell."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

from agentenv.benchmarks.row import ISOLATION, Row, Scale, Target, in_turn, latency_row, timed
from agentenv.sandbox import Sandbox


def run_exec(scale: Scale) -> Iterator[Row]:
    """`commands.run("true")` beside a plain subprocess of the host doing the same."""
    with Sandbox.create(isolation=ISOLATION) as sandbox:
        mine, theirs = in_turn(
            scale.count(1000, 50),
            lambda: timed(lambda: sandbox.commands.run("true")),
            lambda: timed(lambda: subprocess.run(["sh", "-c", "true"], capture_output=True, check=True)),
        )
    yield latency_row("exec", mine, theirs, reference="subprocess.run(['sh', '-c', 'true'])", target=Target("ratio", "<=", 2.0))


def run_shell(scale: Scale) -> Iterator[Row]:
    """One command in `Sandbox.shell()` beside a bare bash on a pipe that echoes one line, the least that any persistent shell must do."""
    with (
        Sandbox.create(isolation=ISOLATION) as sandbox,
        sandbox.shell() as shell,
        subprocess.Popen(["bash", "--noprofile", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as bash,
    ):
        stdin, stdout = bash.stdin, bash.stdout
        assert stdin is not None
        assert stdout is not None

        def echo() -> None:
            stdin.write(b"true; echo $?\n")
            stdout.readline()

        mine, theirs = in_turn(scale.count(1000, 50), lambda: timed(lambda: shell.run("true")), lambda: timed(echo))
        stdin.close()
    yield latency_row("shell", mine, theirs, reference="bare bash on a pipe", target=Target("value", "<=", 2.0))
