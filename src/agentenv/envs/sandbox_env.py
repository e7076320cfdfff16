"""`SandboxEnv`: one environment in a sandbox of its own, as a Gymnasium environment."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium
from gymnasium import spaces

from agentenv.envs import episodes
from agentenv.envs.batch import ActionRows, AnswerRows, argmax_scores
from agentenv.envs.guest import values
from agentenv.envs.guest.wire import TERMINATED, TRUNCATED, Kind, frame
from agentenv.envs.gymnasium_spaces import build
from agentenv.envs.handle import EnvTimeouts, SandboxFactory, SandboxHandle, SandboxSettings
from agentenv.envs.lane import Lane
from agentenv.envs.opening import Plan, plan
from agentenv.errors import InvalidState


class SandboxEnv(gymnasium.Env[Any, Any]):
    """One environment in a sandbox of its own.

    `name` is a registered environment, `gymnasium:ID`, `module:Class` or `path.py:Class`; `options` are its keyword arguments. `settings`
    (or its fields as keywords: `image`, `isolation`, `resources`, `network`, `ports`, `env`, `metadata`) say what the sandbox is like.

    A step or reset raises `SandboxDied` (or another `InfrastructureError`, `OutOfMemory` say) when the sandbox or the environment's
    process ends, `EnvironmentTimeout` when no answer comes in time, and `EnvironmentFault` with the traceback when the environment's own
    code raises. After an `InfrastructureError` the episode is lost: `restore` a snapshot, or make a new environment.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 30}  # noqa: RUF012 - as Gymnasium declares it; an instance has its own
    """What `gymnasium.make` compares a render mode with before there is an environment to ask."""

    def __init__(
        self,
        name: str = "basic_rl_env",
        *,
        options: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
        settings: SandboxSettings | None = None,
        timeouts: EnvTimeouts | None = None,
        factory: SandboxFactory | None = None,
        **changes: Any,
    ) -> None:
        wanted = plan(name, options=options, render_mode=render_mode, settings=settings, timeouts=timeouts, factory=factory, **changes)
        self._begin(wanted, Lane.open(wanted.sandbox, wanted.spec, wanted.timeouts))

    @classmethod
    def _around(cls, wanted: Plan, lane: Lane) -> SandboxEnv:
        env = cls.__new__(cls)
        env._begin(wanted, lane)
        return env

    def _begin(self, wanted: Plan, lane: Lane) -> None:
        hello = lane.hello
        self._plan = wanted
        self.render_mode = wanted.spec.render_mode
        self.metadata = {"render_modes": list(hello.render_modes), "render_fps": hello.render_fps or 30}
        self.observation_space = build(hello.observation)
        self.action_space = build(hello.action)
        self._scored = self.action_space if hello.accepts_scores else None
        self._actions = ActionRows(hello.action, 1)
        self._answers = AnswerRows(hello.observation, self.observation_space, 1)
        self._hold(lane)

    def _hold(self, lane: Lane) -> None:
        """Takes a lane over; it ends when this object is closed or forgotten."""
        self._lane: Lane | None = lane
        self._finalizer = weakref.finalize(self, lane.close, gracefully=False)
        self._finalizer.atexit = False  # sandboxes end with their process anyway

    @property
    def lane(self) -> Lane:
        """The sandbox, process and stream behind this environment. Raises `InvalidState` when it is closed."""
        if self._lane is None:
            raise InvalidState("the environment is closed.")
        return self._lane

    @property
    def sandbox(self) -> SandboxHandle:
        """The sandbox that the environment lives in."""
        return self.lane.sandbox

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode. The same `seed` gives the same episode in every sandbox and process."""
        super().reset(seed=seed)
        lane, limit = self.lane, self.lane.timeouts.reset
        request = frame(Kind.RESET, values.dumps({"seed": None if seed is None else int(seed), "options": options}))
        with lane.doing("reset", limit, "timeouts.reset"):
            lane.stream.limit(limit)
            _, info = self._exchange(lane, request)
            lane.stream.limit(lane.timeouts.step)
        return self._answers.one(0), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Acts once. Where the environment accepts scores, `action` may be a score for each choice: the highest acts."""
        lane = self.lane
        if isinstance(self._scored, spaces.Discrete):
            action = argmax_scores(action, self._scored, None)
        self._actions.fill_one(action, self.action_space)
        with lane.doing("step", lane.timeouts.step, "timeouts.step"):
            flags, info = self._exchange(lane, self._actions.frames[0])
        return self._answers.one(0), float(self._answers.rewards[0]), bool(flags & TERMINATED), bool(flags & TRUNCATED), info

    def _exchange(self, lane: Lane, request: bytes | memoryview) -> tuple[int, dict[str, Any]]:
        lane.stream.send(request)
        count = lane.socket.recv_into(self._answers.slots[0])
        if count == self._answers.plain_size and self._answers.all_plain():
            return 0, {}
        return self._answers.finish(0, count, lane.socket, lane.hello.environment)

    def render(self) -> Any:
        """What the environment's own `render` returns in `render_mode`."""
        return self.lane.render()

    def call(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        """Calls a method of the environment (or reads an attribute). Arguments and result travel as JSON and numpy arrays."""
        return self.lane.call(name, arguments, keywords)

    def save(self) -> bytes:
        """The episode as bytes that `load` of the same environment takes. Raises `CapabilityError` where the environment cannot do it."""
        return self.lane.save()

    def load(self, state: bytes) -> None:
        """Goes on with an episode that `save` returned."""
        self.lane.load(state)

    def snapshot(self, name: str | None = None) -> str:
        """Keeps the sandbox and the episode as they are now, and returns the snapshot's id. The episode goes on.

        Raises `CapabilityError` where neither the backend can snapshot memory nor the environment save itself.
        """
        return episodes.snapshot(self.lane, name)

    def restore(self, snapshot: str) -> None:
        """Puts the sandbox and the episode back to what they were when `snapshot` was taken. Works after the sandbox has died, too."""
        lane = self.lane
        self._finalizer.detach()
        self._lane = None
        self._hold(episodes.restore(lane, self._plan, snapshot))

    def fork(self, count: int) -> list[SandboxEnv]:
        """So many new environments, each in a sandbox of its own, all in the same episode at the same step as this one.

        Their randomness goes on from the same state: what differs afterwards is what is done to them (or a `reset` with a seed).
        """
        return [SandboxEnv._around(self._plan, lane) for lane in episodes.fork(self.lane, self._plan, count)]

    def close(self) -> None:
        """Closes the environment and ends its sandbox; idempotent."""
        if self._lane is not None:
            self._finalizer.detach()
            lane, self._lane = self._lane, None
            lane.close()
