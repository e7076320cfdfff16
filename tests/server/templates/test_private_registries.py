"""Images that only some may read, built on with a client's own credentials: Debian's registry with passwords, the unmodified E2B SDK."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from e2b import BuildException, Sandbox, Template
from tests.images.oci.scripted import Script, scripted_registry
from tests.machines import small_root
from tests.oci import MadeImage, layer_of_tree, make_image, running_registry
from tests.server.conftest import RunningServer

from agentenv.images import ImageStore
from agentenv.server.templates.wire import RegistryLogin

USER, PASSWORD = "reader", "open sesame"
ACCOUNT = f"{USER}:$2b$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n"


@pytest.fixture(autouse=True)
def client(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK asks the server, which has no login of its own anywhere."""
    for name, value in {"E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url, "E2B_API_KEY": server.key}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "nobody"))


@pytest.fixture
def made(tmp_path: Path) -> MadeImage:
    """An image that can run, with a file."""
    root = small_root(tmp_path / "root")
    (root / "secret").write_text("for some")
    return make_image([layer_of_tree(root)])


@pytest.fixture
def image(made: MadeImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """That image in a registry that wants the password."""
    with running_registry(tmp_path / "registry", ACCOUNT) as closed:
        monkeypatch.setenv("AGENTENV_INSECURE_REGISTRIES", closed.name)
        yield replace(closed, user=USER, password=PASSWORD).push("private", "1", made)


def test_a_clients_password_opens_its_own_build_and_no_other(server: RunningServer, image: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(BuildException, match="does not let us read"):
        Template.build(Template().from_image(image, username=USER, password="wrong"), "private-wrong")
    said: list[str] = []
    Template.build(
        Template().from_image(image, username=USER, password=PASSWORD), "private", on_build_logs=lambda line: said.append(line.message)
    )
    with Sandbox.create("private", timeout=60) as sandbox:
        assert sandbox.files.read("/secret") == "for some"
    with pytest.raises(BuildException, match="does not let us read"):
        Template.build(Template().from_image(image), "private-nobody")
    home = server.fleet.node.home
    assert image not in [name for kept in ImageStore(home).list() for name in kept.names]
    written = {path: path.read_bytes() for path in (home / "server").rglob("*") if path.is_file()}
    assert written
    assert [path for path, content in written.items() if PASSWORD.encode() in content] == []
    assert not any(PASSWORD in text for text in [*said, caplog.text])


@pytest.mark.parametrize(
    ("login", "status", "told"),
    [
        ({"type": "aws", "awsAccessKeyId": "a", "awsSecretAccessKey": "b", "awsRegion": "c"}, 501, "get-login-password"),
        ({"type": "gcp"}, 400, "serviceAccountJson"),
        ({"type": "registry", "username": "x"}, 400, "username and password"),
        ({"type": "registry", "username": "x", "password": 12345678}, 400, "password"),
    ],
)
def test_what_is_no_login_is_refused_without_being_repeated(
    server: RunningServer, login: dict[str, object], status: int, told: str
) -> None:
    with server.client() as client:
        made = client.post("/v3/templates", json={"name": "private-bad"}).json()
        place = f"/v2/templates/{made['templateID']}/builds/{made['buildID']}"
        answer = client.post(place, json={"fromImage": "registry.example/x", "fromImageRegistry": login})
    assert answer.status_code == status
    assert told in answer.text
    assert "12345678" not in answer.text


def test_a_key_of_google_is_a_password_of_its_own_user(made: MadeImage, monkeypatch: pytest.MonkeyPatch) -> None:
    key = {"private_key": "k"}
    script = Script(made, token="t0ken", login=("_json_key", json.dumps(key)))
    with scripted_registry(script) as name:
        monkeypatch.setenv("AGENTENV_INSECURE_REGISTRIES", name)
        Template.build(Template().from_gcp_registry(f"{name}/x:1", key), "private-google")
    login = RegistryLogin(type="gcp", serviceAccountJson=json.dumps(key))
    assert "private_key" not in f"{login!r} {login.credentials()!r}"
