"""A run's directory: what a training writes and everybody else reads.

    manifest.json    what was run: configuration and its hash, seed, versions, machine (written by the training)
    status.json      {state, pid, host, started, updated, finished, max_steps, message}; replaced as a whole
    lock             held (an open-file-description lock) as long as the training lives
    metrics.jsonl    one row a measurement: step, time, episodes, return_mean, loss, …
    metrics.prom     what the training process has counted, in Prometheus' text format; replaced with each row
    events.jsonl     what happened: sandboxes, evaluations, checkpoints
    result.json      how it ended
    checkpoints/     tensorboard/     curve.png

Whether a run lives is asked of the lock, not of the status: a trainer that was killed leaves `state: running` and a free lock, and is
"crashed".
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from agentenv.errors import InvalidState, NotFound
from agentenv.monitoring.events import JsonLinesSink
from agentenv.monitoring.files import read_json, write_json, write_whole
from agentenv.monitoring.lines import last_lines, read_lines
from agentenv.monitoring.run_index import register

State = Literal["running", "finished", "interrupted", "failed", "crashed", "unreadable"]
"""`interrupted` was stopped on purpose and can be resumed; `crashed` ended without a word; `unreadable` has no usable status.json."""

EndState = Literal["finished", "interrupted", "failed"]

# struct flock of fcntl(2): type, whence, start, length, pid (native alignment).
_FLOCK = struct.Struct("hhqqi4x")


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Where a run stands. Times are unix seconds; `updated` is when the status or a metric was last written."""

    state: State
    pid: int | None = None
    host: str | None = None
    started: float | None = None
    updated: float | None = None
    finished: float | None = None
    max_steps: int | None = None
    message: str | None = None

    @property
    def live(self) -> bool:
        """Whether the training runs now."""
        return self.state == "running"


class RunDirectory:
    """Reads one run; needs nothing of its writer and changes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.id = self.path.name
        self.manifest_file = self.path / "manifest.json"
        self.status_file = self.path / "status.json"
        self.lock_file = self.path / "lock"
        self.metrics_file = self.path / "metrics.jsonl"
        self.prometheus_file = self.path / "metrics.prom"
        self.events_file = self.path / "events.jsonl"
        self.result_file = self.path / "result.json"
        self.curve_file = self.path / "curve.png"
        self.checkpoints = self.path / "checkpoints"
        self.tensorboard = self.path / "tensorboard"

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """The run in `path`. Raises `NotFound` where there is none."""
        run = cls(Path(path))
        if not (run.status_file.is_file() or run.manifest_file.is_file()):
            raise NotFound(f"{path} is not the directory of a run.", remedy="`agentenv runs` lists the runs that there are.")
        return run

    @classmethod
    def within(cls, parent: Path) -> list[RunDirectory]:
        """All runs directly in `parent`, in the order of their names; none where that is no directory."""
        with contextlib.suppress(OSError):
            return [
                cls(entry) for entry in sorted(parent.iterdir()) if (entry / "status.json").is_file() or (entry / "manifest.json").is_file()
            ]
        return []

    def is_live(self) -> bool:
        """Whether a training holds the run's lock; asking does not disturb it."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return self._is_locked_read_only()
        try:
            return _is_locked(descriptor, fcntl.F_WRLCK)
        finally:
            os.close(descriptor)

    def _is_locked_read_only(self) -> bool:
        """The same for another user's run, whose lock file may only be read."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return _is_locked(descriptor, fcntl.F_RDLCK)
        finally:
            os.close(descriptor)

    def status(self) -> RunStatus:
        """The run's status, corrected by whether it lives."""
        live = self.is_live()
        data = read_json(self.status_file)
        if data is None:
            return RunStatus("running" if live else "unreadable")
        known: dict[str, Any] = {name: data.get(name) for name in RunStatus.__slots__}
        status = RunStatus(**known)
        if live:
            return replace(status, state="running", updated=self._last_written(status.updated))
        return replace(status, state="crashed", updated=self._last_written(status.updated)) if status.state == "running" else status

    def _last_written(self, updated: float | None) -> float | None:
        with contextlib.suppress(FileNotFoundError):
            return max(updated or 0.0, self.metrics_file.stat().st_mtime)
        return updated

    def manifest(self) -> dict[str, Any]:
        """What was run; empty where it was not written."""
        return read_json(self.manifest_file) or {}

    def result(self) -> dict[str, Any] | None:
        """How it ended; None where it has not."""
        return read_json(self.result_file)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """All rows of metrics, the oldest first."""
        return read_lines(self.metrics_file)

    def last_metrics(self, count: int) -> list[dict[str, Any]]:
        """The last `count` rows of metrics, the oldest first."""
        return last_lines(self.metrics_file, count)

    def prometheus(self) -> str:
        """What the training process has counted (its environments' steps, episodes, faults and times), empty where it wrote nothing."""
        try:
            return self.prometheus_file.read_text()
        except FileNotFoundError:
            return ""

    def events(self) -> Iterator[dict[str, Any]]:
        """All events, the oldest first."""
        return read_lines(self.events_file)

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"


