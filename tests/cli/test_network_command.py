"""Rules of a network by the command line, on a sandbox that outlives the command."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect a sandbox to the network"),
    pytest.mark.skipif(not shutil.which("nft") or not shutil.which("ip"), reason="needs ip and nft"),
]
Agentenv = Callable[..., CompletedProcess[str]]
CONNECT = "exec 3<>/dev/tcp/{}"


def test_rules_are_given_changed_and_their_effect_is_shown(agentenv: Agentenv) -> None:
    made = agentenv("create", "--isolation", "namespace", "--network", "--no-internet", "--allow", "192.0.2.0/24:9", "--timeout", "2m")
    assert made.returncode == 0, made.stderr
    sandbox = made.stdout.strip()
    try:
        assert agentenv("exec", sandbox, "--", "bash", "-c", CONNECT.format("203.0.113.1/80")).returncode == 1
        assert agentenv("network", "set", sandbox, "--deny", "203.0.113.0/24", "--up", "1MB/s").returncode == 0
        assert agentenv("exec", sandbox, "--", "bash", "-c", CONNECT.format("203.0.113.2/80")).returncode == 1
        log = json.loads(agentenv("network", "log", sandbox, "--json").stdout)
        told = {(one["destination"], one["port"], one["rule"]) for one in log}
        assert told == {("203.0.113.1", 80, "allow_internet_access: false"), ("203.0.113.2", 80, "deny 203.0.113.0/24")}
        assert "203.0.113.2:80" in agentenv("network", "log", sandbox).stdout
        wrong = agentenv("network", "set", sandbox, "--allow", "https://example.com")
        assert wrong.returncode == 1
        assert "network.allow: 'https://example.com' is a URL; write its host alone" in wrong.stderr
    finally:
        assert agentenv("kill", sandbox).returncode == 0


def test_rules_need_a_network(agentenv: Agentenv) -> None:
    refused = agentenv("create", "--allow", "example.com")
    assert refused.returncode == 1
    assert "network that is not enabled" in refused.stderr
