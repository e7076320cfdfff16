"""The suite on every backend that this machine can use: the quick checks of namespaces always, all of all in the long tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conformance.conftest import Bench

from agentenv.conformance import CHECKS, Subject
from agentenv.isolation.conformance import Check, Verdict

LONG = {
    "exec.timeout",
    "limits.cpu-held",
    "limits.disk",
    "limits.out-of-memory",
    "pause.running-command",
    "network.default",
    "network.given-later",
    "network.kept",
    "end.owner-death",
}
"""Checks that take seconds on any backend, whose subject other tests of this repository try shortly."""

BACKENDS = ("namespace", "gvisor", "qemu", "firecracker")
QUICK_ELSEWHERE = {("gvisor", "forks.memory"), ("gvisor", "forks.after-memory")}


def _cases() -> list[object]:
    cases = []
    for backend in BACKENDS:
        for check in CHECKS:
            quick = (backend == "namespace" and check.name not in LONG) or (backend, check.name) in QUICK_ELSEWHERE
            cases.append(pytest.param(backend, check, id=f"{backend}-{check.name}", marks=() if quick else pytest.mark.soak))
    return cases


@pytest.mark.parametrize(("backend", "check"), _cases())
@pytest.mark.timeout(1800)
def test_it_does_what_every_sandbox_must(bench: Callable[[str], Bench], backend: str, check: Check[Subject]) -> None:
    outcome = bench(backend).run(check)
    if outcome.verdict is Verdict.SKIPPED:
        pytest.skip(outcome.message)
    assert outcome.verdict is Verdict.PASSED, f"{outcome.message}\n{outcome.traceback}"


def test_every_check_has_a_name_of_its_own_and_says_what_it_is_for() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.about.endswith(".")
        assert "\n" not in check.about
        assert check.name.count(".") == 1
