"""The shape of a configuration: every key, its default, its unit and its limits.

The models are frozen and refuse unknown keys. They say what is possible anywhere; the validators of `agentenv.config.checks` add what
only this machine can tell. A validator's sentence reads "what is wrong; what would be right".
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from agentenv.config.checks import environment_path, image_path, within_cores, within_memory
from agentenv.config.explain import explain
from agentenv.config.problems import invalid
from agentenv.destinations import parse_allowed, parse_destination
from agentenv.errors import ConfigError
from agentenv.units import DURATION_PATTERN, RATE_PATTERN, SIZE_PATTERN, parse_duration, parse_rate, parse_size

_SMALLEST_MEMORY = 4 * 1024**2
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _at_least_memory(size: int) -> int:
    if size < _SMALLEST_MEMORY:
        raise ValueError(f"{size} bytes are too few for any process; write a size of 4MiB or more, with its unit, such as 512MiB")
    return size


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("0 seconds leave no time at all; write a duration such as 30s")
    return seconds


def _whole(value: object) -> object:
    """1e6 is a whole number, however it is written."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _steps_or_fraction(warmup: float) -> float:
    if isinstance(warmup, float) and warmup >= 1:
        raise ValueError(
            f"{warmup} is neither a fraction nor a number of steps; write one below 1, such as 0.05, or whole steps, such as 1000"
        )
    return warmup


def _no_port_twice(ports: tuple[int, ...]) -> tuple[int, ...]:
    for index, port in enumerate(ports):
        if port in ports[:index]:
            raise ValueError(f"port {port} stands there twice; write each port once")
    return ports


def _plain(value: object, where: str = "") -> object:
    """Refuses what could not be written to YAML or JSON (objects, NaN), naming the place."""
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise ValueError(f"the key {name!r}{where} is not text; put it in quotes")
            _plain(item, f" in {name!r}")
    elif isinstance(value, (list, tuple)):
        for item in value:
            _plain(item, where)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value}{where} is no finite number; write a finite one")
    elif value is not None and not isinstance(value, (str, int, float, bool)):
        raise ValueError(f"a value of type {type(value).__name__}{where} cannot be kept in a file; use text, numbers, lists and mappings")
    return value


def _environment_variables(variables: dict[str, str]) -> dict[str, str]:
    for name in variables:
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an environment variable; use letters, digits and _")
    return variables


def _kind_of_rate(value: object) -> str:
    return "(schedule)" if isinstance(value, (dict, ScheduleConfig)) else "(number)"


_SIZE_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 0, "description": "bytes"}, {"type": "string", "pattern": SIZE_PATTERN}]}
_DURATION_SCHEMA = {"anyOf": [{"type": "number", "minimum": 0, "description": "seconds"}, {"type": "string", "pattern": DURATION_PATTERN}]}

_RATE_SCHEMA = {
    "anyOf": [{"type": "integer", "minimum": 1, "description": "bytes per second"}, {"type": "string", "pattern": RATE_PATTERN}]
}

