"""What `docker login` and `podman login` write down is found, and so is what a program keeps."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from agentenv.images.oci.credentials import Credentials, find_credentials


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "config.json"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_nobody_is_logged_in(config: Path) -> None:
    assert find_credentials("ghcr.io") is None
    config.write_text("no json")
    assert find_credentials("ghcr.io") is None


@pytest.mark.parametrize("key", ["ghcr.io", "https://ghcr.io", "https://ghcr.io/v2/"])
def test_a_password_is_read(config: Path, key: str) -> None:
    config.write_text(json.dumps({"auths": {key: {"auth": encoded("me:with:colons")}}}))
    assert find_credentials("ghcr.io") == Credentials("me", "with:colons")
    assert find_credentials("other.io") is None


def test_docker_hub_has_an_old_name(config: Path) -> None:
    config.write_text(json.dumps({"auths": {"https://index.docker.io/v1/": {"auth": encoded("me:word")}}}))
    assert find_credentials("docker.io") == Credentials("me", "word")


def test_podmans_file_counts_too_and_the_named_one_first(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run/containers").mkdir(parents=True)
    (tmp_path / "run/containers/auth.json").write_text(json.dumps({"auths": {"quay.io": {"auth": encoded("pod:man")}}}))
    assert find_credentials("quay.io") == Credentials("pod", "man")
    (tmp_path / "named.json").write_text(json.dumps({"auths": {"quay.io": {"auth": encoded("first:one")}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "named.json"))
    assert find_credentials("quay.io") == Credentials("first", "one")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"Username": "me", "Secret": "word"}', Credentials("me", "word")),
        ('{"Username": "<token>", "Secret": "long"}', Credentials(identity="long")),
        ("credentials not found", None),
    ],
)
@pytest.mark.parametrize("how", [{"credsStore": "test"}, {"credHelpers": {"ghcr.io": "test"}}])
def test_a_helper_is_asked(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, expected: Credentials | None, how: dict[str, object]
) -> None:
    helper = tmp_path / "bin/docker-credential-test"
    helper.parent.mkdir()
    helper.write_text(f"#!/bin/sh\nread -r asked\n[ \"$1 $asked\" = 'get ghcr.io' ] && echo '{answer}'\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    config.write_text(json.dumps(how))
    assert find_credentials("ghcr.io") == expected


def test_a_helper_that_is_missing_counts_as_nothing(config: Path) -> None:
    config.write_text(json.dumps({"credsStore": "never-installed"}))
    assert find_credentials("ghcr.io") is None
