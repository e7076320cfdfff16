"""Builds in real sandboxes: what Dockerfiles say happens, once, and is found again."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from pathlib import Path

import pytest
from tests.conditions import needs_namespaces
from tests.templates.conftest import Yard

from agentenv.errors import BuildFailed, ConfigError, NotFound
from agentenv.node import Node
from agentenv.sandbox import AsyncSandbox
from agentenv.templates import cache

pytestmark = needs_namespaces


async def output_in(node: Node, template: str, command: str) -> str:
    """What a command prints in a sandbox of a template."""
    async with await AsyncSandbox.create(f"template:{template}", isolation="namespace", node=node) as sandbox:
        return (await sandbox.commands.run(command, check=True)).stdout


async def test_files_environment_user_and_directory_are_the_templates(yard: Yard) -> None:
    yard.write({"src/a.py": "print('a')", "src/b.txt": "b", "src/deep/c.py": "c", ".dockerignore": "**/*.txt\n"})
    record = await yard.build(
        """FROM host
ARG WHO=nobody
ENV GREETING="hello $WHO" TWO=2
WORKDIR /work/here
COPY src/ app/
RUN echo "$GREETING" > greeting && id -un > who
USER app
WORKDIR ../there
RUN id -un > who; echo "$WHO" > arg
CMD ["python3", "a.py"]
LABEL for="$WHO"
EXPOSE 80 $TWO
""",
        args={"WHO": "you"},
    )
    assert (record.user, record.cwd, record.env["GREETING"], record.base) == ("app", "/work/there", "hello you", "host")
    assert record.facts == {"cmd": ["python3", "a.py"], "labels": {"for": "you"}, "exposed": ["80", "2"]}
    told = await output_in(
        yard.node,
        "test",
        "id -un; pwd; cat who arg ../here/who ../here/greeting; stat -c %U .; cd ../here/app; find . -type f | sort; echo $TWO$WHO",
    )
    assert told.split("\n")[:-1] == ["app", "/work/there", "app", "you", "root", "hello you", "app", "./a.py", "./deep/c.py", "2"]


async def test_what_was_done_is_not_done_again(yard: Yard) -> None:
    yard.write({"one": "1", "two": "2"})
    dockerfile = "FROM host\nCOPY one /\nRUN cat /one > /seen; date +%N > /when\nCOPY two /\nRUN cat /two >> /seen\n"
    await yard.build(dockerfile)
    assert yard.cached() == 0
    first = await output_in(yard.node, "test", "cat /seen /when")
    await yard.build(dockerfile)
    assert yard.cached() == 4
    assert await output_in(yard.node, "test", "cat /seen /when") == first
    yard.write({"two": "3"})
    await yard.build(dockerfile)
    assert yard.cached() == 2
    changed = await output_in(yard.node, "test", "cat /seen /when")
    assert changed == first.replace("12", "13", 1)
    os.utime(yard.directory / "one", (1, 1))
    await yard.build(dockerfile, name="other")
    assert yard.cached() == 4, "times of files do not count"
    await yard.build(dockerfile, cache=False)
    assert yard.cached() == 0


async def test_a_changed_argument_or_variable_is_another_step(yard: Yard) -> None:
    dockerfile = "FROM host\nARG V\nRUN echo $V > /v\n"
    await yard.build(dockerfile, args={"V": "1"})
    await yard.build(dockerfile, args={"V": "2"})
    assert yard.cached() == 0
    assert await output_in(yard.node, "test", "cat /v") == "2\n"


async def test_stages_copy_from_each_other_and_only_needed_ones_are_built(yard: Yard) -> None:
    yard.write({"main.c": "source"})
    dockerfile = """ARG BASE=host
