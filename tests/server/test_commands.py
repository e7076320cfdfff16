"""`agentenv login`, `keys`, `tenants` and `gc` against a real server."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conditions import needs_namespaces
from tests.server.conftest import RunningServer
from typer.testing import CliRunner

from agentenv.cli.main import app

pytestmark = needs_namespaces

Agentenv = Callable[..., Any]


@pytest.fixture
def agentenv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Agentenv:
    """Runs the program with a configuration directory of the test's own; returns what it printed, and checks its exit code."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("AGENTENV_SERVER", "AGENTENV_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str, code: int = 0) -> Any:
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == code, done.output
        return json.loads(done.stdout) if "--json" in words else done.output

    return run


def test_keys_and_tenants_are_made_limited_and_removed(server: RunningServer, agentenv: Agentenv, tmp_path: Path) -> None:
    told = agentenv("login", server.url, "--api-key", server.key)
    file = tmp_path / "config" / "agentenv" / "login.json"
    assert str(file) in told
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "cpu 2.5" in agentenv("tenants", "create", "crew", "--cpu", "2.5", "--memory", "1GiB")
    limited = agentenv("tenants", "limit", "crew", "--cpu", "none", "--sandboxes", "3", "--json")
    assert limited["quotas"] == {"sandboxes": 3, "cpu": None, "memory": 1 << 30, "storage": None, "templates": None}
    secret = agentenv("keys", "create", "bob", "--tenant", "crew", "--role", "read-only").strip()
    (key,) = agentenv("keys", "ls", "--tenant", "crew", "--json")
    assert (key["name"], key["role"], key["mask"]["maskedValueSuffix"]) == ("bob", "read-only", secret[-4:])
    assert "bob" in agentenv("keys", "ls", "--tenant", "crew")
    refused = agentenv("keys", "create", "more", "--server", server.url, "--api-key", secret, code=1)
    assert "read-only" in refused
    assert agentenv("keys", "rm", key["id"], "--tenant", "crew").strip() == f"{key['id']} ended"
    assert "not known here" in agentenv("keys", "ls", "--server", server.url, "--api-key", secret, code=1)
    assert "crew" in agentenv("tenants", "ls")
    agentenv("tenants", "rm", "crew")
    assert "crew" not in [tenant["name"] for tenant in agentenv("tenants", "ls", "--json")]
    assert "Forgotten" in agentenv("logout")
    assert "agentenv login" in agentenv("keys", "ls", code=1)


def test_what_nothing_needs_is_removed_on_the_server(server: RunningServer, agentenv: Agentenv) -> None:
    report = agentenv("gc", "--server", server.url, "--api-key", server.key, "--json")
    assert set(report) == {"snapshots", "steps", "layers", "images", "owners", "bytes"}
    assert "removed" in agentenv("gc", "--server", server.url, "--api-key", server.key)


def test_a_wrong_key_is_not_noted(server: RunningServer, agentenv: Agentenv, tmp_path: Path) -> None:
    assert "not known here" in agentenv("login", server.url, "--api-key", "wrong", code=1)
    assert not (tmp_path / "config").exists()


def test_a_key_is_sent_to_no_other_server_than_its_own(server: RunningServer, agentenv: Agentenv) -> None:
    agentenv("login", server.url, "--api-key", server.key)
    assert "there is no API key for http://127.0.0.1:9" in agentenv("keys", "ls", "--server", "http://127.0.0.1:9", code=1)


def test_a_server_that_does_not_answer_is_named(agentenv: Agentenv) -> None:
    assert "does not answer" in agentenv("keys", "ls", "--server", "http://127.0.0.1:9", "--api-key", "x", code=1)
