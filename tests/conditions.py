"""What a test may need of the machine, as marks that skip it with the reason where that is missing."""

from __future__ import annotations

import os

import pytest

from agentenv.isolation import probe_all

_NAMESPACE = next(probe for probe in probe_all() if probe.backend == "namespace")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
needs_namespaces = pytest.mark.skipif(not _NAMESPACE.usable, reason=f"sandboxes cannot be made here: {_NAMESPACE.reason}")
