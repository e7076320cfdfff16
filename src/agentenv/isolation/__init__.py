"""The room of the walls: what may stand around a sandbox's agent, and how to choose one.

`contract` is what every backend promises; `registry` finds them; `namespace` is the one that needs nothing but Linux.
"""

from agentenv.isolation.contract import (
    Backend,
    Capabilities,
    Exit,
    Machine,
    MachineSpec,
    Network,
    OomKill,
    Probe,
    Resources,
    RootFilesystem,
    Timeouts,
    Tree,
    Usage,
)
from agentenv.isolation.registry import open_backend, probe_all

__all__ = [
    "Backend",
    "Capabilities",
    "Exit",
    "Machine",
    "MachineSpec",
    "Network",
    "OomKill",
    "Probe",
    "Resources",
    "RootFilesystem",
    "Timeouts",
    "Tree",
    "Usage",
    "open_backend",
    "probe_all",
]
