"""What a test may need of the machine, as marks that skip it with the reason where that is missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import pytest

from agentenv.isolation import probe_all


def more_in_soak(few: Sequence[object], more: Iterable[object]) -> list[object]:
    """Parameters of which the second part is tried only under `make soak`."""
    return [*few, *(pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.soak) for value in more)]


_NAMESPACE = next(probe for probe in probe_all() if probe.backend == "namespace")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
needs_namespaces = pytest.mark.skipif(not _NAMESPACE.usable, reason=f"sandboxes cannot be made here: {_NAMESPACE.reason}")
