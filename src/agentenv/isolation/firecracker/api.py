"""Firecracker's HTTP interface over its unix socket: the requests that we make, typed, and one kept-alive connection.

Follows src/firecracker/swagger/firecracker.yaml of Firecracker. What differs between its versions is decided by `Release`.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from agentenv.errors import InfrastructureError, ProtocolError
from agentenv.isolation.vm.streams import connect

SECONDS = 10.0
"""For an answer to what the monitor does at once; copying a memory is given longer."""

_LONGEST_ANSWER = 1 << 20
_HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}
_Answer = TypeVar("_Answer")


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request's body: a field that has its default is left out, so that older versions need not know it."""


class MachineConfig(Message, frozen=True):
    """`mem_size_mib` is fixed at the boot; the balloon takes of it what is not wanted."""

    vcpu_count: int
    mem_size_mib: int
    track_dirty_pages: bool = False
    cpu_template: str | None = None


class BootSource(Message, frozen=True):
    """Paths are the monitor's, as everywhere in this file."""

    kernel_image_path: str
    boot_args: str
    initrd_path: str | None = None


class TokenBucket(Message, frozen=True):
    """`size` tokens (bytes or operations) are given anew every `refill_time` milliseconds. Two zeros lift a limit that was set."""

    size: int
    refill_time: int
    one_time_burst: int | None = None


class RateLimiter(Message, frozen=True):
    """Bytes and operations, each limited by itself; None is unlimited, and in an update leaves the limit as it is."""

    bandwidth: TokenBucket | None = None
    ops: TokenBucket | None = None


UNLIMITED = TokenBucket(0, 0)


class Drive(Message, frozen=True):
    """`cache_type` "Writeback" writes a guest's flush through to the disk; "Unsafe", the default, leaves that to the host's kernel."""

    drive_id: str
    path_on_host: str
    is_root_device: bool
    is_read_only: bool = False
    rate_limiter: RateLimiter | None = None


class NetworkInterface(Message, frozen=True):
    """A tap of the monitor's network namespace."""

    iface_id: str
    host_dev_name: str
    guest_mac: str | None = None
    rx_rate_limiter: RateLimiter | None = None
    tx_rate_limiter: RateLimiter | None = None


class Vsock(Message, frozen=True):
    """The guest's ports, reached through the unix socket `uds_path` (Firecracker, docs/vsock.md)."""

    guest_cid: int
    uds_path: str


class Entropy(Message, frozen=True):
    """A source of random numbers."""

    rate_limiter: RateLimiter | None = None


class Balloon(Message, frozen=True):
    """`stats_polling_interval_s` 0 is without statistics. Whether there are any, and free pages are reported, is settled at the boot."""

    amount_mib: int
    deflate_on_oom: bool
    stats_polling_interval_s: int = 0
    free_page_reporting: bool = False


class BalloonUpdate(Message, frozen=True):
    """The balloon's new size."""

    amount_mib: int


class DriveUpdate(Message, frozen=True):
    """New limits of a drive."""

    drive_id: str
    rate_limiter: RateLimiter


class InterfaceUpdate(Message, frozen=True):
    """New limits of a network interface."""

    iface_id: str
    rx_rate_limiter: RateLimiter | None = None
    tx_rate_limiter: RateLimiter | None = None


class SnapshotCreate(Message, frozen=True):
    """`Diff` writes what the guest has written since the last snapshot, of either type."""

    snapshot_path: str
    mem_file_path: str
    snapshot_type: Literal["Full", "Diff"] = "Full"


class MemoryBackend(Message, frozen=True):
    """The memory's file is mapped privately: the guest's writes stay its own."""

    backend_path: str
    backend_type: Literal["File"]


class SnapshotLoad(Message, frozen=True):
    """Only one of the two names for tracking is known to any one version."""

    snapshot_path: str
    mem_backend: MemoryBackend
    resume_vm: bool = False
    track_dirty_pages: bool = False
    enable_diff_snapshots: bool = False


class State(Message, frozen=True):
    """What a running machine is to be."""

    state: Literal["Paused", "Resumed"]


class Action(Message, frozen=True):
    """Something done once."""

    action_type: Literal["InstanceStart", "FlushMetrics", "SendCtrlAltDel"]


