"""A bash in the sandbox that reads one command after the other from a pipe of its own, and marks where the output of each ends.

The pipe comes in as standard input and is moved out of the commands' sight, so that they find an empty standard input and cannot
swallow the next
command. Each command is followed by a random word; bash reads it only when the command is over and prints it, with the exit
status, to copies of the
original outputs that the commands do not see either: neither `exec >file` nor a command that prints its own source can confuse it.

An interrupt (SIGINT to the process group) ends a command and keeps the shell: its trap returns from the innermost function, and
sets a DEBUG
trap that has every function around that one, and at last the sourced text, return before their next command (bash(1), `extdebug`).
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from typing import Protocol

from agentenv.guest.frames import Content, Kind
from agentenv.guest.processes import KEEP_OUTPUT, TAP_BACKLOG, Launched
from agentenv.sandbox.markers import MarkerFinder

# 60 the commands, 61 and 62 where the markers go, 63 the text of the present command. Tracing (`set -x`) is switched off around
# the bookkeeping and
# on again in the first line of the next command, so that it shows the commands alone. $? is carried over from command to command.
# A machine without /proc/self has no /dev/fd: there the text goes through a file.
BOOT = r"""
exec 60<&0 61>&1 62>&2 </dev/null
shopt -s expand_aliases
__agentenv_status() { return "$__agentenv_code"; }
__agentenv_two() { return 2; }
__agentenv_unwind='if ((${#BASH_SOURCE[@]})); then __agentenv_two; else trap - DEBUG; shopt -u extdebug; fi'
trap '((${#BASH_SOURCE[@]})) && { trap -- "$__agentenv_unwind" DEBUG; shopt -s extdebug; return 130; }' INT
__agentenv_code=0 __agentenv_trace= __agentenv_source=/dev/fd/63
[[ -r /dev/fd/60 ]] || __agentenv_source=/tmp/.agentenv-shell-$$
while TMOUT= IFS= builtin read -r -d '' -u 60 __agentenv_text; do
[[ $__agentenv_source == /dev/fd/63 ]] || builtin printf '%s' "$__agentenv_trace$__agentenv_text" >|"$__agentenv_source"
__agentenv_status
. "$__agentenv_source" 63<<<"$__agentenv_trace$__agentenv_text" 60<&- 61>&- 62>&-
{ __agentenv_code=$?
case $- in *x*) __agentenv_trace=$'set -x\n' ;; *) __agentenv_trace= ;; esac
set +x; } 2>/dev/null
TMOUT= IFS= builtin read -r -d '' -u 60 __agentenv_text
builtin printf '%s %d\n' "$__agentenv_text" "$__agentenv_code" >&61
builtin printf '%s %d\n' "$__agentenv_text" "$__agentenv_code" >&62
done
"""

ARGV = ("bash", "--noprofile", "--norc", "-c", BOOT, "bash")


class Follower(Protocol):
    """Who wants to see a command's output as it comes."""

    @property
    def backlog(self) -> int:
        """Bytes that were taken but not yet passed on."""
        ...

    def take(self, kind: Kind, data: bytes) -> None:
        """Output came."""

    def wake(self) -> None:
        """The command is over."""


class ShellCommand:
    """One command under way in a shell: its output so far and its end."""

    def __init__(self, keep: int, follower: Follower | None) -> None:
        word = b"\x02" + secrets.token_hex(16).encode()
        self.word = word
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.dropped = 0
        self.done = asyncio.Event()
        self._keep = keep
        self.follower = follower
        self._finders = {Kind.DATA: MarkerFinder(word), Kind.DATA_ERR: MarkerFinder(word)}

    @property
    def status(self) -> int | None:
        """Its exit status, None while it runs or when the shell ended with it."""
        finder = self._finders[Kind.DATA]
        return finder.status if self._finders[Kind.DATA_ERR].status is not None else None

    def feed(self, kind: Kind, data: bytes) -> None:
        """Takes output of the shell."""
        finder = self._finders[kind]
        if finder.status is not None:
            finder.rest += data
            return
        self._add(kind, finder.feed(data))
        if self.status is not None:
            self._end()

    def shell_ended(self) -> None:
        """No more will come."""
        for kind, finder in self._finders.items():
            self._add(kind, finder.flush())
        self._end()

    def rest(self, kind: Kind) -> bytes:
        """What came behind its end: output of jobs that it left in the background, shown with the next command."""
        return self._finders[kind].rest

    def _add(self, kind: Kind, data: bytes) -> None:
        kept = self.stdout if kind is Kind.DATA else self.stderr
        room = max(0, self._keep - len(self.stdout) - len(self.stderr))
        kept += data[:room]
        self.dropped += max(0, len(data) - room)
        if self.follower is not None and data:
            self.follower.take(kind, data)

    def _end(self) -> None:
        self.done.set()
        if self.follower is not None:
            self.follower.wake()


class ShellProcess(Launched):
    """The running bash. One command at a time: the caller sees to that."""

    def __init__(self) -> None:
        super().__init__("exec")
        self._command: ShellCommand | None = None
        self._unclaimed: list[tuple[Kind, bytes]] = []
        self._owed = 0

    def on_data(self, kind: Kind, data: Content) -> None:
        self._owed += len(data)
        if self._command is not None:
            self._command.feed(kind, bytes(data))
        elif sum(len(piece) for _, piece in self._unclaimed) < KEEP_OUTPUT:
            self._unclaimed.append((kind, bytes(data)))
        self.settle()

    def settle(self) -> None:
        """Lets the shell print on, unless the follower lags far behind."""
        follower = self._command.follower if self._command is not None else None
        if self._owed and (follower is None or follower.backlog < TAP_BACKLOG):
            owed, self._owed = self._owed, 0
            self.consumed(owed)

    def on_finished(self) -> None:
        super().on_finished()
        if self._command is not None:
            self._command.shell_ended()

    async def begin(self, text: str, follower: Follower | None = None, *, keep: int = KEEP_OUTPUT) -> ShellCommand:
        """Sends a command."""
        command = ShellCommand(keep, follower)
        unclaimed, self._unclaimed = self._unclaimed, []
        for kind, data in unclaimed:
            command.feed(kind, data)
        self._command = command
        await self.send(text.encode() + b"\0" + command.word + b"\0")
        if self.over:
            command.shell_ended()
        return command

    def finish(self, command: ShellCommand) -> None:
        """The command is over and its output was taken."""
        self._command = None
        self.settle()
        self._unclaimed = [(kind, rest) for kind in (Kind.DATA, Kind.DATA_ERR) if (rest := command.rest(kind))]

    def interrupt(self) -> None:
        """Ends the command that runs, and keeps the shell."""
        self.signal(signal.SIGINT)
