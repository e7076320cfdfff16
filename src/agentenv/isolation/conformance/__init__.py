"""The conformance suite of a backend, as far as the contract reaches: machines, the stream to their agent, pause, memory, nothing left.

`python -m agentenv.isolation.conformance NAME` runs it on any registered backend; `agentenv conformance NAME` runs it together with the
checks of all that a user's sandbox does.
"""

from agentenv.isolation.conformance.check import Check, CheckFailed, NotApplicable, check, expect, expect_equal, expect_refusal
from agentenv.isolation.conformance.runner import Outcome, Verdict, run_check, run_checks, select
from agentenv.isolation.conformance.suite import CHECKS
from agentenv.isolation.conformance.yard import Yard, open_yard

__all__ = [
    "CHECKS",
    "Check",
    "CheckFailed",
    "NotApplicable",
    "Outcome",
    "Verdict",
    "Yard",
    "check",
    "expect",
    "expect_equal",
    "expect_refusal",
    "open_yard",
    "run_check",
    "run_checks",
    "select",
]
