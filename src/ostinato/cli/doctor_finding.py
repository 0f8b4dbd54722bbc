"""What `ostinato doctor` finds: a level, a topic, what it is, what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

OK, WARNING, FAULT = "OK", "WARNING", "FAULT"
LEVELS = (OK, WARNING, FAULT)


@dataclass(frozen=True, slots=True)
class Finding:
    """`change`: what to do about it, empty where nothing is to be done; `figures`: the numbers, plain values."""

    level: str
    topic: str
    text: str
    change: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For a person."""
        first = f"{self.level:<8} {self.topic:<9} {self.text}"
        return [first, f"{'':18} change: {self.change}"] if self.change else [first]


def size_shown(size_bytes: float) -> str:
    """Bytes for a person."""
    return f"{size_bytes / 2**30:.3g} GiB" if size_bytes >= 2**30 / 10 else f"{size_bytes / 2**20:.3g} MiB"


def worst(findings: Sequence[Finding]) -> str:
    """The highest level of all; OK without any."""
    return max((finding.level for finding in findings), key=LEVELS.index, default=OK)
