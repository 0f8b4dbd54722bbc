"""How a file of rollouts is read, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ostinato.errors import ConfigError
from ostinato.rollouts import Rollouts

KEPT_COMPLAINTS = 5
"""Messages about refused lines that a report keeps word for word; all are counted."""


HOTTEST = 1e6
LATEST = (1 << 62) - 1
"""Of train steps and policy versions: what a buffer can still count on from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRules:
    """What to do with lines that are not whole, and what stands for what they leave out.

    `missing_logprobs`: "error", or "drop" the lines that have none. `skip_bad`: go on after a line that cannot be used.
    `group_by`: of lines without a group id, "line" makes each a group of its own, "prompt" joins those of one prompt.
    `rename`: THEIRS -> OURS, looked up before the known names. `extras`: the extra columns wanted, None for all that
    can be columns. `temperature, top_p, top_k, policy_version, source`: for lines that do not say.
    `chunk_rollouts`: rollouts handed out at a time. Raises `ConfigError`.
    """

    missing_logprobs: Literal["error", "drop"] = "error"
    skip_bad: bool = False
    group_by: Literal["line", "prompt"] = "line"
    rename: Mapping[str, str] = field(default_factory=dict)
    extras: tuple[str, ...] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    policy_version: int = 0
    source: str = ""
    chunk_rollouts: int = 1024

    def __post_init__(self) -> None:
        if self.missing_logprobs not in ("error", "drop"):
            raise ConfigError(f"missing_logprobs is {self.missing_logprobs!r}, expected 'error' or 'drop'")
        if self.group_by not in ("line", "prompt"):
            raise ConfigError(f"group_by is {self.group_by!r}, expected 'line' or 'prompt'")
        if not (0 <= self.temperature <= HOTTEST and 0 <= self.top_p <= 1 and 0 <= self.top_k < 1 << 31):
            raise ConfigError(
                f"got temperature {self.temperature}, top_p {self.top_p} and top_k {self.top_k}, expected"
                f" 0 to {HOTTEST:g}, 0 to 1, and 0 to 2^31 - 1"
            )
        if abs(self.policy_version) > LATEST:
            raise ConfigError(f"policy_version is {self.policy_version}, expected below 2^62")
        if self.chunk_rollouts < 1:
            raise ConfigError(f"chunk_rollouts is {self.chunk_rollouts}, expected at least 1")


@dataclass(slots=True)
class ReadReport:
    """What was found in a file: counts, the first complaints, and the extra columns that were left out with the reason.

    `rollouts` can be read; `refused` lines cannot, `without_logprobs` were dropped; `without_reward` have neither
    reward nor advantage and stand at 0; `truncated_sampling` were drawn with top_p < 1 or top_k > 0. `unsaid` counts
    the rollouts for which a field of the rules stands in. Of the `from_group` rollouts, whose advantages come from the
    rewards of their groups, `alone` have no other in their group and `even` have rewards equal to those of all others:
    their advantages are 0. `kept`: the extra columns.
    """

    rollouts: int = 0
    refused: int = 0
    without_logprobs: int = 0
    without_reward: int = 0
    truncated_sampling: int = 0
    from_group: int = 0
    alone: int = 0
    even: int = 0
    unsaid: dict[str, int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)

    def refuse(self, complaint: str) -> None:
        """Count a line that cannot be used."""
        self.refused += 1
        if len(self.complaints) < KEPT_COMPLAINTS:
            self.complaints.append(complaint)


@dataclass(frozen=True, slots=True)
class RolloutFile:
    """A file that was looked through once: `report` says what it holds, `parts()` reads it in chunks, oldest first."""

    path: Path
    format: Literal["jsonl", "parquet"]
    report: ReadReport
    parts: Callable[[], Iterator[Rollouts]]

    def __len__(self) -> int:
        return self.report.rollouts
