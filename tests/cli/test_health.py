"""What `agentenv doctor` looks at: each check on the real machine, and on stand-ins for what this machine does not have."""

from __future__ import annotations

import json
import os
import socket
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from agentenv.cli.health import kernel, machine, programs, python_environment
from agentenv.cli.health.check import Finding
from agentenv.cli.health.survey import attempt, survey, works
from agentenv.errors import AgentEnvError

Agentenv = Callable[..., CompletedProcess[str]]
REPOSITORY = Path(__file__).parents[2]


def complete(finding: Finding) -> bool:
    """A finding that is not well says how to mend it, or what works without it, or what exactly is lost."""
    return finding.state == "ok" or bool(finding.remedy or finding.without or finding.details)


def test_every_check_finds_something_on_this_machine() -> None:
    findings = list(survey(start_environment=False))
    names = [finding.name for finding in findings]
    assert names[:12] == [
        "python",
        "native programs",
        "hardware",
        "kernel",
        "user namespaces",
        "cgroups",
        "network",
        "disk",
        "limits",
        "kvm",
        "firecracker",
        "docker",
    ]
    assert "backend namespace" in names
    assert all(complete(finding) for finding in findings), [finding for finding in findings if not complete(finding)]
    assert json.loads(json.dumps([finding.to_dict() for finding in findings]))


def test_the_list_of_dependencies_is_the_projects() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert [f"{name}>={least}" for name, (_, least) in python_environment.NEEDED.items()] == project["dependencies"]
    assert [f"{name}>={least}" for name, (_, least) in python_environment.FOR_TRAINING.items()] == project["optional-dependencies"]["train"]


def test_the_python_environment_of_the_tests_is_fine() -> None:
    assert python_environment.python_environment().state in {"ok", "limited"}


def test_a_missing_and_an_old_dependency_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {"no-such-thing": ("no_such_thing", "1.0"), "pydantic": ("pydantic", "99.0")}
    monkeypatch.setattr(python_environment, "NEEDED", needed)
    finding = python_environment.python_environment()
    assert finding.state == "failed"
    assert "no-such-thing is not installed" in finding.summary
    assert "is older than 99.0" in finding.summary
    assert "pip install" in (finding.remedy or "")


def test_training_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_environment, "FOR_TRAINING", {"no-such-thing": ("no_such_thing", "1.0")})
    finding = python_environment.python_environment()
    assert (finding.state, finding.details) == ("limited", ("no-such-thing is not installed",))
    assert "agentenv[train]" in (finding.remedy or "")


def test_user_namespaces_are_tried_for_real() -> None:
    finding = kernel.user_namespaces()
    assert finding.data["works"] is (finding.state == "ok")


def test_firecracker_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "firecracker"
    program.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'Firecracker v1.12.1'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    finding = programs.firecracker(tmp_path / "home")
    assert (finding.state, finding.data["version"], finding.data["path"]) == ("ok", "1.12.1", str(program))


def test_firecracker_among_the_artefacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert programs.firecracker(tmp_path / "home").state == "missing"
    program = tmp_path / "home" / "artefacts" / "release" / "firecracker-v1.9.0"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'Firecracker v1.9.0'\n")
    program.chmod(0o755)
    assert programs.firecracker(tmp_path / "home").data["version"] == "1.9.0"
    program.write_text("#!/bin/sh\nexit 3\n")
    finding = programs.firecracker(tmp_path / "home")
    assert (finding.state, "exit code 3" in finding.summary) == ("failed", True)
    program.write_bytes(b"\x7fELF not really")
    assert "does not run" in programs.firecracker(tmp_path / "home").summary


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """A unix socket at DOCKER_HOST that gives one client the answer it is told."""
    address = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{address}")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen()
    threads: list[threading.Thread] = []

    def answer(reply: bytes) -> None:
        def serve() -> None:
            client, _ = listener.accept()
            with client:
                assert client.recv(4096).startswith(b"GET /version ")
                client.sendall(reply)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()

    yield answer
    for thread in threads:
        thread.join()
    listener.close()


def http(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status.encode(), len(body), body)


@pytest.mark.parametrize(
    ("reply", "state", "summary"),
    [
        (http("200 OK", b'{"Version": "27.1.2"}'), "ok", "daemon 27.1.2"),
        (http("500 No", b""), "missing", "it answered 500 No"),
        (http("200 OK", b"{}"), "missing", "its answer names no version"),
        (http("200 OK", b"<html>"), "missing", "does not answer"),
        (b"nonsense\r\n", "missing", "does not answer"),
        (b"", "missing", "does not answer"),
    ],
)
def test_docker_is_asked_over_its_socket(daemon: Callable[[bytes], None], reply: bytes, state: str, summary: str) -> None:
    daemon(reply)
    finding = programs.docker()
    assert finding.state == state
    assert summary in finding.summary
    assert complete(finding)


def test_docker_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "does not answer" in programs.docker().summary
    monkeypatch.setenv("DOCKER_HOST", "carrier-pigeon://x")
    assert "only unix:// and tcp://" in programs.docker().summary


def test_docker_through_its_own_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\necho 26.0\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", "ssh://elsewhere")
    assert programs.docker().data["version"] == "26.0"
    client.write_text("#!/bin/sh\nexit 1\n")
    assert programs.docker().state == "missing"


def test_kvm_for_what_it_is(tmp_path: Path) -> None:
    absent = machine.kvm(tmp_path / "kvm")
    assert (absent.state, absent.data["present"]) == ("missing", False)
    (tmp_path / "kvm").touch()
    impostor = machine.kvm(tmp_path / "kvm")
    assert impostor.state == "missing"
    assert "does not work" in impostor.summary
    assert "namespace backend needs no KVM" in (impostor.without or "")


def test_disk_names_its_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_HOME", "/proc/agentenv")
    assert machine.disk().data["file_system"] == "proc"


def test_what_a_check_runs_into_is_a_finding() -> None:
    def broken() -> Finding:
        raise AgentEnvError("no such luck.", remedy="Try again.")

    finding = attempt("x", broken)
    assert (finding.state, finding.remedy) == ("failed", "Try again.")

    def refused() -> Finding:
        raise PermissionError(13, "Permission denied")

    assert "PermissionError" in attempt("x", refused).summary


@pytest.mark.parametrize(
    ("name", "state", "usable"),
    [("environment", "failed", False), ("python", "failed", False), ("docker", "missing", True), ("user namespaces", "failed", True)],
)
def test_only_what_environments_need_makes_the_verdict(name: str, state: str, usable: bool) -> None:
    assert works([Finding("hardware", "ok", ""), Finding(name, state, "")]) is usable  # type: ignore[arg-type]


def test_the_report_for_people(agentenv: Agentenv) -> None:
    done = agentenv("doctor", "--no-start")
    assert "hardware: " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Environments can")


def test_a_real_environment_is_started_and_removed(agentenv: Agentenv, tmp_path: Path) -> None:
    done = agentenv("doctor", "--json")
    report = json.loads(done.stdout)
    (environment,) = [finding for finding in report["findings"] if finding["name"] == "environment"]
    assert environment["state"] == "ok", environment["summary"]
    assert (report["ok"], done.returncode) == (True, 0)
    assert environment["data"]["stages"]
    assert not list((tmp_path / "home" / "owners").glob(f"*/{environment['data']['sandbox']}"))
