"""Templates with names: what their sandboxes start, and what is said when that does not work."""

from __future__ import annotations

import pytest
from tests.conditions import needs_namespaces
from tests.templates.conftest import Yard

from agentenv.errors import BuildFailed, CommandError, ConfigError, InvalidState, NotFound, StartupTimeout
from agentenv.isolation.contract import Resources
from agentenv.node.templates import split_name
from agentenv.sandbox import AsyncSandbox
from agentenv.sandbox.startup import run_startup
from agentenv.templates import Startup, Wanted

pytestmark = needs_namespaces

SERVER = "FROM host\nWORKDIR /srv\nRUN echo content > index.html\nUSER app\n"
SERVE = Startup(
    command="exec python3 -m http.server 8000", ready="python3 -c 'import urllib.request as r; r.urlopen(\"http://127.0.0.1:8000\")'"
)


async def test_a_sandbox_is_handed_out_when_what_it_starts_is_ready(yard: Yard) -> None:
    record = await yard.build(SERVER, name="web:1", wanted=Wanted(SERVE, Resources(memory=256 << 20, pids=None)))
    assert (record.startup.user, record.startup.cwd, record.warm) == ("app", "/srv", None)
    async with await AsyncSandbox.create("template:web:1", isolation="namespace", node=yard.node) as sandbox:
        (process,) = await sandbox.commands.list()
        assert process.args[-1] == "exec python3 -m http.server 8000"
        page = "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:8000\").read().decode())'"
        assert (await sandbox.commands.run(page)).stdout.strip() == "content"
        assert sandbox._host.request.resources.memory == 256 << 20


async def test_a_start_command_that_fails_makes_no_template(yard: Yard) -> None:
    with pytest.raises(BuildFailed, match=r"no luck.*ended with status 3.*sorry") as caught:
        await yard.build("FROM host\n", name="failing", wanted=Wanted(Startup(command="echo sorry; exit 3 # no luck", ready="false")))
    assert "sorry" in caught.value.output
    with pytest.raises(NotFound, match="there is no template failing:latest"):
        yard.node.templates.find("failing")
    with pytest.raises(BuildFailed, match=r"startup timeout after 0\.5 s in stage 'ready command'"):
        await yard.build("FROM host\n", name="failing", wanted=Wanted(Startup(command="echo up; sleep 100", ready="false", timeout=0.5)))
    assert yard.node.list() == []


async def test_a_sandbox_whose_start_command_fails_ends(yard: Yard) -> None:
    record = await yard.build("FROM host\n", name="late", wanted=Wanted(Startup(command="true")))
    from msgspec.structs import replace

    yard.node.templates.put(replace(record, startup=Startup(command="echo why; exit 1", ready="false")))
    with pytest.raises(CommandError, match="why"):
        await AsyncSandbox.create("template:late", isolation="namespace", node=yard.node)
    assert yard.node.list() == []


async def test_a_daemon_that_leaves_its_starter_is_waited_for(yard: Yard) -> None:
    async with await AsyncSandbox.create(isolation="namespace", node=yard.node) as sandbox:
        startup = Startup(command="(sleep 0.3; touch /tmp/ready) & exit 0", ready="test -e /tmp/ready", timeout=30)
        await run_startup(sandbox.commands, startup)
        assert await sandbox.files.exists("/tmp/ready")
        with pytest.raises(StartupTimeout) as caught:
            await run_startup(sandbox.commands, Startup(command="echo told; sleep 9", ready="false", timeout=0.5))
        assert caught.value.last_output == "told\n"


async def test_a_name_means_the_last_build_and_can_be_forgotten(yard: Yard) -> None:
    first = await yard.build("FROM host\nRUN echo 1 > /n\n", name="moving")
    second = await yard.build("FROM host\nRUN echo 2 > /n\n", name="moving")
    await yard.build("FROM host\nRUN echo 1 > /n\n", name="moving:old")
    assert first.snapshot != second.snapshot
    templates = yard.node.templates
    assert templates.find("moving").snapshot == second.snapshot
    assert templates.find("template:moving:old").snapshot == first.snapshot
    assert [record.label for record in templates.all() if record.name == "moving"] == ["moving:latest", "moving:old"]
    with pytest.raises(InvalidState, match="is what template moving:latest is made of") as refused:
        await yard.node.delete_snapshot(second.snapshot)
    assert "agentenv template rm moving:latest" in str(refused.value.remedy)
    templates.delete("moving")
    await yard.node.delete_snapshot(second.snapshot)
    with pytest.raises(NotFound, match="Did you mean 'moving:old'"):
        templates.find("moving")


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "a:b:c", "a/", "a/b/c", "-a", ":x"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no name for a template"):
        split_name(name)
    assert split_name("team/app.v1:Tag_1") == ("team/app.v1", "Tag_1")
