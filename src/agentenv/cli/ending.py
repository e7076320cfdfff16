"""How a command ends that has made things of its own."""

from __future__ import annotations

import signal


def end_in_order_at_sigterm() -> None:
    """From now on SIGTERM ends this command as Ctrl-C does, which removes what it has made; by itself the signal would leave that."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
