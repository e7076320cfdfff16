"""An environment of one's own: find a secret number, in a sandbox.

    python examples/environments/guess.py

The class runs inside the sandbox, which needs nothing but Python; the main part below runs outside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentenv.envs import Environment, SandboxEnv, spaces

NUMBERS = 100
START, LOW, HIGH, RIGHT = range(4)


class Guess(Environment):
    """The observation says how the last guess was: none yet, too low, too high, right. The secret lies in a real file."""

    observation_space = spaces.Discrete(4)
    action_space = spaces.Discrete(NUMBERS)

    def __init__(self, directory: str = "/workspace") -> None:
        self.file = Path(directory) / "secret.json"
        self.file.parent.mkdir(parents=True, exist_ok=True)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        self.seed_random(seed)
        self.file.write_text(json.dumps(self.random.randrange(NUMBERS)))
        return START, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        secret = json.loads(self.file.read_text())
        answer = RIGHT if action == secret else LOW if action < secret else HIGH
        return answer, float(answer == RIGHT), answer == RIGHT, False, {}

    def save(self) -> bytes:
        """The secret is all there is to an episode: with it snapshot(), restore() and fork() work in the middle of one."""
        return self.file.read_bytes()

    def load(self, state: bytes) -> None:
        self.file.write_bytes(state)


def main() -> None:
    with SandboxEnv(f"{__file__}:Guess") as env:
        env.reset(seed=1)
        low, high, answer = 0, NUMBERS - 1, START
        while answer != RIGHT:
            guess = (low + high) // 2
            answer, *_ = env.step(guess)
            print(f"{guess:3d} is {('?', 'too low', 'too high', 'right')[answer]}")
            low, high = (guess + 1, high) if answer == LOW else (low, guess - 1)


if __name__ == "__main__":
    main()