FROM ${BASE} AS tools
RUN mkdir /out && echo tool > /out/tool && ln -s /out/tool /out/link && chmod 750 /out/tool && ln /out/tool /out/hard
FROM $BASE AS never
RUN exit 1
FROM tools AS build
COPY main.c /src/
RUN cat /src/main.c /out/tool > /out/binary
FROM host
COPY --from=build --chown=app /out/ /opt/
COPY --from=0 /out/tool /usr/local/bin/renamed
COPY --from=build /out/t* /out/binary /many/
"""
    await yard.build(dockerfile)
    told = await output_in(
        yard.node,
        "test",
        "cat /opt/binary; readlink /opt/link; stat -c '%U %a' /opt/tool; cat /usr/local/bin/renamed; ls /many; "
        "[ /opt/hard -ef /opt/tool ] && echo same",
    )
    assert told.split() == ["sourcetool", "/out/tool", "app", "750", "tool", "binary", "tool", "same"]
    assert not any("never" in line.message for line in yard.lines)
    with pytest.raises(BuildFailed, match="ended with status 1"):
        await yard.build(dockerfile, target="never")


async def test_independent_stages_run_side_by_side(yard: Yard) -> None:
    """Each waits for a file that is put into both when both run: one after the other they would wait for ever."""
    wait = "until [ -e /go ]; do sleep 0.02; done"
    building = asyncio.create_task(
        yard.build(
            f"FROM host AS a\nRUN echo a runs; {wait}; echo a > /a\nFROM host AS b\nRUN echo b runs; {wait}; echo b > /b\n"
            "FROM host\nCOPY --from=a /a /\nCOPY --from=b /b /\n"
        )
    )
    await asyncio.gather(yard.said("a runs"), yard.said("b runs"))
    for record in yard.node.list():
        await (await AsyncSandbox.connect(record.id, node=yard.node)).files.write("/go", "")
    await building
    assert await output_in(yard.node, "test", "cat /a /b") == "a\nb\n"


async def test_copy_and_add(yard: Yard, tmp_path: Path) -> None:
    yard.write({"dir/x": "x", "dir/sub/y": "y", "a.py": "a", "b.py": "b", "plain.gz": "no archive", "name with blank": "n"})
    with tarfile.open(yard.directory / "files.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("packed/inner")
        member.size, member.uid, member.gid, member.mode = 2, 1234, 77, 0o640
        archive.addfile(member, io.BytesIO(b"in"))
    (yard.directory / "link").symlink_to("a.py")
    (yard.directory / "dir/inner-link").symlink_to("/etc/hostname")
    await yard.build(
        """FROM host
RUN mkdir /there
COPY dir /d
COPY a.py /there
COPY a.py /new/name
COPY --chmod=0700 a.py b.py /scripts/
COPY *.py /wild/
COPY link /followed
COPY ["name with blank", "/blank file"]
ADD files.tar.gz plain.gz /added/
COPY <<ONE <<'TWO' /inline/
home is "$HOME_OF"
ONE
not $HOME_OF
TWO
ENV HOME_OF=us
COPY --chown=1000:77 <<ONE /inline/third
it is $HOME_OF's "home"
ONE
"""
    )
    told = await output_in(
        yard.node,
        "test",
        "cd /; find d there new scripts wild added inline -type f | sort; readlink d/inner-link; cat followed '/blank file'; echo; "
        "stat -c '%a %u:%g' scripts/a.py added/packed/inner inline/third; cat inline/*",
    )
    assert told.splitlines() == [
        "added/packed/inner", "added/plain.gz", "d/sub/y", "d/x", "inline/ONE", "inline/TWO", "inline/third", "new/name", "scripts/a.py",
        "scripts/b.py", "there/a.py", "wild/a.py", "wild/b.py", "/etc/hostname", "an", "700 0:0", "640 1234:77", "644 1000:77",
        'home is ""', "not $HOME_OF", 'it is us\'s "home"',
    ]  # fmt: skip


async def test_commands_in_all_their_forms(yard: Yard) -> None:
    await yard.build(
        """FROM host
