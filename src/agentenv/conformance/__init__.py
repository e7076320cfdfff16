"""The conformance suite: what every sandbox must do, run on any backend that is registered here, other packages' too.

`agentenv conformance NAME` runs it; `agentenv.isolation.conformance` is the part below that needs nothing but the backend's contract.
"""

from agentenv.conformance.subject import Subject, open_subject
from agentenv.conformance.suite import CHECKS

__all__ = ["CHECKS", "Subject", "open_subject"]
