"""A real agent as a plain child process: everything but the walls around it."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from agentenv.guest import binary


class LocalAgent:
    """An agent that listens on a unix socket in `directory`; plays the part of a machine that a handle uses."""

    passes_descriptors = True

    def __init__(self, directory: Path) -> None:
        self._address = str(directory / "agent.sock")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen(64)
            listening = str(listener.fileno())
            self.process = subprocess.Popen(
                [binary("agentenv-agent"), "--listen", listening, "--env", f"PATH={os.environ['PATH']}", "--cwd", "/"],
                pass_fds=[listener.fileno()],
                process_group=0,
            )

    def dial(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        return connection

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
