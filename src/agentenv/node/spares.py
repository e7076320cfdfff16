"""Directories for the next machines, made before they are wanted: making two dozen of them is a good part of what a start costs."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import OrderedDict, deque
from pathlib import Path

from agentenv.node.owner import Owner

KEPT = 4
"""Directories that are kept ready for one set of trees."""

KINDS = 4
"""Sets of trees, those asked for last, for which some are kept."""

Names = tuple[str, ...]


class Spares:
    """Keeps a few fresh machine directories for images with the trees that were asked for last. None was ever used by a machine."""

    def __init__(self, owner: Owner) -> None:
        self._directory = owner.directory / "spare"
        self._ready: OrderedDict[Names, deque[Path]] = OrderedDict()
        self._refill: asyncio.Task[None] | None = None
        self._closed = False

    def take(self, target: Path, names: Names) -> None:
        """Makes the directory `target` for a machine with those trees. Raises OSError."""
        ready = self._ready.setdefault(names, deque())
        self._ready.move_to_end(names)
        if ready:
            os.rename(ready.popleft(), target)  # noqa: PTH104 - on the path that every start takes
        else:
            make_machine_directory(target, names)
        if self._refill is None and not self._closed:
            self._refill = asyncio.create_task(self._keep_ready())

    async def close(self) -> None:
        """Makes no more; those that are left go with the owner's directory."""
        self._closed = True
        if self._refill is not None:
            await asyncio.wait({self._refill})

    async def _keep_ready(self) -> None:
        try:
            while not self._closed and (lacking := self._lacking()) is not None:
                names, ready = lacking
                path = self._directory / secrets.token_hex(4)
                await asyncio.to_thread(make_machine_directory, path, names)
                ready.append(path)
        except OSError:
            return  # The next start meets the same fault, and reports it.
        finally:
            self._refill = None

    def _lacking(self) -> tuple[Names, deque[Path]] | None:
        """The set of trees for which one more is to be made; those not asked for lately keep what they have."""
        recent = list(self._ready.items())[-KINDS:]
        return next(((names, ready) for names, ready in reversed(recent) if len(ready) < KEPT), None)


def make_machine_directory(path: Path, names: Names) -> None:
    """A machine's directory: an upper and a work directory for each tree, and the place of its identity."""
    for name in ("", "/upper", "/work"):
        os.mkdir(f"{path}{name}", 0o700)  # noqa: PTH102 - on the path that every start takes
    for name in ("/identity", "/identity/etc", *(f"/upper/{name}" for name in names)):
        os.mkdir(f"{path}{name}")  # noqa: PTH102
        os.chmod(f"{path}{name}", 0o755)  # noqa: PTH101 - what the sandbox sees of it must not depend on our umask
    for name in names:
        os.mkdir(f"{path}/work/{name}", 0o700)  # noqa: PTH102
