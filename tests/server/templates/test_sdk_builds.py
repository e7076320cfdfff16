"""`Template.build` of the unmodified E2B SDK against the real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2b import AsyncTemplate, BuildException, Sandbox, Template, wait_for_file
from e2b.exceptions import TemplateException
from tests.server.conftest import RunningServer


@pytest.fixture(scope="module")
def e2b(server: RunningServer) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url, "E2B_API_KEY": server.key}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A directory with files to copy."""
    (tmp_path / "app/deep").mkdir(parents=True)
    (tmp_path / "app/main.py").write_text("print('main')")
    (tmp_path / "app/deep/data").write_text("data")
    (tmp_path / "app/secret.log").write_text("secret")
    (tmp_path / "single.txt").write_text("single")
    (tmp_path / ".dockerignore").write_text("**/*.log\n")
    return tmp_path


def test_a_template_is_built_and_started(e2b: None, context: Path) -> None:
    template = (
        Template(file_context_path=context)
        .from_image("host")
        .set_envs({"GREETING": "hello $USER"})
        .copy("app", "/opt/app")
        .copy("single.txt", "renamed.txt", user="root", mode=0o600)
        .copy("*.txt", "many/")
        .run_cmd("echo $GREETING $(id -un) $(pwd) > built")
        .run_cmd("id -un > /root-built", user="root")
        .set_workdir("/opt/app")
        .set_start_cmd("touch /tmp/started; sleep infinity", wait_for_file("/tmp/started"))
    )
    said: list[str] = []
    info = Template.build(
        template, "sdk-app:v1", tags=["stable"], cpu_count=1, memory_mb=512, on_build_logs=lambda line: said.append(line.message)
    )
    assert info.template_id
    assert any("RUN echo $GREETING" in line for line in said)
    with Sandbox.create("sdk-app:v1", timeout=60) as sandbox:
        told = sandbox.commands.run(
            "cat ~/built /root-built; cat ~/renamed.txt 2>&1; ls ~/many; pwd; echo $GREETING; find . -type f | sort; stat -c '%U' ~/many/*"
        )
        assert told.stdout.splitlines() == [
            "hello $USER user /home/user",
            "root",
            "cat: /home/user/renamed.txt: Permission denied",
            "single.txt",
            "/opt/app",
            "hello $USER",
            "./deep/data",
            "./main.py",
            "user",
        ]
        assert sandbox.commands.run("ps -e -o args | grep -c '[s]leep infinity'").stdout == "1\n"
    with Sandbox.create("sdk-app:stable", timeout=60) as sandbox:
        assert sandbox.files.exists("/opt/app/main.py")


def test_files_that_are_here_are_not_uploaded_again(e2b: None, context: Path) -> None:
    template = Template(file_context_path=context).from_image("host").copy("single.txt", "/srv/").run_cmd("cat /srv/single.txt")
    said: list[str] = []
    Template.build(template, "sdk-again")
    Template.build(template, "sdk-again", on_build_logs=lambda line: said.append(line.message))
    assert "Skipping upload of 'single.txt', already cached" in said
    assert said.count("CACHED") == 4
    said.clear()
    Template.build(template, "sdk-again", skip_cache=True, on_build_logs=lambda line: said.append(line.message))
    assert "CACHED" not in said


def test_a_template_is_built_on_another(e2b: None) -> None:
    Template.build(
        Template().from_image("host").set_envs({"BELOW": "1"}).set_user("worker").set_workdir("/srv").run_cmd("echo 1 > ~/below"),
        "sdk-below",
    )
    Template.build(Template().from_template("sdk-below").run_cmd("echo $BELOW $(id -un) $(pwd) > ~/above"), "sdk-above")
    with Sandbox.create("sdk-above", timeout=60) as sandbox:
        assert sandbox.commands.run("cat ~/below ~/above", user="worker").stdout == "1\n1 worker /srv\n"


def test_a_failed_step_is_told_with_its_output(e2b: None) -> None:
    said: list[str] = []
    template = Template().from_image("host").run_cmd("echo before; exit 3")
    with pytest.raises(BuildException, match="ended with status 3"):
        Template.build(template, "sdk-failing", on_build_logs=lambda line: said.append(line.message))
    assert "before" in said
    with pytest.raises(Exception, match="no build that is ready"):
        Sandbox.create("sdk-failing", timeout=60)


def test_a_build_in_the_background(e2b: None) -> None:
    info = Template.build_in_background(Template().from_base_image().run_cmd("sleep 0.5; echo done"), "sdk-background")
    seen, lines, offset = set(), [], 0
    while "ready" not in seen:
        status = Template.get_build_status(info, logs_offset=offset)
        seen.add(status.status.value)
        lines += [entry.message for entry in status.log_entries]
        offset += len(status.log_entries)
        assert "error" not in seen
    assert lines.count("done") == 1
    assert lines[-1] == "Finished"


def test_names_and_tags(e2b: None) -> None:
    first = Template.build(Template().from_image("host").run_cmd("echo 1 > /tmp/x; cp /tmp/x ~/n"), "sdk-tags:one")
    second = Template.build(Template().from_image("host").run_cmd("echo 2 > /tmp/x; cp /tmp/x ~/n"), "sdk-tags:two")
    assert first.template_id == second.template_id
    assert Template.exists("sdk-tags")
    assert not Template.exists("sdk-never")
    assigned = Template.assign_tags("sdk-tags:one", ["production", "stable"])
    assert (assigned.build_id, assigned.tags) == (first.build_id, ["production", "stable"])
    assert {tag.tag: tag.build_id for tag in Template.get_tags("sdk-tags")} == {
        "one": first.build_id, "two": second.build_id, "production": first.build_id, "stable": first.build_id,
    }  # fmt: skip
    Template.remove_tags("sdk-tags", "stable")
    assert "stable" not in {tag.tag for tag in Template.get_tags("sdk-tags")}
    with Sandbox.create("sdk-tags:production", timeout=60) as sandbox:
        assert sandbox.commands.run("cat ~/n").stdout == "1\n"
    with pytest.raises(TemplateException):
        Template.assign_tags("sdk-tags:never", ["x"])


def test_the_asynchronous_face(e2b: None, context: Path) -> None:
    async def build() -> str:
        template = AsyncTemplate(file_context_path=context).from_image("host").copy("single.txt", ".").run_cmd("cat single.txt")
        said: list[str] = []
        await AsyncTemplate.build(template, "sdk-async", on_build_logs=lambda line: said.append(line.message))
        return "single" if "single" in said else ""

    assert asyncio.run(build()) == "single"


def test_a_dockerfile_of_the_sdk(e2b: None, context: Path) -> None:
    dockerfile = "FROM host\nENV A=1\nWORKDIR /srv\nCOPY single.txt ./\nRUN cat single.txt > seen\n"
    Template.build(Template(file_context_path=context).from_dockerfile(dockerfile), "sdk-dockerfile")
    with Sandbox.create("sdk-dockerfile", timeout=60) as sandbox:
        assert sandbox.commands.run("cat /srv/seen").stdout == "single"
