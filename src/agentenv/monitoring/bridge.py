"""Turns events into metrics."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from typing import Any

from agentenv.errors import Stage
from agentenv.monitoring.metrics import Metrics


class MetricsSink:
    """Counts what a node tells: sandboxes by backend and state, their starts with each stage, their ends, what was reconciled.

    Give it to `Node.open(events=…)`, beside a log through `FanOut`; the events and their fields are listed in docs/monitoring.md.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._alive: dict[str, tuple[str, str]] = {}
        self._handlers = {
            "sandbox.created": self._created,
            "sandbox.start_failed": self._start_failed,
            "sandbox.paused": self._paused,
            "sandbox.resumed": self._resumed,
            "sandbox.ended": self._ended,
            "sandbox.died": self._ended,
            "node.opened": self._node_opened,
        }

    def emit(self, event: str, **fields: object) -> None:
        """Counts the event where it is one of those that are counted."""
        handler = self._handlers.get(event)
        if handler is not None:
            with self._lock:
                handler(event, fields)

    def _created(self, _: str, fields: Mapping[str, Any]) -> None:
        backend = str(fields.get("backend", ""))
        self._metrics.sandboxes.record_start(backend, [Stage(name, seconds) for name, seconds in fields.get("stages", {}).items()])
        self._set(str(fields["id"]), (backend, "running"))

    def _start_failed(self, _: str, __: Mapping[str, Any]) -> None:
        self._metrics.sandboxes.failed.inc()

    def _paused(self, _: str, fields: Mapping[str, Any]) -> None:
        self._change(str(fields["id"]), "paused")

    def _resumed(self, _: str, fields: Mapping[str, Any]) -> None:
        self._change(str(fields["id"]), "running")

    def _ended(self, event: str, fields: Mapping[str, Any]) -> None:
        identifier = str(fields["id"])
        backend, _ = self._alive.get(identifier, ("", ""))
        self._metrics.sandboxes.ended.labels(backend, "died" if event == "sandbox.died" else "ended").inc()
        self._metrics.sandboxes.forget(identifier)
        self._set(identifier, None)

    def _node_opened(self, _: str, fields: Mapping[str, Any]) -> None:
        self._metrics.node.reconciled.labels(socket.gethostname(), "owner").inc(len(fields.get("reconciled", ())))

    def _change(self, identifier: str, state: str) -> None:
        if identifier in self._alive:
            self._set(identifier, (self._alive[identifier][0], state))

    def _set(self, identifier: str, now: tuple[str, str] | None) -> None:
        """Moves a sandbox from its state so far to another, or out of all."""
        before = self._alive.pop(identifier, None)
        if before is not None:
            self._metrics.sandboxes.live.labels(*before).dec()
        if now is not None:
            self._alive[identifier] = now
            self._metrics.sandboxes.live.labels(*now).inc()
