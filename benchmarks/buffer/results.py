"""One line a goal: what was measured, what it must be, what it should be, what the peer took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .timing import Measured

NOISE = 0.15  # a figure this close to its bound in its best round is no miss


@dataclass(frozen=True, slots=True)
class Bound:
    """`at_least`: the figure must not be smaller than `value`; otherwise not larger."""

    value: float
    at_least: bool

    def holds(self, figure: float) -> bool:
        """Whether the figure keeps the bound."""
        return figure >= self.value if self.at_least else figure <= self.value

    def nearly(self, figure: float) -> bool:
        """Whether it does with the noise allowed."""
        return self.holds(figure * (1 + NOISE) if self.at_least else figure / (1 + NOISE))

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.value:g}"


def least(value: float) -> Bound:
    """The figure must be at least this."""
    return Bound(value, at_least=True)


def most(value: float) -> Bound:
    """The figure must be at most this."""
    return Bound(value, at_least=False)


@dataclass(frozen=True, slots=True)
class Line:
    """A goal's figure and verdict: pass, noise (a miss within the noise), MISS, skipped, wrong, or a plain figure."""

    goal: str
    profile: str
    what: str
    verdict: str
    value: float | None = None
    unit: str = ""
    must: str = ""
    stretch: str = ""
    beside: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        value = "" if self.value is None else f"{self.value:.4g} {self.unit}"
        bounds = ", ".join(f"{name} {text}" for name, text in (("must", self.must), ("stretch", self.stretch)) if text)
        return (
            f"{self.goal:<4} {self.profile:<6} {self.verdict:<8} {self.what:<58} {value:<14} {bounds:<32} {self.beside}"
        )


def judged(
    goal: str,
    profile: str,
    what: str,
    figure: Measured | float,
    unit: str,
    *,
    must: Bound | None = None,
    stretch: Bound | None = None,
    beside: str = "",
    **details: Any,
) -> Line:
    """A line whose verdict follows from the bound; without a `must` it is a plain figure."""
    measured = figure if isinstance(figure, Measured) else Measured(figure, figure)
    verdict = "figure"
    if must is not None:
        verdict = "pass" if must.holds(measured.value) else "noise" if must.nearly(measured.best) else "MISS"
    shown = {"must": str(must or ""), "stretch": str(stretch or "")}
    if stretch is not None and stretch.holds(measured.value):
        shown["stretch"] += " reached"
    return Line(goal, profile, what, verdict, measured.value, unit, **shown, beside=beside, details=details)


def skipped(goal: str, profile: str, what: str, reason: str) -> Line:
    """A line for what could not be measured here."""
    return Line(goal, profile, what, "skipped", beside=reason)


def wrong(goal: str, profile: str, what: str, reason: str) -> Line:
    """A line for a contestant that failed its check and was therefore not timed."""
    return Line(goal, profile, what, "wrong", beside=reason)


def as_json(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Plain data for a file."""
    return [asdict(line) for line in lines]


def as_markdown(lines: Sequence[Line]) -> str:
    """A table, in the order measured."""
    rows = ["| goal | profile | figure | measured | must | stretch | verdict | beside |", "| --- " * 8 + "|"]
    for line in lines:
        value = "" if line.value is None else f"{line.value:.3g} {line.unit}".rstrip()
        cells = (line.goal, line.profile, line.what, value, line.must, line.stretch, line.verdict, line.beside)
        rows.append("| " + " | ".join(cell.strip() for cell in cells) + " |")
    return "\n".join(rows) + "\n"
