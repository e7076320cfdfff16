"""Sandboxes of an unprivileged user in a container, whose covered /proc keeps the kernel from mounting a fresh one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.isolation.unprivileged import place, python_for_nobody, run_as_nobody

__all__ = ["place"]  # a fixture

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can cover a part of /proc")

SCRIPT = """
import json, os, sys
os.environ["AGENTENV_HOME"] = sys.argv[1] + "/state"
from agentenv.envs import SandboxVectorEnv
from agentenv.errors import CommandTimeout
from agentenv.isolation import probe_all
from agentenv import Sandbox
from agentenv.isolation.contract import Resources

(probe,) = (probe for probe in probe_all() if probe.backend == "namespace")
if not probe.usable:
    print(json.dumps({"unusable": probe.reason}))
    sys.exit()
seen = {"lost": [sentence for sentence in probe.capabilities.lost if sentence.startswith("/proc:")]}
with Sandbox.create(resources=Resources(memory=64 << 20, cpu=1)) as sandbox:
    def run(line):
        return sandbox.commands.run(line, check=True).stdout
    seen["proc"] = sorted(run("ls /proc").split())
    seen["memory"] = run("grep MemTotal /proc/meminfo | tr -dc 0-9")
    seen["processors"] = run("grep -c ^processor /proc/cpuinfo; nproc").split()
    seen["release"] = run("cat /proc/sys/kernel/osrelease").strip() == os.uname().release
    seen["written"] = sandbox.commands.run("echo x > /proc/version").exit_code
    seen["python"] = run("python3 -c 'import subprocess; print(subprocess.check_output([\\"echo\\", \\"hi\\"]))'").strip()
    with sandbox.shell() as shell:
        shell.run("cd /usr; x=5; set -u")
        last = shell.run("echo $x $PWD $(cat); return 3")
        seen["shell"] = [last.stdout, last.stderr, last.exit_code]
        seen["syntax"] = shell.run("if; then").exit_code
    try:
        sandbox.commands.run("set -m; sleep 1000 & wait", timeout=0.2)
    except CommandTimeout:
        # The job in a group of its own was ended as well: nobody is left to be signalled.
        seen["alone"] = sandbox.commands.run("kill -0 -1 2>/dev/null").exit_code
    sandbox.pause()
    sandbox.resume()
    sandbox.files.write("/root/kept", "kept")
    (child,) = sandbox.fork(1)
    seen["forked"] = child.files.read("/root/kept")
    child.kill()
envs = SandboxVectorEnv("basic_rl_env", num_envs=2)
envs.reset(seed=1)
seen["rewards"] = [abs(float(reward)) for reward in envs.step([1, 2])[1]]
envs.close()
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(place: Path) -> dict[str, object]:
    python = python_for_nobody(place)
    if python is None:
        pytest.skip("an unprivileged user cannot read this checkout or an interpreter")
    done = run_as_nobody(python, ["-c", SCRIPT, str(place)], place, covered=True)
    assert done.returncode == 0, done.stderr
    answers: dict[str, object] = json.loads(done.stdout)
    if "unusable" in answers:
        pytest.skip(f"no user namespaces here: {answers['unusable']}")
    return answers


def test_the_probe_says_what_is_lost_and_why(seen: dict[str, object]) -> None:
    (sentence,) = seen["lost"]  # type: ignore[misc]
    assert "ps, /dev/fd" in sentence
    assert "systempaths=unconfined" in sentence


def test_there_are_files_about_the_machine_and_no_processes(seen: dict[str, object]) -> None:
    assert set(seen["proc"]) >= {"meminfo", "cpuinfo", "uptime", "version", "sys"}  # type: ignore[call-overload]
    assert not any(name.isdigit() or name == "self" for name in seen["proc"])  # type: ignore[attr-defined]
    assert (seen["memory"], seen["processors"]) == (str(64 * 1024), ["1", "1"])
    assert seen["release"]
    assert seen["written"] != 0


def test_programs_and_shells_work_without_it(seen: dict[str, object]) -> None:
    assert seen["python"] == "b'hi\\n'"
    assert seen["shell"] == ["5 /usr\n", "", 3]
    assert seen["syntax"] == 2


def test_what_a_command_left_is_ended_with_it(seen: dict[str, object]) -> None:
    assert seen["alone"] == 1


def test_forks_and_environments_work(seen: dict[str, object]) -> None:
    assert seen["forked"] == "kept"
    assert seen["rewards"] == [1.0, 1.0]