RUN ["sh", "-c", "echo list $0 > /list", "word"]
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN echo $BASHPID > /bash && [[ -f /bash ]]
RUN <<EOF
set -e
echo here > /here
EOF
RUN <<EOF
#!/usr/bin/env python3
open("/python", "w").write("python")
EOF
RUN cat <<ONE > /joined
text
ONE
"""
    )
    assert (
        await output_in(yard.node, "test", "cat /list /here /joined /python; [ -s /bash ] && echo ' bash'")
    ) == "list word\nhere\ntext\npython bash\n"


async def test_a_failed_step_says_what_it_printed_and_where_it_stands(yard: Yard) -> None:
    with pytest.raises(BuildFailed, match=r"Dockerfile:3: RUN echo before; missing-program: ended with status 127") as caught:
        await yard.build("FROM host\nRUN true\nRUN echo before; missing-program\n")
    assert (caught.value.line, caught.value.step) == (3, "RUN echo before; missing-program")
    assert "before" in caught.value.output
    assert "missing-program" in caught.value.output
    with pytest.raises(NotFound, match="no template test"):
        yard.node.templates.find("test-never")
    assert yard.node.list() == []


@pytest.mark.parametrize(
    ("dockerfile", "message"),
    [
        ("FROM host\nCOPY missing /\n", r":2: COPY missing /: 'missing' cannot be copied: there is no such file"),
        ("FROM host\nCOPY hidden.log /\n", "left out by .dockerignore"),
        ("FROM host\nCOPY outside /\n", "leads out of"),
        ("FROM host\nCOPY a b /nowhere\n", "several files go into a directory"),
        ("FROM host\nCOPY --from=0 /missing /\n", "/missing"),
        ("FROM host\nADD https://github.com/x/y.git /\n", "git repository is not supported"),
        ('FROM host\nENV A="${B:?is needed}"\n', "B is not set: is needed"),
        ("FROM host AS a\nCOPY --from=b /x /\nFROM host AS b\nFROM a\n", "copies from 'b', which comes later"),
        ("FROM UPPER/case\n", "is no name of an image"),
        ("FROM ${NOTHING}\n", "is empty"),
    ],
)
async def test_what_cannot_be_done_is_said(yard: Yard, dockerfile: str, message: str) -> None:
    yard.write({"a": "a", "b": "b", "hidden.log": "x", ".dockerignore": "*.log\n"})
    (yard.directory / "outside").symlink_to("/etc/passwd")
    if "--from=0" in dockerfile:
        dockerfile = f"FROM host AS first\n{dockerfile}"
    with pytest.raises((BuildFailed, ConfigError), match=message):
        await yard.build(dockerfile)
    assert yard.node.list() == []


async def test_a_cancelled_build_leaves_no_sandbox_and_goes_on_where_it_was(yard: Yard) -> None:
    dockerfile = "FROM host\nRUN echo one > /one\nRUN echo waiting; sleep {}\n"
    building = asyncio.create_task(yard.build(dockerfile.format(100)))
    await yard.said("waiting")
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert yard.node.list() == []
    await yard.build(dockerfile.format(0))
    assert yard.cached() == 1


async def test_a_template_is_a_base(yard: Yard) -> None:
    await yard.build("FROM host\nENV A=1\nUSER app\nWORKDIR /srv\nRUN echo base > file || true\n", name="base:v1")
    await yard.build("FROM template:base:v1\nRUN echo $A $(id -un) $(pwd) > /tmp/x; cp /tmp/x ~/seen\n", name="derived")
    record = yard.node.templates.find("derived")
    assert (record.user, record.cwd, record.env["A"]) == ("app", "/srv", "1")
    assert await output_in(yard.node, "derived", "cat ~/seen") == "1 app /srv\n"


async def test_from_scratch(yard: Yard) -> None:
    yard.write({"data": "content"})
    await yard.build("FROM scratch\nCOPY data /data\n", name="bare")
    async with await AsyncSandbox.create("template:bare", isolation="namespace", node=yard.node) as sandbox:
        assert await sandbox.files.read("/data") == "content"
        assert not await sandbox.files.exists("/bin")


async def test_forks_and_rollbacks_keep_what_the_template_gives(yard: Yard) -> None:
    await yard.build("FROM host\nENV A=kept\nUSER app\nWORKDIR /srv\n")
    async with await AsyncSandbox.create("template:test", isolation="namespace", node=yard.node) as sandbox:
        snapshot = await sandbox.snapshot()
        await sandbox.commands.run("touch ~/new")
        await sandbox.rollback(snapshot)
        (child,) = await sandbox.fork()
        assert isinstance(child, AsyncSandbox)
        async with child, await AsyncSandbox.create(snapshot=snapshot, isolation="namespace", node=yard.node) as again:
            for one in (sandbox, child, again):
                assert (await one.commands.run("echo $A $(id -un) $(pwd); ls ~")).stdout == "kept app /srv\n"


async def test_pruning_takes_what_no_template_needs(node: Node, tmp_path: Path) -> None:
    async with await Node.open(tmp_path / "home") as own:
        (tmp_path / "context").mkdir()
        yard = Yard(own, tmp_path / "context")
        await yard.build("FROM host\nRUN echo 1 > /1\nRUN echo 2 > /2\n", name="kept")
        await yard.build("FROM host\nRUN echo 1 > /1\nRUN echo 3 > /3\n", name="gone")
        own.templates.delete("gone")
        removed = await cache.prune(own)
        assert len(removed) == 2
        assert await output_in(own, "kept", "cat /1 /2") == "1\n2\n"
        own.templates.delete("kept")
        await cache.prune(own)
        assert await own.snapshots() == []
