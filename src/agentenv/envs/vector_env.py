"""`SandboxVectorEnv`: many environments, each in a sandbox of its own, stepped together."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from agentenv.envs.batch import ActionRows, AnswerRows, argmax_scores
from agentenv.envs.exchange import Answer, exchange
from agentenv.envs.guest import values
from agentenv.envs.guest.wire import PLAIN_RESET, TERMINATED, TRUNCATED, Kind, frame
from agentenv.envs.gymnasium_spaces import build
from agentenv.envs.handle import EnvTimeouts, SandboxFactory, SandboxHandle, SandboxSettings
from agentenv.envs.lane import Lane
from agentenv.envs.lanes import Lanes, close_all
from agentenv.envs.opening import plan
from agentenv.errors import AgentEnvError, EnvironmentFault, InvalidState

_PLAIN_RESET: Final = frame(Kind.RESET, PLAIN_RESET)
Mask = NDArray[np.bool_]
StepResult = tuple[Any, NDArray[np.float64], Mask, Mask, dict[str, Any]]


class SandboxVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """`num_envs` environments of one kind, each in a sandbox of its own, as a Gymnasium vector environment.

    Takes what `SandboxEnv` takes. Observations, rewards, flags, infos and all three autoreset modes are those of Gymnasium's
    `SyncVectorEnv`.

    A lane whose sandbox (or environment process) fails in an episode does not stop the others. Its transition is marked by
    `infos["infra_error"][lane]`, a message, and `infos["_infra_error"]`, the mask; it has reward 0, truncated set, and the last
    observation that is known (in SAME_STEP mode that one is in `final_obs`). **A learner must drop that transition**: it says nothing
    about the action. The lane gets a new sandbox at its next reset, with a seed derived from its old one. When a lane fails more than
    `max_replacements` times without finishing an episode in between, the last error is raised.

    When an environment's own code raises, `EnvironmentFault` is raised after all lanes have answered; `reset` begins anew.
    """

    def __init__(
        self,
        name: str = "basic_rl_env",
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        options: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
        settings: SandboxSettings | None = None,
        timeouts: EnvTimeouts | None = None,
        factory: SandboxFactory | None = None,
        max_replacements: int = 3,
        **changes: Any,
    ) -> None:
        if num_envs < 1:
            raise AgentEnvError(f"num_envs is {num_envs}; it must be at least 1.")
        self.num_envs = num_envs
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.render_mode = render_mode
        wanted = plan(name, options=options, render_mode=render_mode, settings=settings, timeouts=timeouts, factory=factory, **changes)
        self._lanes = Lanes(wanted, num_envs, max_replacements=max_replacements)
        self._finalizer = weakref.finalize(self, close_all, self._lanes.all, gracefully=False)
        self._finalizer.atexit = False  # sandboxes end with their process anyway
        self._places = range(num_envs)
        self._ended: Mask = np.zeros(num_envs, dtype=np.bool_)
        self._nowhere: Mask = self._ended.copy()
        self._any_ended = False
        self._measure(self._lanes.all[0])

    def _measure(self, lane: Lane) -> None:
        """Spaces and buffers, from what the first lane said of itself."""
        hello, count = lane.hello, self.num_envs
        self.single_observation_space = build(hello.observation)
        self.single_action_space = build(hello.action)
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)
        self.metadata = {
            "render_modes": list(hello.render_modes),
            "render_fps": hello.render_fps or 30,
            "autoreset_mode": self.autoreset_mode,
        }
        self._scored = self.single_action_space if hello.accepts_scores else None
        self._actions = ActionRows(hello.action, count)
        self._answers = AnswerRows(hello.observation, self.single_observation_space, count)
        self._before = AnswerRows(hello.observation, self.single_observation_space, count)

    @property
    def sandboxes(self) -> list[SandboxHandle]:
        """The sandbox of each lane; it changes when the lane is replaced."""
        return [lane.sandbox for lane in self._lanes.all]

    def failure(self, place: int) -> AgentEnvError | None:
        """Why the lane is of no use until its next reset; None while it is well."""
        return self._lanes.all[place].broken

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins new episodes: in every lane, or in those that `options["reset_mask"]` (a boolean array) names.

        An integer `seed` gives lane i the seed `seed + i`.
        """
        self._require_open()
        seeds = self._spread(seed)
        passed = None if options is None else {key: value for key, value in options.items() if key != "reset_mask"}
        mask = None if options is None else options.get("reset_mask")
        places = list(self._places) if mask is None else self._masked(mask)
        for place in places:
            self._lanes.seed(place, seeds[place])
        begun = self._begin_episodes(places, seeds, passed)
        self._ended[places] = False
        self._any_ended = bool(self._ended.any())
        infos: dict[str, Any] = {}
        for place in places:
            infos = self._add_info(infos, begun[place], place)
        return self._answers.all(), infos

    def step(self, actions: Any) -> StepResult:
        """Acts once in every lane. Where the environment accepts scores, `actions` may be a score for each choice: (num_envs, choices)."""
        self._require_open()
        if isinstance(self._scored, spaces.Discrete):
            actions = argmax_scores(actions, self._scored, self.num_envs)
        self._actions.fill(actions, self.action_space)
        frames = self._actions.frames
        beginning: list[int] = []
        if self._any_ended:
            frames, beginning = self._with_resets(frames)
        self._before, self._answers = self._answers, self._before
        answers = exchange(self._lanes, self._places, frames, self._answers)
        if answers is None and not beginning:
            return self._answers.all(), self._answers.rewards.copy(), self._nowhere.copy(), self._nowhere.copy(), {}
        return self._conclude(answers or [(0, {})] * self.num_envs, beginning)

    def _with_resets(self, frames: Sequence[bytes | memoryview]) -> tuple[list[bytes | memoryview], list[int]]:
        """NEXT_STEP: lanes whose episode has ended begin the next one in place of acting. Returns the frames, and which lanes those are."""
        beginning = np.flatnonzero(self._ended).tolist()
        if self.autoreset_mode is AutoresetMode.DISABLED:
            raise InvalidState(
                f"the episodes of lanes {beginning} have ended; reset them with options={{'reset_mask': …}} before the next step."
            )
        seeds = self._lanes.mend(beginning)
        mixed = list(frames)
        for place in beginning:
            mixed[place] = reset_frame(seeds.get(place), None)
            self._lanes.all[place].stream.limit(self._lanes.all[place].timeouts.reset)
        return mixed, beginning

    def _conclude(self, answers: list[Answer], beginning: list[int]) -> StepResult:
        """Flags, infos and what the autoreset mode asks for, out of the lanes' answers."""
        for place in beginning:
            self._lanes.all[place].stream.limit(self._lanes.all[place].timeouts.step)
        terminated, truncated = self._flags(answers, beginning)
        self._ended = terminated | truncated
        self._any_ended = bool(self._ended.any())
        raise_faults(answers)
        lane_infos = self._lane_infos(answers, beginning)
        rewards = self._answers.rewards.copy()
        for place in beginning:
            rewards[place] = 0.0
        finals: dict[int, Any] = {}
        begun: dict[int, dict[str, Any]] = {}
        if self._any_ended and self.autoreset_mode is AutoresetMode.SAME_STEP:
            finals = {place: self._answers.one(place) for place in np.flatnonzero(self._ended).tolist()}
            begun = self._begin_episodes(list(finals), [None] * self.num_envs, None)
            self._ended, self._any_ended = self._nowhere.copy(), False
        infos: dict[str, Any] = {}
        for place, info in enumerate(lane_infos):
            if place in finals:
                failure = {"infra_error": info["infra_error"]} if isinstance(answers[place], AgentEnvError) else {}
                infos = self._add_info(infos, {"final_obs": finals[place], "final_info": info, **failure}, place)
                info = begun[place]
            if info:
                infos = self._add_info(infos, info, place)
        return self._answers.all(), rewards, terminated, truncated, infos

    def _flags(self, answers: list[Answer], beginning: list[int]) -> tuple[Mask, Mask]:
        """Which lanes terminated and which were truncated; a lane that failed was cut short, one that has just begun neither."""
        terminated, truncated = self._nowhere.copy(), self._nowhere.copy()
        for place, answer in enumerate(answers):
            if place in beginning or isinstance(answer, EnvironmentFault):
                continue
            if isinstance(answer, AgentEnvError):
                truncated[place] = True
            elif answer[0]:
                terminated[place], truncated[place] = bool(answer[0] & TERMINATED), bool(answer[0] & TRUNCATED)
                self._lanes.finished(place)
        return terminated, truncated

    def _lane_infos(self, answers: list[Answer], beginning: list[int]) -> list[dict[str, Any]]:
        """Each lane's info; a failed lane keeps its last observation, one that failed in its reset has it in a new sandbox."""
        infos: list[dict[str, Any]] = []
        retry = [place for place in beginning if isinstance(answers[place], AgentEnvError)]
        begun = self._begin_episodes(retry, [None] * self.num_envs, None)
        for place, answer in enumerate(answers):
            if place in begun:
                infos.append(begun[place])
            elif isinstance(answer, AgentEnvError):
                self._answers.keep(place, self._before)
                infos.append({"infra_error": str(answer)})
            else:
                infos.append(answer[1])
        return infos

    def _begin_episodes(self, places: list[int], seeds: Sequence[int | None], options: dict[str, Any] | None) -> dict[int, dict[str, Any]]:
        """Resets lanes, each in a new sandbox where its old one has failed; returns their infos."""
        infos: dict[int, dict[str, Any]] = {}
        while places:
            derived = self._lanes.mend(places)
            lanes = [self._lanes.all[place] for place in places]
            frames = [reset_frame(derived.get(place) if seeds[place] is None else seeds[place], options) for place in places]
            for lane in lanes:
                lane.stream.limit(lane.timeouts.reset)
            answers = exchange(self._lanes, places, frames, self._answers, "reset") or [(0, {})] * len(places)
            for lane in lanes:
                lane.stream.limit(lane.timeouts.step)
            raise_faults(answers)
            infos |= {place: answer[1] for place, answer in zip(places, answers, strict=True) if not isinstance(answer, AgentEnvError)}
            places = [place for place in places if place not in infos]
        return infos

    def render(self) -> tuple[Any, ...]:
        """What each lane's `render` returns."""
        return tuple(lane.render() for lane in self._lanes.all)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every lane's environment (or reads an attribute). Arguments and results travel as JSON and numpy arrays."""
        return tuple(lane.call(name, args, kwargs) for lane in self._lanes.all)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Every lane's attribute `name`."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every lane's environment: one value for all, or a list or tuple with one for each."""
        each = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(f"values has {len(each)} entries; it must have one for each of the {self.num_envs} lanes")
        for lane, value in zip(self._lanes.all, each, strict=True):
            lane.set(name, value)

    def save(self) -> list[bytes]:
        """Every lane's episode as bytes for `load`. Raises `CapabilityError` where the environment cannot be saved."""
        return [bytes([ended]) + lane.save() for ended, lane in zip(self._ended.tolist(), self._lanes.all, strict=True)]

    def load(self, states: Sequence[bytes]) -> None:
        """Puts every lane into the state that `save` wrote; the observations then are those that the caller has kept."""
        if len(states) != self.num_envs:
            raise ValueError(f"{len(states)} states were given; there must be one for each of the {self.num_envs} lanes")
        self._lanes.mend(self._places)
        for place, state in enumerate(states):
            self._lanes.all[place].load(state[1:])
            self._ended[place] = state[:1] == b"\x01"
        self._any_ended = bool(self._ended.any())

    def close_extras(self, **kwargs: Any) -> None:
        """Ends every lane's environment and sandbox."""
        self._finalizer.detach()
        self._lanes.close()

    def _require_open(self) -> None:
        if self.closed:
            raise InvalidState("the environment is closed.")

    def _spread(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + place for place in self._places]
        if len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds were given; there must be one for each of the {self.num_envs} lanes")
        return [None if one is None else int(one) for one in seed]

    def _masked(self, mask: Any) -> list[int]:
        if not isinstance(mask, np.ndarray) or mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise ValueError(
                f"options['reset_mask'] must be a boolean array of shape ({self.num_envs},) with at least one True, got {mask!r}"
            )
        return [int(place) for place in np.flatnonzero(mask)]


def raise_faults(answers: Sequence[Answer]) -> None:
    """Raises the first error of an environment's own code."""
    for answer in answers:
        if isinstance(answer, EnvironmentFault):
            raise answer


def reset_frame(seed: int | None, options: Mapping[str, Any] | None) -> bytes:
    """A RESET request."""
    if seed is None and options is None:
        return _PLAIN_RESET
    return frame(Kind.RESET, values.dumps({"seed": seed, "options": None if options is None else dict(options)}))
