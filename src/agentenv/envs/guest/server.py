"""Serves one environment over a unix socket, in the step protocol (docs/step-protocol.md).

When the socket listens and the environment is built, one line, `ready`, goes to standard output (`failed {…}` when it cannot be built);
what the environment itself prints goes to standard error. One host is served at a time; when it hangs up the episode stays, and the next
one to connect finds it as it was.
"""

from __future__ import annotations

import argparse
import gc
import os
import select
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from agentenv.envs.guest import values
from agentenv.envs.guest.codec import action_reader, array_view, conform, observation_writer
from agentenv.envs.guest.layout import layout_of
from agentenv.envs.guest.loading import load
from agentenv.envs.guest.saving import portable
from agentenv.envs.guest.spaces import describe, is_gymnasium
from agentenv.envs.guest.wire import (
    HEADER,
    OBSERVATION_OFFSET,
    OUTCOME,
    PLAIN_RESET,
    PROTOCOL,
    REWARD,
    TERMINATED,
    TRANSITION_HEAD,
    TRUNCATED,
    EndOfStream,
    Kind,
    WireError,
    frame,
    parse_header,
    receive_exactly,
)

Buffer = bytes | bytearray
_TRACEBACK_LIMIT: Final = 65_536


class Server:
    """One environment, and what the frames ask of it."""

    def __init__(self, environment: Any, name: str) -> None:
        self.environment = environment
        self.name = name
        self.closed = False
        self.portable = portable(environment)
        self.observation = describe(environment.observation_space)
        self.action = describe(environment.action_space)
        observations, actions = layout_of(self.observation), layout_of(self.action)
        self._answer = bytearray(OBSERVATION_OFFSET + (observations.size if observations else 0))
        self._write = observation_writer(self.observation, self._answer, OBSERVATION_OFFSET)
        self._action_size = actions.size if actions else None
        self._request = bytearray(HEADER.size + max(4096, self._action_size or 0))
        scalars = is_gymnasium(environment.action_space)
        self._read = action_reader(self.action, self._request, HEADER.size, numpy_scalars=scalars)
        self._handlers: dict[Kind, Callable[[memoryview], Buffer]] = {
            Kind.RESET: self._reset,
            Kind.STEP: self._step,
            Kind.SAVE: self._save,
            Kind.LOAD: self._load,
            Kind.RENDER: self._render,
            Kind.CALL: self._call,
            Kind.SET: self._set,
            Kind.CLOSE: self._close,
        }

    def hello(self) -> bytes:
        """The first frame of every connection: what this environment is."""
        base = getattr(self.environment, "unwrapped", self.environment)
        metadata = getattr(self.environment, "metadata", {})
        modes = getattr(base, "render_modes", None) or metadata.get("render_modes", ())
        content = {
            "protocol": PROTOCOL,
            "environment": self.name,
            "observation_space": self.observation,
            "action_space": self.action,
            "render_modes": [mode for mode in modes if mode],
            "render_mode": getattr(self.environment, "render_mode", None),
            "render_fps": getattr(base, "render_fps", None) or metadata.get("render_fps"),
            "capabilities": {"save": self.portable is not None, "scores": bool(getattr(base, "accepts_scores", False))},
        }
        return frame(Kind.HELLO, values.dumps(content))

    def serve(self, stream: socket.socket) -> None:
        """Answers one host until it hangs up or asks to close. Raises `WireError` when it breaks the protocol."""
        stream.sendall(self.hello())
        request, receive, send, step = self._request, stream.recv_into, stream.sendall, self._quick_step()
        usual = HEADER.pack(self._action_size or 0, Kind.STEP, 0, 0)
        usual_size = -1 if self._action_size is None else HEADER.size + self._action_size
        # Waiting in poll() and not in recv(): the host's reading of the last answer wakes a sleeper in recv() for nothing, once a step.
        poller = select.poll()
        poller.register(stream, select.POLLIN)
        wait = poller.poll
        while not self.closed:
            wait()
            count = receive(request)
            if count == usual_size and request.startswith(usual):
                send(step())
            elif count:
                handler, content = self._complete(stream, count)
                send(self._guarded(handler, content))
            else:
                return

    def _quick_step(self) -> Callable[[], Buffer]:
        """A function that does the step in the request buffer. An ordinary one (an array, no end, no info) costs it next to nothing."""
        action: Callable[[], Any] = self._read or (lambda: None)  # without fixed actions no request is ordinary
        transition, step = self._transition, self.environment.step
        plain = bytearray(self._answer)
        view = array_view(self.observation, plain, OBSERVATION_OFFSET)
        kind, shape = (type(view), view.shape) if view is not None else (None, None)
        TRANSITION_HEAD.pack_into(plain, 0, len(plain) - HEADER.size, Kind.TRANSITION, 0, 0, 0.0, 0, 0)
        put_reward = REWARD.pack_into

        def quick_step() -> Buffer:
            try:
                observation, reward, terminated, truncated, info = step(action())
                if terminated or truncated or info or type(observation) is not kind or observation.shape != shape:
                    return transition(observation, float(reward), _flags(terminated, truncated), info)
                view[...] = observation
                put_reward(plain, HEADER.size, reward)
            except Exception as problem:  # noqa: BLE001 - an environment may raise anything, and the host is to hear of it
                return error(problem)
            return plain

        return quick_step

    def _complete(self, stream: socket.socket, count: int) -> tuple[Callable[[memoryview], Buffer], memoryview]:
        """The rest of a request of which `count` bytes have arrived: (who handles it, its body)."""
        view = memoryview(self._request)
        if count < HEADER.size:
            receive_exactly(stream, view[count : HEADER.size])
            count = HEADER.size
        length, kind, _ = parse_header(view)
        if kind not in self._handlers:
            raise WireError(f"the host sent a {kind.name}, which is an answer")
        if count > HEADER.size + length:
            raise WireError("the host sent a request before it had the last one's answer")
        if kind is Kind.STEP and self._action_size not in (None, length):
            raise WireError(f"the host sent an action of {length} bytes; the space takes {self._action_size}")
        if HEADER.size + length <= len(view):
            receive_exactly(stream, view[count : HEADER.size + length])
            return self._handlers[kind], view[HEADER.size : HEADER.size + length]
        body = bytearray(length)
        body[: count - HEADER.size] = view[HEADER.size : count]
        receive_exactly(stream, memoryview(body)[count - HEADER.size :])
        return self._handlers[kind], memoryview(body)

    def _guarded(self, handler: Callable[[memoryview], Buffer], body: memoryview) -> Buffer:
        try:
            return handler(body)
        except Exception as problem:  # noqa: BLE001 - an environment may raise anything, and the host is to hear of it
            return error(problem)

    def _step(self, body: memoryview) -> Buffer:
        action = self._read() if self._read is not None else conform(self.action, values.loads(body))
        observation, reward, terminated, truncated, info = self.environment.step(action)
        return self._transition(observation, float(reward), _flags(terminated, truncated), info)

    def _reset(self, body: memoryview) -> Buffer:
        if bytes(body) == PLAIN_RESET:
            seed, options = None, None
        else:
            request = values.loads(body)
            seed, options = request["seed"], request["options"]
        observation, info = self.environment.reset(seed=seed, options=options)
        return self._transition(observation, 0.0, 0, info)

    def _transition(self, observation: Any, reward: float, flags: int, info: dict[str, Any]) -> Buffer:
        extra = values.dumps(info) if info else b""
        answer = self._answer
        if self._write is not None:
            self._write(observation)
            TRANSITION_HEAD.pack_into(answer, 0, len(answer) - HEADER.size + len(extra), Kind.TRANSITION, flags, 0, reward, len(extra), 0)
            return answer + extra if extra else answer
        content = values.dumps(observation)
        body = frame(Kind.TRANSITION, OUTCOME.pack(reward, len(extra), 0) + content + extra)
        return body[:5] + bytes([flags]) + body[6:]

    def _save(self, body: memoryview) -> Buffer:
        if self.portable is None:
            raise TypeError(f"{self.name} has no save() and load()")
        return frame(Kind.STATE, bytes(self.portable.save()))

    def _load(self, body: memoryview) -> Buffer:
        if self.portable is None:
            raise TypeError(f"{self.name} has no save() and load()")
        self.portable.load(bytes(body))
        return frame(Kind.VALUE, b"null")

    def _render(self, body: memoryview) -> Buffer:
        return frame(Kind.VALUE, values.dumps(self.environment.render()))

    def _call(self, body: memoryview) -> Buffer:
        request = values.loads(body)
        found = getattr(self.environment, "get_wrapper_attr", self._attribute)(request["name"])
        result = found(*request["args"], **request["kwargs"]) if callable(found) else found
        return frame(Kind.VALUE, values.dumps(result))

    def _attribute(self, name: str) -> Any:
        return getattr(self.environment, name)

    def _set(self, body: memoryview) -> Buffer:
        request = values.loads(body)
        if hasattr(self.environment, "set_wrapper_attr"):
            self.environment.set_wrapper_attr(request["name"], request["value"])
        else:
            setattr(self.environment, request["name"], request["value"])
        return frame(Kind.VALUE, b"null")

    def _close(self, body: memoryview) -> Buffer:
        self.closed = True
        close = getattr(self.environment, "close", None)
        if close is not None:
            close()
        return frame(Kind.VALUE, b"null")


