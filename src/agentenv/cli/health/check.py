"""What a check of the machine finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

State = Literal["ok", "limited", "missing", "failed"]
"""`limited` works with less than it could; `missing` is not there and not needed for a start; `failed` should work and does not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was looked at, how it stands, and for what is not "ok" the remedy and what works without it."""

    name: str
    state: State
    summary: str
    remedy: str | None = None
    without: str | None = None
    details: tuple[str, ...] = ()
    data: Mapping[str, object] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """The finding as plain data."""
        return {
            "name": self.name,
            "state": self.state,
            "summary": self.summary,
            "remedy": self.remedy,
            "without": self.without,
            "details": list(self.details),
            "data": dict(self.data),
        }
