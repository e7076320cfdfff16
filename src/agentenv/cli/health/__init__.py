"""What `agentenv doctor` and scripts/verify_installation.py look at: one function a check, each returning a `Finding`.

Every check does the real thing (makes a namespace, asks the daemon, starts an environment) and says what is missing, how to mend it,
and what works without it.
"""

from agentenv.cli.health.check import Finding, State
from agentenv.cli.health.survey import survey

__all__ = ["Finding", "State", "survey"]
