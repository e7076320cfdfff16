"""AgentENV: isolated environments for reinforcement-learning agents."""

__version__ = "0.1.0"
