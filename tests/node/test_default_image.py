"""What a sandbox starts from when no image is named depends on the backend that it comes to."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from tests.node.doubles import OpenBackend
from tests.node.memory_doubles import RememberingBackend, machine

from agentenv.errors import CapabilityError, NotFound
from agentenv.images import ImageStore
from agentenv.images.names import set_name
from agentenv.isolation.vm.rootimage import plain_layers
from agentenv.node import Node, SandboxRequest


@pytest.fixture
def debian(home: Path, tmp_path: Path) -> str:
    """What `debian` means in this home: here a tiny archive."""
    archive = tmp_path / "debian.tar"
    with tarfile.open(archive, "w") as bundle:
        folder = tarfile.TarInfo("bin")
        folder.type = tarfile.DIRTYPE
        bundle.addfile(folder)
    store = ImageStore(home)
    digest = store.resolve(f"tar:{archive}").image
    set_name(store.directory, "debian", digest.removeprefix("sha256:"), {})
    store.close()
    return digest


async def test_a_backend_of_trees_starts_from_host(open_node: Node, backend: OpenBackend) -> None:
    sandbox = await open_node.create(SandboxRequest())
    assert [record.image for record in open_node.list()] == ["host"]
    assert backend.machines[0].spec.root.image == "host"
    assert (await sandbox.snapshot()).image == "host"


@pytest.mark.parametrize("disk", [True], indirect=True)
async def test_a_backend_of_disks_starts_from_debian_and_so_do_its_forks_and_snapshots(debian: str, memory_node: Node) -> None:
    sandbox = await memory_node.create(SandboxRequest())
    assert machine(sandbox).spec.root.image == debian
    children = await sandbox.fork(1)
    assert [record.image for record in memory_node.list()] == ["debian", "debian"]
    assert len(children) == 1
    snapshot = await sandbox.snapshot(memory=False)
    assert snapshot.image == debian
    restored = await memory_node.create(SandboxRequest(snapshot=snapshot.id))
    assert restored.request.image == debian


@pytest.mark.parametrize("disk", [True], indirect=True)
async def test_one_that_rests_on_the_disk_is_listed_with_its_image(debian: str, memory_node: Node) -> None:
    sandbox = await memory_node.create(SandboxRequest())
    await sandbox.pause(to_disk=True)
    assert [(record.state, record.image) for record in memory_node.list()] == [("hibernated", "debian")]


@pytest.mark.parametrize("disk", [True], indirect=True)
async def test_a_debian_that_was_not_built_is_an_error_that_says_how_to(memory_node: Node, remembering: RememberingBackend) -> None:
    with pytest.raises(NotFound, match=r"`debian`.*has not been built") as caught:
        await memory_node.create(SandboxRequest())
    assert "agentenv image build debian" in (caught.value.remedy or "")
    assert remembering.machines == []
    assert memory_node.list() == []


async def test_host_by_name_on_a_backend_of_disks_is_an_error_that_names_debian(home: Path) -> None:
    store = ImageStore(home)
    with pytest.raises(CapabilityError, match="'host' cannot be started in a virtual machine") as caught:
        plain_layers(store.resolve("host"))
    assert "`debian`" in (caught.value.remedy or "")
    store.close()


async def test_a_node_that_is_closed_opens_no_backend_to_choose_an_image(
    home: Path, backend: OpenBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await Node.open(home)
    await node.close()
    opened: list[str] = []
    monkeypatch.setattr("agentenv.node.starter.open_backend", lambda name, directory: opened.append(name))
    with pytest.raises(Exception, match="this node is closed"):
        await node.create(SandboxRequest())
    assert opened == []