class RunWriter:
    """Writes one run and keeps it locked; a context manager that marks the run "failed" when an exception leaves it."""

    def __init__(self, run: RunDirectory, lock: int, status: RunStatus) -> None:
        self.run = run
        self._lock: int | None = lock
        self._status = status
        self.events = JsonLinesSink(run.events_file)
        self._metrics = JsonLinesSink(run.metrics_file)
        self.update()

    @classmethod
    def create(cls, parent: str | Path = "runs", *, run_id: str | None = None, max_steps: int | None = None) -> RunWriter:
        """A new run in a directory of its own under `parent` (made where missing); `run_id` defaults to the time and four random digits.

        Raises `InvalidState` where `run_id` exists, OSError where nothing can be written.
        """
        path = Path(parent).absolute() / (run_id or new_run_id())
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            raise InvalidState(f"there is already a run in {path}.", remedy="Choose another directory, or resume that run.") from None
        run = RunDirectory(path)
        run.checkpoints.mkdir()
        writer = cls(run, _take_lock(run), _new_status(max_steps))
        register(path)
        return writer

    @classmethod
    def resume(cls, run: RunDirectory, *, max_steps: int | None = None) -> RunWriter:
        """Goes on writing a run that has ended. Raises `InvalidState` while another process writes it."""
        lock = _take_lock(run)
        before = run.status()
        return cls(run, lock, replace(_new_status(max_steps or before.max_steps), started=before.started or time.time()))

    def update(self, *, message: str | None = None, max_steps: int | None = None) -> None:
        """Writes the status anew, with what is given changed."""
        self._status = replace(
            self._status,
            updated=time.time(),
            message=message if message is not None else self._status.message,
            max_steps=max_steps if max_steps is not None else self._status.max_steps,
        )
        write_json(self.run.status_file, asdict(self._status))

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Writes what is run; see the module's description."""
        write_json(self.run.manifest_file, manifest, durable=True)

    def log(self, step: int, **values: object) -> None:
        """Adds one row of metrics. `step` counts environment steps; the names that readers know are in docs/monitoring.md."""
        self._metrics.write({"step": step, "time": time.time()} | values)

    def write_prometheus(self, text: str) -> None:
        """Replaces what the training process has counted, in Prometheus' text format."""
        write_whole(self.run.prometheus_file, text.encode())

    def finish(self, state: EndState = "finished", *, result: Mapping[str, Any] | None = None, message: str | None = None) -> None:
        """Marks the run as ended, writes `result` where given, and frees the lock. Idempotent: the first end counts."""
        if self._lock is None:
            return
        if result is not None:
            write_json(self.run.result_file, result, durable=True)
        now = time.time()
        self._status = replace(self._status, state=state, updated=now, finished=now, message=message or self._status.message)
        write_json(self.run.status_file, asdict(self._status), durable=True)
        self.close()

    def close(self) -> None:
        """Frees the lock and the files without changing the status; idempotent. A run that was not finished counts as crashed."""
        self.events.close()
        self._metrics.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.finish("interrupted", message="interrupted")
        elif error is not None:
            self.finish("failed", message=f"{type(error).__name__}: {error}")
        else:
            self.finish()


def new_run_id() -> str:
    """A name that sorts by time and that two runs begun in the same second do not share: 20250131-235959-1a2b."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _new_status(max_steps: int | None) -> RunStatus:
    return RunStatus("running", pid=os.getpid(), host=socket.gethostname(), started=time.time(), max_steps=max_steps)


def _is_locked(descriptor: int, kind: int) -> bool:
    """Whether another open file holds a lock that one of `kind` would have to wait for."""
    query = _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, query)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _take_lock(run: RunDirectory) -> int:
    """Locks a run for this process until the returned descriptor is closed. Raises `InvalidState` where another has it."""
    descriptor = os.open(run.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except (BlockingIOError, PermissionError):
        os.close(descriptor)
        pid = (read_json(run.status_file) or {}).get("pid")
        raise InvalidState(f"run {run.id} is being written by process {pid}.", remedy="Wait for its end, or stop that process.") from None
    return descriptor