def _flags(terminated: Any, truncated: Any) -> int:
    return (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)


def error(problem: BaseException) -> bytes:
    """The ERROR frame for an exception."""
    return frame(Kind.ERROR, values.dumps(failure(problem)))


def failure(problem: BaseException) -> dict[str, str]:
    """What the host is told of an exception: its class, its message, the last of its traceback."""
    text = "".join(traceback.format_exception(problem))
    return {"type": type(problem).__name__, "message": str(problem)[-_TRACEBACK_LIMIT:], "traceback": text[-_TRACEBACK_LIMIT:]}


def serve_forever(server: Server, listener: socket.socket) -> None:
    """Serves one host after the other until one asks to close."""
    while not server.closed:
        stream, _ = listener.accept()
        with stream:
            try:
                server.serve(stream)
            except (EndOfStream, ConnectionError):
                continue
            except WireError as problem:
                sys.stderr.write(f"agentenv: {problem}; hanging up\n")


def listen(path: str) -> socket.socket:
    """A unix socket at `path` that only this user can connect to."""
    Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    Path(path).chmod(0o600)
    listener.listen(4)
    return listener


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds the environment, says so, serves it. Returns the exit status: 0 when a host asked to close, 1 when it could not be built."""
    parser = argparse.ArgumentParser(prog="python -m agentenv.envs.guest", description="Serve one environment in the step protocol.")
    parser.add_argument("environment", help="gymnasium:ID, module:Class or path.py:Class")
    parser.add_argument("--name", help="what to call it in errors (else as given)")
    parser.add_argument("--socket", required=True, help="where to listen")
    parser.add_argument("--options", default="{}", help="keyword arguments of the environment, as JSON (docs/step-protocol.md)")
    parser.add_argument("--render-mode", help="what render() is to return")
    parser.add_argument("--state", help="a file with a saved episode to go on with")
    parser.add_argument("--path", action="append", default=[], help="a folder to import modules from")
    chosen = parser.parse_args(arguments)
    report = os.dup(1)
    os.dup2(2, 1)
    sys.path[:0] = chosen.path
    try:
        environment = load(chosen.environment, values.loads(chosen.options.encode()), chosen.render_mode)
        server = Server(environment, chosen.name or chosen.environment)
        if chosen.state is not None:
            if server.portable is None:
                raise TypeError(f"{chosen.environment} has no load()")
            server.portable.load(Path(chosen.state).read_bytes())
        listener = listen(chosen.socket)
    except Exception as problem:  # noqa: BLE001 - the environment's constructor may raise anything, and the host is to hear of it
        os.write(report, b"failed " + values.dumps(failure(problem)) + b"\n")
        return 1
    gc.freeze()  # what the imports brought stays for good: the collector need not look at it again
    os.write(report, b"ready\n")
    os.close(report)
    with listener:
        serve_forever(server, listener)
    return 0
