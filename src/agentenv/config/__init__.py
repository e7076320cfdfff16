"""One YAML file configures an environment and its training: `load` reads it, strictly and with a sentence for each mistake.

The room holds the models (`Config` and its sections), the reader that knows each key's line, and the checks against this machine.
"""

from agentenv.config.checks import MachineFacts
from agentenv.config.loading import Lookups, load, loads
from agentenv.config.models import (
    Config,
    DistributedConfig,
    EnvironmentConfig,
    NetworkConfig,
    NodeConfig,
    NodeResourcesConfig,
    ResourcesConfig,
    ScheduleConfig,
    TimeoutsConfig,
    TrainingConfig,
)
from agentenv.config.problems import InvalidConfig, Problem
from agentenv.config.schema import json_schema

__all__ = [
    "Config",
    "DistributedConfig",
    "EnvironmentConfig",
    "InvalidConfig",
    "Lookups",
    "MachineFacts",
    "NetworkConfig",
    "NodeConfig",
    "NodeResourcesConfig",
    "Problem",
    "ResourcesConfig",
    "ScheduleConfig",
    "TimeoutsConfig",
    "TrainingConfig",
    "json_schema",
    "load",
    "loads",
]
