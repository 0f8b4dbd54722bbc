"""What kept a buffer at its optimum: the changes of a run as a table, its dials and estimates as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.report.plots import Records
from ostinato.report.style import GRAY, colors, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {
    "buffer_capacity": ("Capacity (rollouts)", "control.target_capacity"),
    "samples_per_insert": ("Samples per insert", "control.target_samples_per_insert"),
    "control.mu": ("Cost ratio mu", None),
    "control.alpha": ("Exponent alpha of sigma", None),
    "control.drift": ("Drift (nats a rollout and step)", None),
    "control.ess_oldest": ("ESS fraction of the oldest age", None),
}
"""Metric of a step -> title, and the metric of its optimum, drawn gray."""


def is_controlled(records: Records) -> bool:
    """Whether anything was kept at its optimum in this run."""
    return any("buffer_capacity" in record for record in records)


def changes_of(records: Records) -> list[dict[str, str]]:
    """The table of changes, in order: column -> text."""
    return [
        {
            "train step": str(record["train_step"]),
            "what and why": str(record["reason"]),
            "μ": _interval(record, "mu"),
            "α": _interval(record, "alpha"),
            "uses": _number(record.get("uses")),
            "drift": _number(record.get("drift")),
            "ESS by age": _by_age(record.get("ess") or {}),
        }
        for record in records
        if record["event"] == "control"
    ]


def control_curves(runs: Mapping[str, Records], path: Path) -> Figure:
    """Dials with their optimum, and the estimates behind it, against train steps.

    `runs` maps a label to the records of its `metrics.jsonl`. Raises `MissingExtraError`.
    """
    color = colors(list(runs))
    with panels(path, 2, 3, (9.6, 5.0)) as (figure, axes):
        for ax, (name, (title, optimum)) in zip(axes.flat, PANELS.items(), strict=True):
            for label, records in runs.items():
                if optimum:
                    _draw(ax, records, optimum, color=GRAY, linewidth=1.0, linestyle="--")
                _draw(ax, records, name, color=color[label], linewidth=1.5, drawstyle="steps-post", label=label)
            ax.set_title(title)
            if not ax.lines:
                ax.set(xticks=[], yticks=[])
        for ax in axes[-1]:
            ax.set_xlabel("train step")
        if len(runs) > 1:
            axes[0, 0].legend()
    return figure


def _draw(ax: Axes, records: Records, name: str, **style: Any) -> None:
    rows = [(r["train_step"], r[name]) for r in records if r["event"] == "step" and r.get(name) is not None]
    if rows:
        ax.plot(*zip(*rows, strict=True), **style)


def _interval(record: Mapping[str, Any], name: str) -> str:
    low, high = record.get(f"{name}_low"), record.get(f"{name}_high")
    middle = _number(record.get(name))
    return middle if low is None or high is None else f"{middle} ({_number(low)} to {_number(high)})"


def _by_age(ess: Mapping[str, float]) -> str:
    """Of the youngest age, of the oldest, and of one between."""
    names: Sequence[str] = list(ess)
    shown = dict.fromkeys(names[i] for i in (0, len(names) // 2, len(names) - 1)) if names else {}
    parts = (f"{name.removeprefix('age_').replace('_', '–')}: {ess[name]:.2f}" for name in shown)
    return ", ".join(parts) or "–"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}".replace("-", "−")
