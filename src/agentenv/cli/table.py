"""Every command of `agentenv`, with the place of its code and the line that `agentenv --help` shows.

A command's code is loaded only when the command is used: its place names a function (one command) or a typer app (commands below it).
To add a command, add a line.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """Where a command's code is ("module:attribute"), what it does in one line, and the panel of the help that it stands in."""

    place: str
    help: str
    panel: str


_TRAINING = "Training"
_MACHINE = "This machine"

COMMANDS: dict[str, Entry] = {
    "train": Entry("agentenv.cli.train:train", "Trains an agent in isolated sandboxes, as a configuration says.", _TRAINING),
    "evaluate": Entry("agentenv.cli.train:evaluate", "Plays episodes with what a training has learned.", _TRAINING),
    "reproduce": Entry("agentenv.cli.train:reproduce", "Runs a training again and compares.", _TRAINING),
    "monitor": Entry("agentenv.cli.monitor:monitor", "Watches a training, live or after the fact.", _TRAINING),
    "runs": Entry("agentenv.cli.runs:app", "Lists trainings and shows one.", _TRAINING),
    "config": Entry("agentenv.cli.config:app", "Checks and explains configuration files.", _TRAINING),
    "bench": Entry("agentenv.cli.bench:bench", "Measures speed and memory against references of the same run.", _MACHINE),
    "doctor": Entry("agentenv.cli.doctor:doctor", "Says what works on this machine, what does not, and how to mend it.", _MACHINE),
    "completion": Entry("agentenv.cli.completion:completion", "Prints the completion script of a shell.", _MACHINE),
}
