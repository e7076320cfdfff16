"""Gymnasium knows our ids, whichever of the two is imported first, and importing us alone does not cost Gymnasium."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHECK = "assert 'agentenv/basic_rl_env-v0' in gymnasium.registry, 'unknown'"


@pytest.mark.parametrize(
    "code",
    [
        f"import agentenv.envs, gymnasium; {CHECK}",
        f"import gymnasium, agentenv.envs; {CHECK}",
        f"import agentenv.envs; from agentenv.envs import SandboxEnv; import gymnasium; {CHECK}",
        "import agentenv.envs, sys; assert not {'gymnasium', 'numpy', 'torch'} & set(sys.modules), 'heavy'",
    ],
)
def test_imports(code: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
