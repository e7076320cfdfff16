"""Dockerfiles built on a server, as `agentenv build --server` does; and the code interpreter that E2B's client drives."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2b import Sandbox
from tests.server.conftest import RunningServer

from agentenv.errors import BuildFailed, ConfigError
from agentenv.sandbox.remote.address import ServerAddress
from agentenv.templates import BuildLine, recipes
from agentenv.templates.remote import RemoteOrder, build_on_server


def variables(server: RunningServer) -> dict[str, str]:
    return {"E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url, "E2B_API_KEY": server.key}


def build(server: RunningServer, directory: Path, name: str, *, key: str | None = None, **more: object) -> list[BuildLine]:
    lines: list[BuildLine] = []
    order = RemoteOrder(directory, directory / "Dockerfile", name, more.pop("args", {}), **more)  # type: ignore[arg-type]
    asyncio.run(build_on_server(ServerAddress(server.url, key or server.key), order, lines.append))
    return lines


def test_a_dockerfile_goes_to_the_server_with_its_files(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables(server).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/file").write_text("content")
    (tmp_path / "sub/run.sh").write_text("#!/bin/sh\necho ran")
    (tmp_path / "sub/run.sh").chmod(0o755)
    (tmp_path / "left.log").write_text("x")
    (tmp_path / ".dockerignore").write_text("*.log\n")
    (tmp_path / "Dockerfile").write_text(
        "FROM host AS first\nARG WHAT\nCOPY . /all\nRUN /all/sub/run.sh; echo $WHAT > /what; ls -A /all > /listed\n"
        "FROM host\nCOPY --from=first /what /listed /all/sub/file /srv/\nUSER user\nWORKDIR /srv\n"
    )
    lines = build(server, tmp_path, "remote-app:v2", args={"WHAT": "this"})
    assert "ran" in [line.message for line in lines]
    with Sandbox.create("remote-app:v2", timeout=60) as sandbox:
        assert sandbox.commands.run("pwd; cat what file; echo; cat listed").stdout.split() == [
            "/srv",
            "this",
            "content",
            ".dockerignore",
            "Dockerfile",
            "sub",
        ]
    again = [line.message for line in build(server, tmp_path, "remote-app:v2", args={"WHAT": "this"})]
    assert not any(message.startswith("Uploading") for message in again)
    assert again.count("CACHED") == 5


@pytest.mark.parametrize(
    ("dockerfile", "message"),
    [
        ("FROM dir:/\n", "no name of an image"),
        ("FROM tar:/etc/passwd\n", "no name of an image"),
        ("FROM host\nCOPY --from=dir:/ /etc/shadow /\n", "no name of an image"),
        ("FROM 127.0.0.1:1/x\n", "is not to be used here"),
        ("FROM localhost/x\n", "is not to be used here"),
        ("FROM template:nowhere\n", "there is no template 'nowhere'"),
        ("FROM host\nRUN exit 4\n", "ended with status 4"),
    ],
)
def test_what_tenants_may_not_name_is_refused(server: RunningServer, tmp_path: Path, dockerfile: str, message: str) -> None:
    (tmp_path / "Dockerfile").write_text(dockerfile)
    with pytest.raises(BuildFailed, match=message):
        build(server, tmp_path, "remote-refused")


def test_a_mistake_is_found_before_anything_is_sent(server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM host\nRUNN x\n")
    with pytest.raises(ConfigError, match="Dockerfile:2"):
        build(server, tmp_path, "remote-never")
    with server.client() as client:
        assert client.get("/templates/aliases/remote-never").status_code == 404


@pytest.fixture(scope="module")
def interpreter(server: RunningServer) -> Iterator[Any]:
    """The class of E2B's client for the code interpreter, whose template is built."""
    pytest.importorskip("ipykernel", reason="the recipe would fetch ipykernel from PyPI")
    client = pytest.importorskip("e2b_code_interpreter")
    recipe = recipes.find("code-interpreter")
    build(server, recipe.directory, "code-interpreter-v1", start=recipe.startup.command, ready=recipe.startup.ready)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables(server).items():
            patch.setenv(name, value)
        yield client.Sandbox


@pytest.mark.timeout(300)
def test_e2bs_code_interpreter_drives_the_recipe(interpreter: Any) -> None:
    with interpreter.create(timeout=120) as sandbox:
        sandbox.run_code("x = 20")
        answer = sandbox.run_code("import sys\nprint('out', flush=True)\nprint('err', file=sys.stderr)\nx + 22")
        assert (answer.text, answer.logs.stdout, answer.logs.stderr, answer.error) == ("42", ["out\n"], ["err\n"], None)
        assert answer.execution_count == 2
        assert sandbox.run_code("'a text'").text == "a text"
        failed = sandbox.run_code("1 / 0")
        assert (failed.error.name, failed.error.value) == ("ZeroDivisionError", "division by zero")
        assert "ZeroDivisionError" in failed.error.traceback
        assert sandbox.run_code("import os; os.environ['ONE_TIME']", envs={"ONE_TIME": "yes"}).text == "yes"
        assert sandbox.run_code("os.environ.get('ONE_TIME', 'gone')").text == "gone"
        seen: list[str] = []
        sandbox.run_code("for n in range(3): print(n, flush=True)", on_stdout=lambda message: seen.append(message.line))
        assert "".join(seen) == "0\n1\n2\n"
        with pytest.raises(Exception, match="no kernel for 'cobol'"):
            sandbox.run_code("x", language="cobol")
        with pytest.raises(Exception, match=r"[Tt]imeout|timed out"):
            sandbox.run_code("import time; time.sleep(60)", timeout=0.5)
        assert sandbox.run_code("x").text == "20", "the kernel was interrupted, and lives on"
        _shows_what_is_in_frames_and_figures(sandbox)


def _shows_what_is_in_frames_and_figures(sandbox: Any) -> None:
    told: list[Any] = []
    code = """
        from IPython.display import HTML, display
        display(HTML('<b>x</b>'))
        import matplotlib.pyplot as plt
        plt.plot([1, 2], [3, 4], label='a line')
        plt.show()
        import pandas
        pandas.DataFrame({'a': [1, 2]})
    """
    sandbox.run_code(textwrap.dedent(code), on_result=told.append)
    html, figure, frame = told
    assert (html.html, html.is_main_result) == ("<b>x</b>", False)
    assert figure.png
    assert (figure.chart.type, figure.chart.elements[0].points) == ("line", [(1.0, 3.0), (2.0, 4.0)])
    assert (frame.data, frame.is_main_result) == ({"a": [1, 2]}, True)
    assert "<table" in frame.html


@pytest.mark.soak
def test_contexts_and_languages_of_the_code_interpreter(interpreter: Any) -> None:
    with interpreter.create(timeout=120) as sandbox:
        sandbox.run_code("x = 1")
        sandbox.files.make_dir("/home/user/own")
        context = sandbox.create_code_context(cwd="/home/user/own")
        assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/home/user/own"
        assert sandbox.run_code("x", context=context).error.name == "NameError"
        assert {one.id for one in sandbox.list_code_contexts()} >= {context.id}
        sandbox.run_code("kept = 1", context=context)
        sandbox.restart_code_context(context)
        assert sandbox.run_code("kept", context=context).error.name == "NameError"
        sandbox.remove_code_context(context)
        assert context.id not in {one.id for one in sandbox.list_code_contexts()}
        with pytest.raises(Exception, match="not found"):
            sandbox.restart_code_context(context)
        assert sandbox.run_code("echo $((6 * 7))", language="bash").logs.stdout == ["42\n"]
