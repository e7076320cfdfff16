"""`python -m agentenv.isolation.conformance NAME [CHECK or GROUP …]`: the machine level alone, one line a check."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from agentenv.errors import AgentEnvError
from agentenv.isolation.conformance.runner import Verdict, run_checks, select
from agentenv.isolation.conformance.suite import CHECKS
from agentenv.isolation.conformance.yard import open_yard


async def run(name: str, only: Sequence[str]) -> bool:
    """Runs the checks on the backend `name` and prints what came of each; whether none failed."""
    passed = True
    async with open_yard(name) as yard:
        async for outcome in run_checks(select(CHECKS, only), yard):
            passed = passed and outcome.verdict is not Verdict.FAILED
            why = f": {outcome.message}" if outcome.message else ""
            sys.stdout.write(f"{outcome.verdict} {outcome.seconds:6.2f} s  {outcome.check}{why}\n{outcome.traceback}")
            sys.stdout.flush()
    return passed


def main() -> None:
    """Ends with 0 when nothing failed, 1 when something did, 2 when it could not be run."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m agentenv.isolation.conformance NAME [CHECK or GROUP ...]")
    try:
        passed = asyncio.run(run(sys.argv[1], sys.argv[2:]))
    except AgentEnvError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
