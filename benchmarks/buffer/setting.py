"""What a goal is measured with: one profile's source, its contestants, the pace, and the peers that take part."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .batches import WrongBatchError
from .machine import idle_cores
from .peers import AbsentError, Contestant, Field
from .profiles import Source
from .results import Line, skipped, wrong
from .subject import subjects
from .timing import Pace

IDLE = 1.8
"""Cores that must be unused by others where two threads or two processes are judged."""


@dataclass(slots=True)
class Setting:
    """One profile under measurement."""

    source: Source
    pace: Pace
    quick: bool
    field: Field = field(init=False)

    def __post_init__(self) -> None:
        self.field = Field(self.source, subjects(self.source))

    @property
    def profile(self) -> str:
        """Its name."""
        return self.source.profile.name

    @property
    def is_long(self) -> bool:
        """Bounds in absolute numbers and shares of a copy hold for the long profile."""
        return self.profile == "long"

    def fresh(self) -> Setting:
        """The same with contestants of its own, for goals that change what they hold."""
        return Setting(self.source, self.pace, self.quick)

    def busy(self) -> str:
        """Why what needs two cores cannot be judged now, or nothing."""
        idle = idle_cores()
        return "" if idle >= IDLE else f"not judged: {idle:.1f} cores are idle"

    def present(self, goal: str, names: list[str], lines: list[Line]) -> dict[str, Contestant]:
        """Those of the contestants that load and are right; a line for each of the others."""
        found: dict[str, Contestant] = {}
        for name in names:
            try:
                found[name] = self.field[name]
            except AbsentError as absent:
                lines.append(skipped(goal, self.profile, name, str(absent)))
            except WrongBatchError as error:
                lines.append(wrong(goal, self.profile, name, str(error)))
        return found


def calls(contestants: dict[str, Contestant], kind: str, n: int) -> dict[str, Callable[[], Any]]:
    """`kind` "packed" or "padded": a draw of n from each."""
    return {name: functools.partial(getattr(contestant, kind), n) for name, contestant in contestants.items()}
