"""Takes back rows of metrics that a resumed training will write again."""

from __future__ import annotations

import os
from pathlib import Path

from agentenv.monitoring.lines import parse_line


def forget_after(path: Path, step: int) -> None:
    """Cuts a metrics.jsonl off before its first row beyond `step`.

    A run that was killed has rows newer than its last checkpoint; going on from there measures those steps anew. Its writer appends, so it
    simply goes on at the new end.
    """
    end = 0
    with path.open("rb") as file:
        for line in file:
            row = parse_line(line)
            if not line.endswith(b"\n") or (row is not None and int(row.get("step", 0)) > step):
                break
            end += len(line)
    os.truncate(path, end)