Size = Annotated[int, BeforeValidator(parse_size), WithJsonSchema(_SIZE_SCHEMA)]
Memory = Annotated[Size, AfterValidator(_at_least_memory)]
Duration = Annotated[float, BeforeValidator(parse_duration), AfterValidator(_positive), WithJsonSchema(_DURATION_SCHEMA)]
Bandwidth = Annotated[int, BeforeValidator(parse_rate), WithJsonSchema(_RATE_SCHEMA)]
Allowed = Annotated[str, AfterValidator(lambda text: str(parse_allowed(text)))]
Denied = Annotated[str, AfterValidator(lambda text: str(parse_destination(text)))]
Whole = Annotated[int, BeforeValidator(_whole)]
Name = Annotated[str, Field(min_length=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Plain = Annotated[dict[str, Any], AfterValidator(_plain)]


class Section(BaseModel):
    """What all sections have in common: they do not change, take no unknown key and convert no type behind the reader's back."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class ResourcesConfig(Section):
    """Limits of one sandbox. What is left out is not limited."""

    cpu: Annotated[Finite, Field(gt=0, examples=[2]), AfterValidator(within_cores)] | None = None
    """Cores; fractions are fine (0.5 is half of one core)."""
    memory: Annotated[Memory, Field(examples=["4GB"]), AfterValidator(within_memory)] | None = None
    """Memory of all processes together. 1 GB is 10^9 bytes, 1 GiB is 2^30."""
    storage: Annotated[Memory, Field(examples=["20GB"])] | None = None
    """What the sandbox may write to its own copy of the file system."""
    pids: Annotated[Whole, Field(ge=8, examples=[4096])] | None = 4096
    """Processes and threads."""
    disk_read: Annotated[Bandwidth, Field(examples=["200MB/s"])] | None = None
    """What is read in a second from each disk that the sandbox's files lie on."""
    disk_write: Annotated[Bandwidth, Field(examples=["100MB/s"])] | None = None
    """What is written to it. (The network's rates are in `network.bandwidth`.)"""
    disk_iops: Annotated[Whole, Field(gt=0, examples=[5000])] | None = None
    """Reads in a second, and as many writes."""


class BandwidthConfig(Section):
    """How much a sandbox may send and receive in a second: a number of bytes, or text in bytes or bits. What is left out is not limited."""

    up: Annotated[Bandwidth, Field(examples=["10Mbit/s"])] | None = None
    """From the sandbox to the outside world."""
    down: Annotated[Bandwidth, Field(examples=["10MB/s"])] | None = None
    """From the outside world to the sandbox."""


class NetworkConfig(Section):
    """What a sandbox may reach. Without `enabled` it has a loopback of its own and nothing else."""

    enabled: Annotated[bool, Field(examples=[True])] = False
    """Whether the outside world can be reached; the host, link-local and private addresses stay denied where `allow` does not name them."""
    allow_internet_access: Annotated[bool, Field(examples=[True])] = True
    """Whether public addresses and names are reached that neither `allow` nor `deny` names."""
    allow: Annotated[tuple[Allowed, ...], BeforeValidator(_as_tuple), Field(examples=[["example.org", "10.1.2.3:5432"]])] = ()
    """Addresses (10.1.2.3, 10.1.0.0/16) and domains (example.com, *.example.com), each with :PORT where wanted; it wins over `deny`."""
    deny: Annotated[tuple[Denied, ...], BeforeValidator(_as_tuple), Field(examples=[["*.example.com", "203.0.113.0/24"]])] = ()
    """The same kinds of destinations, which are not reached."""
    bandwidth: BandwidthConfig = BandwidthConfig()
    ports: Annotated[tuple[Port, ...], BeforeValidator(_as_tuple), AfterValidator(_no_port_twice), Field(examples=[[8080, 8081]])] = ()
    """TCP ports inside the sandbox that the host can reach through an address on its loopback."""

    @model_validator(mode="after")
    def _rules_need_a_network(self) -> NetworkConfig:
        if not self.enabled and (self.allow or self.deny or self.bandwidth != BandwidthConfig()):
            raise ValueError("it has rules for a network that is not enabled; write `enabled: true` with them")
        return self


class TimeoutsConfig(Section):
    """How long things may take: numbers of seconds or durations such as 30s, 1m30s, 250ms."""

    startup: Annotated[Duration, Field(examples=["60s"])] = 60.0
    """From a sandbox's turn to start to its agent's first answer, and again from that to its environment's."""
    shutdown: Annotated[Duration, Field(examples=["5s"])] = 5.0
    """Between asking a sandbox's processes to end and ending them."""
    reset: Annotated[Duration, Field(examples=["60s"])] = 60.0
    """One reset of the environment."""
    step: Annotated[Duration, Field(examples=["60s"])] = 60.0
    """One step of the environment."""


class EnvironmentConfig(Section):
    """A task and the sandbox that it lives in."""

    name: Annotated[Name, Field(examples=["basic_rl_env"]), AfterValidator(environment_path)] = "basic_rl_env"
    """A registered environment, `gymnasium:ID`, `module:Class` or `path.py:Class` (a path is taken from this file's folder)."""
    image: Annotated[Name, Field(examples=["host"]), AfterValidator(image_path)] | None = None
    """What the sandbox's files are: `host`, `debian`, `dir:PATH`, `tar:PATH` (a path is taken from this file's folder); left out, the
    backend's own: `debian` for virtual machines, else `host`."""
    isolation: Annotated[Name, Field(examples=["auto"])] = "auto"
    """The backend by name, or `auto`: the strongest that this machine can run."""
    server: Annotated[Name, Field(examples=["http://127.0.0.1:8700"])] | None = None
    """The server on which the sandboxes are made; left out, AGENTENV_SERVER, else this machine. The key is in AGENTENV_API_KEY."""
    resources: ResourcesConfig = ResourcesConfig()
    network: NetworkConfig = NetworkConfig()
    env: Annotated[dict[str, str], AfterValidator(_environment_variables), Field(examples=[{"LANG": "C.UTF-8"}])] = {}
    """Environment variables of every process in the sandbox."""
    timeouts: TimeoutsConfig = TimeoutsConfig()
    options: Annotated[Plain, Field(examples=[{"size": 5}])] = {}
    """Keyword arguments of the environment."""


class ScheduleConfig(Section):
    """A learning rate that changes over the training's `max_steps`."""

    schedule: Annotated[Literal["constant", "linear", "cosine"], Field(examples=["linear"])]
    """How it goes from `initial` to `final` after the warm-up: not at all, in a straight line, or along half a cosine."""
    initial: Annotated[Finite, Field(gt=0, examples=[0.0003])]
    """The rate at the end of the warm-up (or at once without one)."""
    final: Annotated[Finite, Field(ge=0, examples=[0.0])] = 0.0
    """The rate at the last step; `constant` does not use it."""
    warmup: Annotated[int | float, Field(ge=0, allow_inf_nan=False, examples=[0.05]), AfterValidator(_steps_or_fraction)] = 0
    """How long it rises from 0 to `initial`: a whole number of steps, or a fraction of all steps (below 1, written with a point)."""

    def warmup_steps(self, max_steps: int) -> int:
        """The warm-up's length in steps of a training of `max_steps`, which it never exceeds."""
        steps = round(self.warmup * max_steps) if isinstance(self.warmup, float) else self.warmup
        return min(steps, max_steps)


Rate = Annotated[Finite, Field(gt=0)]
LearningRate = Annotated[Annotated[Rate, Tag("(number)")] | Annotated[ScheduleConfig, Tag("(schedule)")], Discriminator(_kind_of_rate)]


class TrainingConfig(Section):
    """How an agent is trained. Steps are environment steps, summed over all environments."""

    algorithm: Annotated[Name, Field(examples=["PPO"])]
    """A registered algorithm: PPO, A2C, DQN, SAC or one that a package has added."""
    max_steps: Annotated[Whole, Field(gt=0, examples=[1000000])]
    """The training ends after so many steps."""
    batch_size: Annotated[Whole, Field(gt=0, examples=[1024])] | None = None
    """Samples in one optimiser step; left out, the algorithm's own default."""
    learning_rate: Annotated[LearningRate, Field(examples=[0.0003])] | None = None
    """A number or a schedule; left out, the algorithm's own default."""
    gradient_accumulation: Annotated[Whole, Field(ge=1, examples=[1])] = 1
    """How many equal parts a batch is computed in before the optimiser steps: less memory, the same gradient."""
    num_envs: Annotated[Whole, Field(ge=1, le=65536, examples=[4])] = 4
    """Environments stepped side by side, each in a sandbox of its own."""
    seed: Annotated[Whole, Field(ge=0, lt=2**32, examples=[1])] | None = None
    """Seed of everything random; left out, one is drawn and written to the run's manifest."""
    eval_every: Annotated[Whole, Field(gt=0, examples=[10000])] | None = None
    """Steps between evaluations; left out, there is one at the end."""
    eval_episodes: Annotated[Whole, Field(ge=1, examples=[10])] = 10
    """Episodes of one evaluation."""
    checkpoint_every: Annotated[Whole, Field(gt=0, examples=[50000])] | None = None
    """Steps between checkpoints; left out, there is one at the end and one when the training is interrupted."""
    hyperparameters: Annotated[Plain, Field(examples=[{"gamma": 0.99}])] = {}
    """Keyword arguments of the algorithm, such as gamma or n_epochs."""


class NodeResourcesConfig(Section):
    """What one machine gives to the training."""

    cpu: Annotated[Finite, Field(gt=0, examples=[16])] | None = None
    """Cores."""
    memory: Annotated[Memory, Field(examples=["64GB"])] | None = None
    """Main memory."""
    gpu: Annotated[Whole, Field(ge=0, examples=[2])] = 0
    """GPUs."""


class NodeConfig(Section):
    """One machine of a distributed training."""

    name: Annotated[Name, Field(examples=["node1"])]
    """What it is called in logs and placement."""
    resources: NodeResourcesConfig = NodeResourcesConfig()


def _no_name_twice(nodes: tuple[NodeConfig, ...]) -> tuple[NodeConfig, ...]:
    names = [node.name for node in nodes]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"two nodes are called {name!r}; give each a name of its own")
    return nodes


class DistributedConfig(Section):
    """A training over several machines."""

    enabled: Annotated[bool, Field(examples=[True])] = False
    """Whether the training is distributed at all."""
    strategy: Annotated[Literal["data_parallel", "model_parallel"], Field(examples=["model_parallel"])] = "data_parallel"
    """A copy of the model on each machine, or one model split over them."""
    nodes: Annotated[tuple[NodeConfig, ...], BeforeValidator(_as_tuple), AfterValidator(_no_name_twice)] = ()
    """The machines."""


class Config(Section):
    """One file: an environment and, where wanted, its training."""

    environment: EnvironmentConfig = EnvironmentConfig()
    training: TrainingConfig | None = None
    distributed_training: DistributedConfig | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything, defaults included, as plain data; sizes are bytes and durations seconds. `load` reads it back to an equal Config."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """SHA-256 (hexadecimal) of the effective configuration: equal for files that mean the same."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def with_training(self, **changes: object) -> Config:
        """A copy in which some keys of `training` are changed (None leaves a key as it is), checked like a file's.

        Raises `ConfigError` where there is no `training` section or a change is not possible.
        """
        if self.training is None:
            raise ConfigError("there is no `training` section.", remedy="Add one with `algorithm` and `max_steps`.")
        given = {name: value for name, value in changes.items() if value is not None}
        try:
            training = TrainingConfig.model_validate(self.training.model_dump() | given)
        except ValidationError as error:
            problems = explain(error, TrainingConfig)
            raise invalid(*(replace(problem, key=("training", *problem.key)) for problem in problems)) from None
        return self.model_copy(update={"training": training})
