"""Pulling from a registry: the real one of Debian, and scripted ones for what a real one does seldom."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.images.conftest import directory, file, pack
from tests.images.oci.conftest import base_layer, small_image
from tests.images.oci.scripted import Script, scripted_registry
from tests.oci import RunningRegistry, digest_of, make_image, running_registry

from agentenv.errors import CapabilityError, InfrastructureError, NotFound
from agentenv.images import ImageStore
from agentenv.images.freshness import refresh
from agentenv.images.oci.registry import address_of

ACCOUNT = "reader:$2b$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n"


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No login of whoever runs the tests counts; returns where Docker's would be."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker/config.json"


def test_an_image_is_pulled_by_tag_and_by_digest(registry: RunningRegistry, store: ImageStore) -> None:
    image = small_image(pack(directory("app"), file("app/hello", b"hi")), Env=["A=1", "PATH=/bin"], WorkingDir="/app", User="0")
    reference = registry.push("simple", "1", image)
    root = store.resolve(reference)
    assert root.image == image.image_id
    assert (dict(root.env), root.cwd, root.user) == ({"A": "1", "PATH": "/bin"}, "/app", "0")
    assert [len(list(layer.rglob("hello"))) for layer in root.trees[0].lowers] == [1, 0]
    assert store.resolve(f"{registry.name}/simple@{image.digest}").trees == root.trees
    assert store.resolve(root.image).trees == root.trees
    (kept,) = store.list()
    assert kept.names == (reference, f"{registry.name}/simple@{image.digest}")
    assert kept.in_use


def test_a_name_means_what_was_pulled_until_it_is_pulled_again(registry: RunningRegistry, store: ImageStore) -> None:
    first, second = small_image(pack(file("v", b"1"))), small_image(pack(file("v", b"2")))
    reference = registry.push("moving", "latest", first)
    assert store.resolve(reference).image == first.image_id
    registry.push("moving", "latest", second)
    assert store.resolve(reference).image == first.image_id
    assert store.pull(reference).image == second.image_id
    assert store.resolve(reference).image == second.image_id
    assert len(store.list()) == 2


def test_layers_are_kept_once_for_all_images(registry: RunningRegistry, store: ImageStore, home: Path) -> None:
    shared = base_layer(file("big", os.urandom(100_000)))
    roots = [store.resolve(registry.push("sharing", str(n), make_image([shared, pack(file("n", b"%d" % n))]))) for n in range(3)]
    assert len({root.trees[0].lowers[-1] for root in roots}) == 1
    assert len(list((home / "images/layers").glob("*/root"))) == 4
    assert store.disk_usage() < 2 * 100_000 + 4 * 4096 * 12
    assert list((home / "images/downloads").iterdir()) == []


def test_the_image_for_this_machine_is_chosen(registry: RunningRegistry, store: ImageStore) -> None:
    mine, other = small_image(), small_image(pack(file("other")))
    from agentenv.images.oci.documents import Platform

    here = Platform.of_this_machine().architecture
    reference = registry.push_index("many", "1", {"s390x": other, here: mine})
    assert store.resolve(reference).image == mine.image_id
    lacking = registry.push_index("lacking", "1", {"s390x": other, "arm/v7": other})
    with pytest.raises(CapabilityError, match=r"has no image for linux/.*linux/arm/v7, linux/s390x"):
        store.resolve(lacking)
    foreign = registry.push("foreign", "1", make_image([base_layer()], architecture="s390x"))
    with pytest.raises(CapabilityError, match="is an image for linux/s390x"):
        store.resolve(foreign)


def test_what_is_not_there_is_not_found(registry: RunningRegistry, store: ImageStore) -> None:
    with pytest.raises(NotFound, match="the registry has no"):
        store.resolve(f"{registry.name}/never/was:1")
    with pytest.raises(InfrastructureError, match="could not be asked for"):
        store.resolve("127.0.0.1:9/nobody/listens:1")
    assert store.list() == []


def test_who_may_read_is_asked_of_docker_login(tmp_path: Path, store: ImageStore, nobody: Path) -> None:
    with running_registry(tmp_path / "closed", ACCOUNT) as closed:
        reference = replace(closed, user="reader", password="open sesame").push("secret", "1", small_image())
        with pytest.raises(CapabilityError, match="docker login"):
            store.resolve(reference)
        login = base64.b64encode(b"reader:open sesame").decode()
        nobody.write_text(json.dumps({"auths": {closed.name: {"auth": login}}}))
        assert store.resolve(reference).image == small_image().image_id


@pytest.mark.parametrize("login", [None, ("reader", "word")])
def test_a_token_is_fetched_where_it_is_demanded(store: ImageStore, nobody: Path, login: tuple[str, str] | None) -> None:
    script = Script(small_image(), token="t0ken", login=login)
    with scripted_registry(script) as name:
        if login:
            nobody.write_text(json.dumps({"auths": {name: {"username": login[0], "password": login[1]}}}))
        assert store.resolve(f"{name}/x:1").image == script.image.image_id
    assert sum(path.startswith("/token") for path, _ in script.asked) == 1


def test_a_refresh_token_is_exchanged(store: ImageStore, nobody: Path) -> None:
    script = Script(small_image(), token="t0ken")
    with scripted_registry(script) as name:
        nobody.write_text(json.dumps({"auths": {name: {"identitytoken": "long-lived"}}}))
        assert store.resolve(f"{name}/x:1").image == script.image.image_id
    assert ("/token", "long-lived") in script.asked


def test_a_broken_download_goes_on_where_it_broke_off(store: ImageStore) -> None:
    image = make_image([base_layer(file("big", os.urandom(300_000)))])
    script = Script(image, breaks_after=[100_000, 50_000])
    with scripted_registry(script) as name:
        assert store.resolve(f"{name}/x:1").image == image.image_id
    assert script.ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_what_was_fetched_outlives_a_pull_that_failed(store: ImageStore, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentenv.images.oci.registry.ATTEMPTS", 1)
    image = make_image([base_layer(file("big", os.urandom(300_000)))])
    script = Script(image, breaks_after=[100_000, 0])
    with scripted_registry(script) as name:
        with pytest.raises(InfrastructureError, match=r"broke off after 100000 of .* bytes.*is kept"):
            store.resolve(f"{name}/x:1")
        assert store.list() == []
        assert store.resolve(f"{name}/x:1").image == image.image_id
    assert script.ranges[-1] == "bytes=100000-"


def test_another_content_than_the_digest_says_is_refused(store: ImageStore, home: Path) -> None:
    image = small_image()
    (layer,) = [digest for digest in image.blobs if digest != image.image_id]
    wrong = bytes(reversed(image.blobs[layer]))
    with scripted_registry(Script(image, replaced={layer: wrong})) as name, pytest.raises(CapabilityError, match="is something else"):
        store.resolve(f"{name}/x:1")
    longer = Script(image, replaced={layer: image.blobs[layer] + b"more"})
    with scripted_registry(longer) as name, pytest.raises(CapabilityError, match="more comes"):
        store.resolve(f"{name}/x:1")
    with scripted_registry(Script(image)) as name, pytest.raises(CapabilityError, match="is something else"):
        store.resolve(f"{name}/x@{digest_of(b'another manifest')}")
    assert not list((home / "images").rglob("sh"))


@pytest.mark.parametrize(("status", "kind"), [(403, CapabilityError), (429, InfrastructureError), (500, InfrastructureError)])
def test_a_refusal_says_what_can_be_done(store: ImageStore, status: int, kind: type[Exception]) -> None:
    with scripted_registry(Script(small_image(), status=status)) as name, pytest.raises(kind) as caught:
        store.resolve(f"{name}/x:1")
    assert getattr(caught.value, "remedy", None)


def test_a_configuration_that_names_other_layers_is_refused(store: ImageStore) -> None:
    image = small_image()
    document = json.loads(image.manifest)
    document["layers"] *= 2
    image.manifest = json.dumps(document).encode()
    with scripted_registry(Script(image)) as name, pytest.raises(CapabilityError, match="2 layers, its configuration 1"):
        store.resolve(f"{name}/x:1")


def test_progress_names_each_layer(registry: RunningRegistry, store: ImageStore) -> None:
    told: list[tuple[str, int, int]] = []
    image = small_image(pack(file("second", os.urandom(1000))))
    store.resolve(registry.push("told", "1", image), lambda what, done, total: told.append((what, done, total)))
    finished = {what for what, done, total in told if what.endswith("done") and done == total}
    assert len(finished) == 2
    assert any(what.endswith("fetching") for what, *_ in told)


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTENV_REGISTRY_MIRRORS", raising=False)
    monkeypatch.setenv("AGENTENV_INSECURE_REGISTRIES", "inside.lan:5000")
    assert address_of("docker.io") == "https://registry-1.docker.io"
    assert address_of("localhost:5000") == "http://localhost:5000"
    assert address_of("[::1]:5000") == "http://[::1]:5000"
    assert address_of("inside.lan:5000") == "http://inside.lan:5000"
    assert address_of("ghcr.io") == "https://ghcr.io"
    monkeypatch.setenv("AGENTENV_REGISTRY_MIRRORS", "docker.io=http://127.0.0.1:5000/, ghcr.io=mirror.lan")
    assert address_of("docker.io") == "http://127.0.0.1:5000"
    assert address_of("ghcr.io") == "https://mirror.lan"


def test_what_is_too_old_is_pulled_again(registry: RunningRegistry, store: ImageStore) -> None:
    first, second = small_image(pack(file("patch", b"1"))), small_image(pack(file("patch", b"2")))
    moving, still = registry.push("fresh/moving", "1", first), registry.push("fresh/still", "1", first)
    gone = registry.push("fresh/gone", "1", small_image(pack(file("gone"))))
    for reference in (moving, still, gone):
        store.resolve(reference)
    registry.push("fresh/moving", "1", second)
    registry.forget("fresh/gone", "1")
    assert refresh(store, older_than=3600) == []
    done = {one.image.name: one for one in refresh(store, older_than=0)}
    assert {name: one.changed for name, one in done.items()} == {moving: True, still: False, gone: False}
    assert isinstance(done[gone].error, NotFound)
    assert store.resolve(moving).image == second.image_id
