"""The three figures. Each writes a PNG and returns the matplotlib figure it wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ostinato.report.style import GRAY, INK, colors, panels
from ostinato.stats import smoothed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records = Sequence[Mapping[str, Any]]

HISTOGRAMS = {
    "staleness": ("Staleness", "train steps since the weights of the sample"),
    "uses": ("Uses", "times a rollout was drawn before it left"),
    "steps_since_last_use": ("Steps since last use", "train steps (0: twice in one batch)"),
}
CURVES = {
    "reward": "Mean reward of the batch",
    "accuracy": "Held-out accuracy",
    "entropy": "Entropy",
    "ratio_mean": "Mean importance ratio",
    "clip_fraction": "Fraction clipped",
    "staleness": "Mean staleness (train steps)",
}


def accuracy_against_compute(summary: Mapping[str, Any], path: Path) -> Figure:
    """Smoothed accuracy of every arm: a thin line a seed, a thick one for the median over seeds.

    `summary` is what `stats.summarize` returns. The dashed line is the target (median over seeds), the arrow the
    greatest median saving. Raises `MissingExtraError`.
    """
    arms, baseline = summary["arms"], summary["rule"]["baseline"]
    color = colors(list(arms), baseline)
    with panels(path, 1, 1, (7.2, 4.4)) as (figure, axes):
        ax = axes[0, 0]
        for name, arm in arms.items():
            curves = [
                (row["curve"]["smoothed_compute"], row["curve"]["smoothed_accuracy"]) for row in arm["seeds"].values()
            ]
            for compute, accuracy in curves:
                ax.plot(compute, accuracy, color=color[name], linewidth=0.8, alpha=0.45)
            ax.plot(*_median_curve(curves), color=color[name], linewidth=2.4, label=_arm_label(name, arm, baseline))
        _draw_target(ax, summary)
        ax.set(
            title="Accuracy against compute", xlabel="compute (baseline updates)", ylabel="held-out sampled accuracy"
        )
        ax.legend(loc="lower right")
    return figure


def replay_histograms(runs: Mapping[str, Mapping[str, Any]], path: Path | Sequence[Path]) -> Figure:
    """Staleness, uses and steps since last use, one row of panels a run, the mean marked (paper, figure 2).

    `runs` maps a label to what `ReplayStatistics.summary` returned. Bars are fractions of all that panel counts; the
    samples that were new, and so have no last use, are named beside its mean. Raises `MissingExtraError`.
    Source: arXiv 2604.08706, figure 2.
    """
    color = colors(list(runs))
    with panels(path, len(runs), 3, (9.6, 0.5 + 2.0 * len(runs))) as (figure, axes):
        for row, (label, statistics) in zip(axes, runs.items(), strict=True):
            for ax, name in zip(row, HISTOGRAMS, strict=True):
                _draw_histogram(ax, statistics[name], color[label])
            row[0].set_ylabel(f"{label}\nfraction")
            drawn = statistics["new"] + sum(statistics["steps_since_last_use"]["counts"])
            if drawn:
                _note(row[2], f"{statistics['new'] / drawn:.0%} new")
        for top, bottom, (title, unit) in zip(axes[0], axes[-1], HISTOGRAMS.values(), strict=True):
            top.set_title(title)
            bottom.set_xlabel(unit)
    return figure


def run_curves(runs: Mapping[str, Records], path: Path) -> Figure:
    """Reward, accuracy (greedy dashed), entropy, ratio, clipping and staleness against compute.

    `runs` maps a label to the records of its `metrics.jsonl`. Step metrics are running means over 2 % of the run, at
    least 5 steps. Raises `MissingExtraError`.
    """
    color = colors(list(runs))
    with panels(path, 2, 3, (9.6, 5.2)) as (figure, axes):
        for ax, (name, title) in zip(axes.flat, CURVES.items(), strict=True):
            for label, records in runs.items():
                if name == "accuracy":
                    ax.plot(*_series(records, "evaluation", "sampled_accuracy"), color=color[label], label=label)
                    ax.plot(*_series(records, "evaluation", "greedy_accuracy"), color=color[label], linestyle="--")
                else:
                    compute, values = _series(records, "step", name)
                    window = min(max(5, len(values) // 50), max(1, len(values)))
                    if len(values):
                        compute, values = smoothed(compute, window), smoothed(values, window)
                    ax.plot(compute, values, color=color[label], linewidth=1.3, label=label)
            ax.set_title(title)
            if not any(len(line.get_xdata()) for line in ax.lines):
                _note(ax, "not recorded")
        for ax in axes[-1]:
            ax.set_xlabel("compute (baseline updates)")
        axes[0, 0].legend()
    return figure


def _median_curve(curves: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Median over seeds on the stretch of compute that all of them cover."""
    start, stop = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique(np.clip(np.concatenate([x for x, _ in curves]), start, stop))
    return grid, np.median([np.interp(grid, x, y) for x, y in curves], axis=0)


