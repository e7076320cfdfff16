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


_SANDBOXES = "Sandboxes"
_TRAINING = "Training"
_SERVER = "Servers"
_MACHINE = "This machine"

COMMANDS: dict[str, Entry] = {
    "shell": Entry("agentenv.cli.sandboxes:shell", "Opens a shell in a new sandbox, or in one that runs.", _SANDBOXES),
    "create": Entry("agentenv.cli.create:create", "Starts a sandbox that stays until it is killed or its time is over.", _SANDBOXES),
    "exec": Entry("agentenv.cli.sandboxes:exec_app", "Runs a command in a sandbox.", _SANDBOXES),
    "ls": Entry("agentenv.cli.sandboxes:ls", "Lists the sandboxes that run.", _SANDBOXES),
    "cp": Entry("agentenv.cli.copying:cp", "Copies files into a sandbox, out of it, or from one to another.", _SANDBOXES),
    "fork": Entry("agentenv.cli.sandboxes:fork", "Starts sandboxes with the files that one has now.", _SANDBOXES),
    "pause": Entry("agentenv.cli.sandboxes:pause", "Freezes a sandbox.", _SANDBOXES),
    "resume": Entry("agentenv.cli.sandboxes:resume", "Lets a paused sandbox go on.", _SANDBOXES),
    "logs": Entry("agentenv.cli.watching:logs", "Shows what happened to a sandbox.", _SANDBOXES),
    "metrics": Entry("agentenv.cli.watching:metrics", "Shows what a sandbox uses now.", _SANDBOXES),
    "port-forward": Entry("agentenv.cli.watching:port_forward", "Makes ports of a sandbox reachable on this machine.", _SANDBOXES),
    "kill": Entry("agentenv.cli.sandboxes:kill", "Ends sandboxes.", _SANDBOXES),
    "network": Entry("agentenv.cli.network:app", "Changes what a sandbox may reach, and shows what it was refused.", _SANDBOXES),
    "snapshot": Entry("agentenv.cli.snapshots:app", "Takes, lists and deletes snapshots, and goes back to one.", _SANDBOXES),
    "image": Entry("agentenv.cli.images:app", "Pulls, lists, refreshes, exports and removes images.", _SANDBOXES),
    "build": Entry("agentenv.cli.build:build", "Builds a template from a Dockerfile.", _SANDBOXES),
    "template": Entry("agentenv.cli.templates:app", "Builds, lists, shows, names and removes templates.", _SANDBOXES),
    "env": Entry("agentenv.cli.environments:app", "Lists the environments that a configuration can name.", _TRAINING),
    "train": Entry("agentenv.cli.train:train", "Trains an agent in isolated sandboxes, as a configuration says.", _TRAINING),
    "evaluate": Entry("agentenv.cli.train:evaluate", "Plays episodes with what a training has learned.", _TRAINING),
    "reproduce": Entry("agentenv.cli.train:reproduce", "Runs a training again and compares.", _TRAINING),
    "monitor": Entry("agentenv.cli.monitor:monitor", "Watches a training, live or after the fact.", _TRAINING),
    "runs": Entry("agentenv.cli.runs:app", "Lists trainings and shows one.", _TRAINING),
    "config": Entry("agentenv.cli.config:app", "Checks and explains configuration files.", _TRAINING),
    "serve": Entry("agentenv.cli.serve:app", "Turns this machine into a server for many trainers.", _SERVER),
    "login": Entry("agentenv.cli.login:login", "Notes which server to talk to, and with what key.", _SERVER),
    "logout": Entry("agentenv.cli.login:logout", "Forgets the server and its key.", _SERVER),
    "keys": Entry("agentenv.cli.keys:keys_app", "Lists, makes and ends API keys of a server.", _SERVER),
    "tenants": Entry("agentenv.cli.keys:tenants_app", "Lists, makes, limits and removes tenants of a server.", _SERVER),
    "gc": Entry("agentenv.cli.gc:gc", "Removes what nothing needs any more.", _MACHINE),
    "bench": Entry("agentenv.cli.bench:bench", "Measures speed and memory against references of the same run.", _MACHINE),
    "setup": Entry("agentenv.cli.setup:setup", "Fetches the programs and kernels that the stronger walls need.", _MACHINE),
    "doctor": Entry("agentenv.cli.doctor:doctor", "Says what works on this machine, what does not, and how to mend it.", _MACHINE),
    "conformance": Entry("agentenv.cli.conformance:conformance", "Checks that a backend does what every sandbox must.", _MACHINE),
    "completion": Entry("agentenv.cli.completion:completion", "Prints the completion script of a shell.", _MACHINE),
}
