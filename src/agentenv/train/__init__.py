"""Trains agents: algorithms by name, learning-rate schedules, runs that can be resumed exactly, evaluated and reproduced.

Everything here needs the extra `train` (PyTorch, stable-baselines3), so it is loaded when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentenv.train.assess import evaluate
    from agentenv.train.pipeline import train
    from agentenv.train.plans import BatchPlan
    from agentenv.train.progress import Progress, SilentProgress
    from agentenv.train.registry import Algorithm, algorithm, algorithms
    from agentenv.train.repetition import Reproduction, reproduce
    from agentenv.train.result import RunResult
    from agentenv.train.schedules import LearningRate
    from agentenv.train.vec_env import GymnasiumVecEnv

_HOMES = {
    "Algorithm": "registry",
    "BatchPlan": "plans",
    "GymnasiumVecEnv": "vec_env",
    "LearningRate": "schedules",
    "Progress": "progress",
    "Reproduction": "repetition",
    "RunResult": "result",
    "SilentProgress": "progress",
    "algorithm": "registry",
    "algorithms": "registry",
    "evaluate": "assess",
    "reproduce": "repetition",
    "train": "pipeline",
}
_EXTRA = {"torch", "stable_baselines3", "tensorboard", "matplotlib"}

__all__ = [
    "Algorithm",
    "BatchPlan",
    "GymnasiumVecEnv",
    "LearningRate",
    "Progress",
    "Reproduction",
    "RunResult",
    "SilentProgress",
    "algorithm",
    "algorithms",
    "evaluate",
    "reproduce",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        from agentenv.errors import AgentEnvError

        raise AgentEnvError(f"training needs {missing}, which is not installed.", remedy="Run: pip install 'agentenv[train]'") from error


class _CallableRoom(ModuleType):
    """Importing this room sets `agentenv.train` to the module, so the module itself must answer `agentenv.train(config)`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.train(*arguments, **options)


sys.modules[__name__].__class__ = _CallableRoom
