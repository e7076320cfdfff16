"""The program as a whole: quick, lazy, with clear errors and exit codes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from agentenv.cli.lazy import load_command
from agentenv.cli.table import COMMANDS
from agentenv.monitoring import RunWriter

Agentenv = Callable[..., subprocess.CompletedProcess[str]]
HEAVY = ("torch", "gymnasium", "numpy", "pydantic", "yaml", "structlog", "rich", "typer", "msgspec", "prometheus_client")


def modules_after(code: str) -> set[str]:
    """Names of the modules that a fresh Python has loaded after running `code`."""
    script = f"import sys\n{code}\nsys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stderr.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = modules_after("import agentenv; dir(agentenv); agentenv.__version__; agentenv.StartupTimeout")
    assert loaded.isdisjoint(HEAVY)
    assert not [name for name in loaded if name.startswith("agentenv.") and name not in ("agentenv.errors", "agentenv.version")]


def test_help_and_completion_load_no_command() -> None:
    commands = {entry.place.partition(":")[0] for entry in COMMANDS.values()}
    for code in (
        "from agentenv.cli.main import app; app(['--help'], standalone_mode=False)",
        "import os; os.environ |= {'_AGENTENV_COMPLETE': 'complete_bash', 'COMP_WORDS': 'agentenv con', 'COMP_CWORD': '1'}\n"
        "from agentenv.cli.main import app\ntry:\n    app(prog_name='agentenv')\nexcept SystemExit:\n    pass",
    ):
        loaded = modules_after(code)
        assert loaded.isdisjoint(commands)
        assert loaded.isdisjoint({"torch", "gymnasium", "numpy", "yaml", "structlog", "agentenv.config"})


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_is_there(name: str) -> None:
    command = load_command(name)
    assert command.name == name
    assert command.help


def test_help_shows_the_table(agentenv: Agentenv) -> None:
    done = agentenv("--help")
    assert done.returncode == 0
    assert all(f" {name} " in done.stdout for name in COMMANDS)
    assert agentenv("-h").stdout == done.stdout


def test_version(agentenv: Agentenv) -> None:
    import agentenv as package

    assert agentenv("--version").stdout == f"agentenv {package.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["confg"], "Did you mean 'config'?"),
        (["config", "check"], "Missing argument"),
        (["monitor", "--port", "99999", "--prometheus"], "65535"),
        (["monitor", "--port", "5"], "together with --prometheus"),
        (["completion", "tcsh"], "bash"),
        (["--nonsense"], "No such option"),
    ],
)
def test_usage_errors_are_2(agentenv: Agentenv, arguments: list[str], message: str) -> None:
    done = agentenv(*arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert done.stdout == ""


def test_an_error_is_one_clear_line_and_1(agentenv: Agentenv) -> None:
    done = agentenv("runs", "show", "nope")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "Error: there is no run 'nope'. `agentenv runs` lists the runs that there are.\n"


def test_an_error_as_json(agentenv: Agentenv) -> None:
    done = agentenv("runs", "show", "nope", "--json")
    assert done.returncode == 1
    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        "error": {"type": "NotFound", "message": "there is no run 'nope'.", "remedy": "`agentenv runs` lists the runs that there are."}
    }


def test_ctrl_c_is_130_and_leaves_the_training_alone() -> None:
    with RunWriter.create() as writer:
        command = [sys.executable, "-m", "agentenv.cli.main", "monitor", "--json", "--interval", "60"]
        monitor = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert monitor.stdout is not None
        assert json.loads(monitor.stdout.readline())["status"] == "live"
        monitor.send_signal(signal.SIGINT)
        _, errors = monitor.communicate(timeout=60)
        assert monitor.returncode == 130
        assert "Traceback" not in errors
        assert writer.run.status().live


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(agentenv: Agentenv, shell: str) -> None:
    script = agentenv("completion", shell).stdout
    assert "_AGENTENV_COMPLETE" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [("agentenv con", {"config", "conformance"}), ("agentenv config ch", {"check"}), ("agentenv monitor --onc", {"--once"})],
)
def test_completion_knows_commands_and_options(agentenv: Agentenv, words: str, expected: set[str]) -> None:
    asked = {"_AGENTENV_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    assert set(agentenv(env=asked).stdout.split()) == expected
