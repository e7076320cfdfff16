"""Spaces of environments as plain data: the same names and meaning as Gymnasium's, without needing it."""

from agentenv.envs.guest.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Space, Text, Tuple

__all__ = ["Box", "Dict", "Discrete", "MultiBinary", "MultiDiscrete", "Sequence", "Space", "Text", "Tuple"]