class Version(msgspec.Struct, frozen=True):
    """Of the monitor, as "1.12.1"."""

    firecracker_version: str


class BalloonStatistics(msgspec.Struct, frozen=True):
    """In MiB the balloon's size as it should be and as it is; in bytes what the guest's kernel tells of its memory, once it does."""

    target_mib: int
    actual_mib: int
    free_memory: int | None = None
    available_memory: int | None = None
    total_memory: int | None = None
    oom_kill: int | None = None


class _Fault(msgspec.Struct, frozen=True):
    fault_message: str


class ApiError(InfrastructureError):
    """Firecracker refused a request: its HTTP `status`, and its words in `fault`."""

    def __init__(self, what: str, status: int, fault: str) -> None:
        super().__init__(f"Firecracker refused {what}: {fault.strip().rstrip('.')}.")
        self.status = status
        self.fault = fault


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self.path = path
        self.patience = SECONDS

    def connect(self) -> None:
        self.sock = connect(self.path, self.patience)


class Api:
    """The connection to one monitor. Blocking; may be used from any thread, one request at a time."""

    def __init__(self, socket: Path) -> None:
        """Connects with the first request. `socket`: the host's path of it."""
        self.socket = socket
        self._connection = _UnixConnection(socket)
        self._turn = threading.Lock()

    def connect(self) -> None:
        """Connects now. Raises OSError."""
        with self._turn:
            self._connection.connect()

    def put(self, path: str, body: Message, *, timeout: float = SECONDS) -> None:
        """Makes or does something. Raises as `request`."""
        self.request("PUT", path, body, timeout=timeout)

    def patch(self, path: str, body: Message, *, timeout: float = SECONDS) -> None:
        """Changes something. Raises as `request`."""
        self.request("PATCH", path, body, timeout=timeout)

    def get(self, path: str, kind: type[_Answer], *, timeout: float = SECONDS) -> _Answer:
        """Asks for something. Raises `ProtocolError` for an answer that is no `kind`, and as `request`."""
        answer = self.request("GET", path, None, timeout=timeout)
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"Firecracker's answer to GET {path} is no {kind.__name__}: {error}.") from error

    def request(self, method: str, path: str, body: Message | None, *, timeout: float = SECONDS) -> bytes:
        """One request and its answer's body; `timeout` in seconds is for each wait.

        Raises `ApiError` where it is refused, `ProtocolError` for what is no HTTP, `InfrastructureError` where the monitor does not answer
        or is gone. After a failure the next request connects anew.
        """
        what = f"{method} {path}"
        with self._turn, self._failures(what, timeout):
            status, answer = self._exchange(method, path, None if body is None else msgspec.json.encode(body), timeout)
        if not 200 <= status < 300:
            raise ApiError(what, status, _fault(answer))
        return answer

    @contextmanager
    def _failures(self, what: str, timeout: float) -> Iterator[None]:
        """After anything but a whole answer the connection is closed: the next answer on it might be that of an older request."""
        whole = False
        try:
            yield
            whole = True
        except TimeoutError as error:
            raise InfrastructureError(f"Firecracker has not answered {what} in {timeout:g} s.") from error
        except OSError as error:
            raise InfrastructureError(f"Firecracker cannot be asked for {what}: {error.strerror or error}.") from error
        except (http.client.HTTPException, ValueError) as error:
            raise ProtocolError(f"Firecracker's answer to {what} is no HTTP: {error or type(error).__name__}.") from error
        finally:
            if not whole:
                self._connection.close()

    def _exchange(self, method: str, path: str, body: bytes | None, timeout: float) -> tuple[int, bytes]:
        self._connection.patience = timeout
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout)
        self._connection.request(method, path, body, _HEADERS)
        response = self._connection.getresponse()
        answer = response.read(_LONGEST_ANSWER)
        if not response.isclosed():
            raise http.client.HTTPException("the answer is too long")
        return response.status, answer

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        with self._turn:
            self._connection.close()


def _fault(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Fault).fault_message
    except msgspec.MsgspecError:
        return body.decode(errors="replace")[:400] or "it gave no reason"
