"""What Firecracker counts: read from the pipe into which it writes a line of JSON whenever it is told to, and once a minute."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

import msgspec

_CHUNK = 65536


class _Block(msgspec.Struct, frozen=True):
    read_bytes: int = 0
    write_bytes: int = 0


class _Net(msgspec.Struct, frozen=True):
    rx_bytes_count: int = 0
    tx_bytes_count: int = 0


class _Seccomp(msgspec.Struct, frozen=True):
    num_faults: int = 0


class _Line(msgspec.Struct, frozen=True):
    """Each number counts what has come since the line before (Firecracker, docs/metrics.md)."""

    block: _Block = _Block()
    net: _Net = _Net()
    seccomp: _Seccomp = _Seccomp()


@dataclass(frozen=True, slots=True)
class Metrics:
    """Since the machine's start, in bytes; `seccomp_faults` are calls that the monitor's own filter has refused."""

    disk_read: int = 0
    disk_written: int = 0
    network_received: int = 0
    network_sent: int = 0
    seccomp_faults: int = 0


@dataclass(slots=True)
class Meter:
    """Adds up the lines of one monitor; `pipe` is the reading end, which does not block."""

    pipe: int
    total: Metrics = field(default_factory=Metrics)
    _rest: bytes = b""

    def read(self) -> Metrics:
        """Takes what has been written. What is no line of metrics is left out."""
        self._rest += _drained(self.pipe)
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self._add(line)
        return self.total

    def _add(self, text: bytes) -> None:
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.MsgspecError:
            return  # the pipe was full in the middle of it
        known = self.total
        self.total = Metrics(
            known.disk_read + line.block.read_bytes,
            known.disk_written + line.block.write_bytes,
            known.network_received + line.net.rx_bytes_count,
            known.network_sent + line.net.tx_bytes_count,
            known.seccomp_faults + line.seccomp.num_faults,
        )


def _drained(pipe: int) -> bytes:
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(pipe, _CHUNK)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            part = b""
        if not part:
            return b"".join(parts)
        parts.append(part)
