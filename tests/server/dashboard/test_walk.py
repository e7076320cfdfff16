"""Through the dashboard with a real browser that reaches the server and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from selenium.webdriver.common.keys import Keys
from tests.server.conftest import RunningServer
from tests.server.dashboard.browser import Browser

PHONE = (360, 740)
PAGES = ("/", "/sandboxes/{sandbox}", "/templates", "/templates/base", "/runs", "/runs/quick", "/keys")
NOTE_FOCUS = """
window.reached = [];
document.addEventListener("focusin", ({ target }) => window.reached.push(target.textContent || target.getAttribute("aria-label")));
"""


@pytest.fixture
def at_home(window: Browser, viewed: RunningServer) -> Iterator[Browser]:
    """Signed in, in a window of ordinary size; afterwards nothing may have gone wrong in the browser."""
    window.resize(1280, 800)
    window.at_home(viewed.key)
    window.problems()
    yield window
    assert window.problems() == []


def create(server: RunningServer, **metadata: str) -> str:
    with server.client() as client:
        answer = client.post("/sandboxes", json={"templateID": "base", "timeout": 600, "metadata": metadata})
        answer.raise_for_status()
        return str(answer.json()["sandboxID"])


def kill(server: RunningServer, sandbox: str) -> None:
    with server.client() as client:
        client.delete(f"/sandboxes/{sandbox}").raise_for_status()


def test_sandboxes_come_and_go_on_an_open_page_and_are_found_by_a_key(viewed: RunningServer, at_home: Browser) -> None:
    first, second = create(viewed, lane="walk-1"), create(viewed, lane="walk-2")
    at_home.find(".sandboxes a", first[:8])
    at_home.type("/")
    at_home.type("lane=walk-2")
    at_home.gone(".sandboxes a", first[:8])
    kill(viewed, second)
    at_home.find(".empty", "No sandbox fits")
    at_home.find(".search input").send_keys(Keys.CONTROL, "a", Keys.BACKSPACE)
    at_home.find(".sandboxes a", first[:8])
    at_home.find("section", "What happened lately")
    at_home.find("section td", "launch")
    kill(viewed, first)


def test_a_terminal_takes_what_is_typed(viewed: RunningServer, at_home: Browser) -> None:
    sandbox = create(viewed)
    at_home.open(f"/sandboxes/{sandbox}")
    at_home.find(".chart svg")
    at_home.click(".q-tab", "Terminal")
    at_home.find(".xterm", "$")
    at_home.click(".xterm")
    at_home.type("echo $((6*7))-$(whoami) ä; tput cols\n")
    at_home.find(".xterm", "42-user ä")
    at_home.type(Keys.F6)
    assert at_home.run("return document.activeElement.closest('.xterm')") is None
    at_home.click(".q-tab", "Processes")
    at_home.find("td.mono", "bash")
    kill(viewed, sandbox)
    at_home.find(".q-notification", "there is no sandbox")


@pytest.mark.soak
def test_a_snapshot_is_rolled_back_to_and_forks_show_in_the_tree(viewed: RunningServer, at_home: Browser) -> None:
    sandbox = create(viewed)
    at_home.open(f"/sandboxes/{sandbox}")
    at_home.click(".act", "Snapshot")
    at_home.find(".answer input").send_keys("before", Keys.ENTER)
    at_home.click(".q-tab", "Snapshots")
    at_home.find(".tree", "before")
    write(viewed, sandbox, "/tmp/after", "x")
    at_home.click(".act", "Roll back")
    at_home.click(".q-dialog .act", "Roll back")
    at_home.find(".q-notification", "It is what it was at before")
    assert not exists(viewed, sandbox, "/tmp/after")
    at_home.click(".actions .act", "Fork")
    at_home.find(".answer input").send_keys(Keys.CONTROL, "a", Keys.NULL, "2", Keys.ENTER)
    at_home.find(".q-notification", "2 of 2 forks run")
    at_home.wait(lambda _: len(at_home.texts(".tree a")) == 2 or None, "two forks in the tree")
    at_home.click(".act", "Pause")
    at_home.find(".state", "paused")
    at_home.click(".act", "Resume")
    at_home.find(".state", "running")
    at_home.click(".actions .act", "Kill")
    at_home.click(".q-dialog .act", "Kill it")
    at_home.gone("main", sandbox)
    with viewed.client() as client:
        assert client.get(f"/sandboxes/{sandbox}").status_code == 404


@pytest.mark.soak
def test_files_are_walked_through_and_sent(viewed: RunningServer, at_home: Browser, tmp_path: Path) -> None:
    sandbox = create(viewed)
    write(viewed, sandbox, "/data/note.txt", "<b>not bold</b>")
    at_home.open(f"/sandboxes/{sandbox}")
    at_home.click(".q-tab", "Files")
    at_home.click("a.mono", "data/")
    at_home.click("a.mono", "note.txt")
    at_home.find("pre", "<b>not bold</b>")
    at_home.click(".q-dialog .act", "Close")
    (tmp_path / "sent.txt").write_text("sent")
    at_home.driver.find_element("css selector", "input[type=file]").send_keys(str(tmp_path / "sent.txt"))
    at_home.find("a.mono", "sent.txt")
    assert exists(viewed, sandbox, "/data/sent.txt")
    kill(viewed, sandbox)


def test_runs_are_compared(at_home: Browser) -> None:
    at_home.type("gr")
    for name in ("quick", "slow"):
        at_home.click(f"input[value={name}]")
    at_home.click(".act", "Compare")
    at_home.find("td", "training.learning_rate")
    assert at_home.find("table").text.splitlines()[1:] == ["training.learning_rate 0.0001 0.001"]
    at_home.find(".chart svg")
    at_home.open("/runs/quick")
    at_home.find(".figures", "980")
    at_home.find("a", "result.json")


@pytest.mark.soak
def test_a_key_is_shown_once(viewed: RunningServer, at_home: Browser) -> None:
    at_home.type("gk")
    at_home.click(".act", "New key")
    at_home.find(".q-dialog input[type=text]").send_keys("of a test")
    at_home.click(".q-dialog .act", "Make it")
    secret = at_home.find(".secret").text
    assert viewed.access.principal_of(secret).key_name == "of a test"
    at_home.click(".q-dialog .act", "I have it")
    at_home.gone(".secret")
    at_home.find("td", "of a test")


@pytest.mark.parametrize(
    ("scheme", "paths"),
    [
        ("light", ("/sandboxes/{sandbox}", "/keys")),
        pytest.param("light", PAGES, marks=pytest.mark.soak),
        pytest.param("dark", PAGES, marks=pytest.mark.soak),
    ],
)
def test_pages_fit_a_phone(viewed: RunningServer, at_home: Browser, scheme: str, paths: tuple[str, ...]) -> None:
    sandbox = create(viewed, a_long_name="x" * 60)
    at_home.resize(*PHONE)
    at_home.prefer(scheme)
    for path in paths:
        at_home.open(path.format(sandbox=sandbox))
        at_home.find("main .card")
        assert at_home.run("return document.documentElement.scrollWidth") == PHONE[0], path
        assert at_home.run("return document.documentElement.dataset.theme") == scheme
    at_home.prefer("")
    kill(viewed, sandbox)


def test_everything_is_reached_with_the_keyboard(at_home: Browser) -> None:
    at_home.run(NOTE_FOCUS)
    at_home.type(Keys.TAB * 13)
    reached = [str(name) for name in cast(list[object], at_home.run("return window.reached"))]
    assert reached[0] == "Skip to the content"
    assert [name for name in reached if name in ("Sandboxes", "Templates", "Runs", "Keys")] == ["Sandboxes", "Templates", "Runs", "Keys"]
    assert {"all", "running", "paused"} <= set(reached)
    at_home.run("document.activeElement.blur()")
    at_home.type("?")
    at_home.find("dialog[open]", "Keyboard shortcuts")
    at_home.type(Keys.ESCAPE)
    at_home.gone("dialog[open]")
    at_home.type("gt")
    at_home.find("h2", "Templates and snapshots")


def write(server: RunningServer, sandbox: str, path: str, text: str) -> None:
    handle = server.wait(server.fleet.running(sandbox))
    server.wait(handle.files.write(path, text))


def exists(server: RunningServer, sandbox: str, path: str) -> bool:
    handle = server.wait(server.fleet.running(sandbox))
    return server.wait(handle.files.exists(path))
