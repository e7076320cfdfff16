#!/usr/bin/env python3
"""Checks an installation of AgentENV: starts an environment for real, and says how Firecracker, Python and Docker stand.

Exit code 0 only when an environment was started, ran a command and was removed. `agentenv doctor` looks at more.
"""

from __future__ import annotations

import sys


def explain_missing_package(error: ImportError) -> int:
    """Without the package's own dependencies nothing can be checked; says so and how to install them."""
    print(
        f"Python environment: not usable ({error}; run `pip3 install -r requirements.txt` in the clone, with this Python: {sys.executable})"
    )
    print("AgentENV environment NOT verified.")
    return 1


def main() -> int:
    """Prints one line a check; returns the exit code."""
    try:
        from agentenv.cli.health import Finding, programs, python_environment, sandboxes
        from agentenv.cli.health.survey import attempt
    except ImportError as error:
        return explain_missing_package(error)

    def why(finding: Finding) -> str:
        """What is missing, how to mend it, and what still works, on one line."""
        parts = [finding.remedy.rstrip(".") if finding.remedy else "", f"what still works: {finding.without}" if finding.without else ""]
        detail = "; ".join(part for part in parts if part)
        return f"{finding.summary} ({detail})" if detail else finding.summary

    environment = attempt("environment", sandboxes.environment)
    firecracker = attempt("firecracker", programs.firecracker)
    python = attempt("python", python_environment.python_environment)
    docker = attempt("docker", programs.docker)

    ready = environment.state == "ok"
    print("AgentENV environment verified successfully!" if ready else f"AgentENV environment NOT verified: {why(environment)}")
    print(f"Firecracker version: {firecracker.data.get('version') or why(firecracker)}")
    print("Python environment: OK" if python.state in {"ok", "limited"} else f"Python environment: not usable: {why(python)}")
    if python.state == "limited":
        print(f"  note: {'; '.join(python.details)} ({python.remedy} {python.without})")
    print("Docker connectivity: OK" if docker.state == "ok" else f"Docker connectivity: not available: {why(docker)}")
    return 0 if ready else 1


if __name__ == "__main__":
    sys.exit(main())