def _arm_label(name: str, arm: Mapping[str, Any], baseline: str) -> str:
    seeds = f"{len(arm['seeds'])} seed{'s' * (len(arm['seeds']) > 1)}"
    if name == baseline:
        return f"{name} ({seeds})"
    reached = "" if arm["reached"] == len(arm["seeds"]) else f", {arm['reached']} reached the target"
    return f"{name} ({seeds}{reached}): saves {arm['median']['saving']:.0%}"


def _draw_target(ax: Axes, summary: Mapping[str, Any]) -> None:
    """The target line and, at its height, an arrow from the baseline's crossing to that of the best arm."""
    from matplotlib.patheffects import withStroke

    medians = {name: arm["median"] for name, arm in summary["arms"].items()}
    own = medians[summary["rule"]["baseline"]]
    target = own["target_accuracy"]
    share = f"{summary['rule']['target_fraction']:.0%}"
    ax.axhline(target, color=GRAY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    ax.annotate(
        f"target: {share} of the baseline's final accuracy",
        (0.01, target),
        xycoords=ax.get_yaxis_transform(),
        xytext=(0, 3),
        textcoords="offset points",
        color=GRAY,
        fontsize=8,
    )
    best = max(medians.values(), key=lambda median: median["saving"])
    start, end = own["compute_to_target"], best["compute_to_target"]
    if best["saving"] > 0 and start is not None and end is not None:
        ax.annotate(
            "", (end, target), (start, target), arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.4}
        )
        ax.annotate(
            f"{best['saving']:.0%} less compute",
            ((start + end) / 2, target),
            xytext=(0, -13),
            textcoords="offset points",
            ha="center",
            color=INK,
            fontweight="bold",
            path_effects=[withStroke(linewidth=3, foreground="white")],
        )


def _draw_histogram(ax: Axes, histogram: Mapping[str, Any], color: str) -> None:
    counts = np.array(histogram["counts"], np.float64)
    if not counts.sum():
        ax.set(xticks=[], yticks=[])
        return
    ax.stairs(counts / counts.sum(), np.arange(len(counts) + 1) - 0.5, fill=True, color=color, alpha=0.85)
    ax.axvline(histogram["mean"], color=INK, linewidth=1.2, linestyle=(0, (2, 2)))
    ax.set(xlim=(-0.6, max(len(counts), 6) - 0.4), ylim=(0, None))
    ax.locator_params(axis="x", integer=True)
    _note(ax, f"mean {histogram['mean']:.2f}")


def _note(ax: Axes, text: str) -> None:
    """Add small print above the right end of the axes."""
    present = ax.get_title(loc="right")
    ax.set_title(f"{present}, {text}" if present else text, loc="right", color=GRAY, fontsize=8, fontweight="normal")


def _series(records: Records, event: str, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute and value of all records of a kind that have the value."""
    rows = [(r["compute"], r[name]) for r in records if r["event"] == event and r.get(name) is not None]
    compute, values = np.array(rows, np.float64).reshape(-1, 2).T
    return compute, values
