"""The synchronous face: that it is current, and what threads, interrupts and the end of the process do to it."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import agentenv.sandbox as faces
from agentenv.errors import CommandTimeout, InvalidState
from agentenv.isolation import probe_all
from agentenv.sandbox import CommandHandle, Sandbox
from agentenv.sandbox.loop_thread import LoopThread, _Call, in_thread

ROOT = Path(__file__).parents[2]


def test_the_derived_module_is_current() -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "derive_sync.py", "--check"], check=True)


@pytest.mark.parametrize("name", ["Sandbox", "Commands", "CommandHandle", "Files", "Pty", "Shell", "WatchHandle"])
def test_both_faces_have_the_same_methods(name: str) -> None:
    renamed = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
    asynchronous = {renamed.get(key, key) for key in vars(getattr(faces, f"Async{name}")) if not key.startswith("_") or key in renamed}
    synchronous = {key for key in vars(getattr(faces, name)) if not key.startswith("_") or key in renamed.values()}
    assert synchronous == asynchronous
    assert not any(inspect.iscoroutinefunction(member) for member in vars(getattr(faces, name)).values())


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()
    thread.close()


def test_work_runs_in_the_loop_and_failures_come_back(loop: LoopThread) -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    async def fail() -> None:
        raise ValueError("from the loop")

    assert loop.run(work()) == "agentenv"
    with pytest.raises(ValueError, match="from the loop"):
        loop.run(fail())


def test_work_that_is_cancelled_before_it_begins_holds_nobody(loop: LoopThread) -> None:
    async def work() -> None:
        raise AssertionError("this must not begin")

    call = _Call(work(), contextvars.copy_context())

    def start_and_cancel() -> None:
        call.start(asyncio.get_running_loop())
        call.cancel()

    loop.call(start_and_cancel)
    assert call.over.acquire(timeout=30)
    with pytest.raises(asyncio.CancelledError):
        call.result()


def test_work_that_is_cancelled_before_it_is_handed_over(loop: LoopThread) -> None:
    async def work() -> None:
        raise AssertionError("this must not begin")

    call = _Call(work(), contextvars.copy_context())
    loop.call(call.cancel)
    assert call.over.acquire(timeout=30)
    loop.call(lambda: call.start(asyncio.get_running_loop()))
    with pytest.raises(asyncio.CancelledError):
        call.result()


def test_waiting_for_oneself_is_refused(loop: LoopThread) -> None:
    async def work() -> None:
        loop.run(asyncio.sleep(0))

    with pytest.raises(InvalidState, match="wait for itself"):
        loop.run(work())


def test_after_the_end_there_is_no_loop() -> None:
    thread = LoopThread()
    thread.close()
    with pytest.raises(InvalidState, match="ending"):
        thread.run(asyncio.sleep(0))


def test_an_iterator_that_is_left_early_is_closed(loop: LoopThread) -> None:
    closed = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            closed.append(True)

    for number in loop.iterate(numbers()):
        if number == 3:
            break
    assert closed == [True]
    assert list(loop.iterate(numbers())) == list(range(10))


def test_an_interrupt_cancels_the_work(loop: LoopThread) -> None:
    entered, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupt() -> None:
        entered.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    thread.join()
    assert cancelled.is_set()


def test_callbacks_run_outside_the_loop(loop: LoopThread) -> None:
    names: list[str] = []
    callback = in_thread(lambda value: names.append(threading.current_thread().name))
    assert callback is not None
    loop.run(callback("x"))
    assert names
    assert names[0] != "agentenv"
    assert in_thread(None) is None


@pytest.fixture(scope="module")
def sandbox(home: Path) -> Iterator[Sandbox]:
    if not any(probe.usable for probe in probe_all()):
        pytest.skip("no backend works here")
    before = os.environ.get("AGENTENV_HOME")
    os.environ["AGENTENV_HOME"] = str(home)
    try:
        with Sandbox.create() as made:
            yield made
    finally:
        os.environ.pop("AGENTENV_HOME")
        if before is not None:
            os.environ["AGENTENV_HOME"] = before


def test_everything_without_a_coroutine(sandbox: Sandbox, tmp_path: Path) -> None:
    assert sandbox.commands.run("echo hi").stdout == "hi\n"
    sandbox.files.write("/root/x", iter([b"a", b"b"]))
    assert sandbox.files.read("/root/x") == "ab"
    assert b"".join(sandbox.files.read("/root/x", format="stream")) == b"ab"
    with sandbox.shell() as shell:
        shell.run("cd /usr")
        assert shell.run("pwd").stdout == "/usr\n"
    assert sandbox.id in [info.id for info in Sandbox.list()]
    assert Sandbox.connect(sandbox.id).files.exists("/root/x")


def test_a_handle_can_be_iterated_and_a_callback_may_use_the_sandbox(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("echo one; read x; echo $x", background=True, stdin=True)
    assert isinstance(handle, CommandHandle)
    texts: list[str | None] = []
    for piece in handle:
        texts.append(piece.stdout)
        if len(texts) == 1:
            handle.send_stdin("two\n")
    assert texts == ["one\n", "two\n"]
    nested: list[str] = []
    sandbox.commands.run("echo x", on_stdout=lambda text: nested.append(sandbox.commands.run("echo nested").stdout))
    assert nested == ["nested\n"]


def test_threads_do_not_wait_for_each_other(sandbox: Sandbox) -> None:
    results: list[str] = []
    threads = [threading.Thread(target=lambda n=n: results.append(sandbox.commands.run(f"echo {n}").stdout)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [f"{n}\n" for n in range(8)]


def test_a_time_out_is_an_error_here_too(sandbox: Sandbox) -> None:
    with pytest.raises(CommandTimeout):
        sandbox.commands.run("sleep 60", timeout=0.1)


PROGRAM = """
import os, sys
from agentenv.sandbox import Sandbox
box = Sandbox.create()
print(box.id, box.commands.run("echo up").stdout.strip(), flush=True)
if sys.argv[1] == "fork":
    pid = os.fork()
    if pid == 0:
        child = Sandbox.create()
        print("child", child.commands.run("echo child").stdout.strip(), flush=True)
        sys.exit(0)
    os.waitpid(pid, 0)
    print("parent", box.commands.run("echo still").stdout.strip(), flush=True)
if sys.argv[1] == "raise":
    raise SystemExit(3)
"""


@pytest.mark.parametrize(("how", "status"), [("end", 0), ("raise", 3), ("fork", 0)])
def test_the_end_of_the_process_leaves_nothing(sandbox: Sandbox, home: Path, how: str, status: int) -> None:
    environment = {**os.environ, "AGENTENV_HOME": str(home)}
    ended = subprocess.run([sys.executable, "-c", PROGRAM, how], env=environment, capture_output=True, text=True)
    assert ended.returncode == status, ended.stderr
    assert "Traceback" not in ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].endswith(" up")
    assert lines[1:] == (["child child", "parent still"] if how == "fork" else [])
    identifier = lines[0].split()[0]
    assert identifier not in [info.id for info in Sandbox.list()]
    assert not [path for path in (home / "owners").iterdir() if (path / identifier).exists()]
