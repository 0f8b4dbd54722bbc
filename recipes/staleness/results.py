"""From finished runs to numbers, from numbers to tables and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.cli.jobs import Job
from ostinato.errors import DataError
from ostinato.report.style import colors, panels
from ostinato.telemetry import read_jsonl, write_atomic

BASELINE = "grpo"
DIAGNOSTICS = ("kl_k3", "ess_fraction", "ratio_max", "clip_fraction", "grad_norm", "entropy")
SHOWN = (("kl_k3", ".2g"), ("ess_fraction", ".2f"), ("ratio_max", ".2g"), ("clip_fraction", ".0%"))
Numbers = Mapping[str, Any]


def measured(job: Job, staleness: int) -> dict[str, Any]:
    """Numbers of a finished run.

    `accuracy`: mean of the sampled accuracy over all evaluations but the one at the start; `final`: over the last
    quarter of them; `curve`: train steps and accuracy, the start included; each of `DIAGNOSTICS` that was recorded: its
    mean over the train steps from `staleness` on, of `ratio_max` the median. Raises `DataError` when a batch was not as
    old as it should be.
    """
    records = read_jsonl(job.directory / "metrics.jsonl")
    evaluations = [r for r in records if r["event"] == "evaluation"]
    steady = [r for r in records if r["event"] == "step" and r["train_step"] > staleness]
    ages = {r["staleness"] for r in steady}
    if ages - {float(staleness)}:
        raise DataError(f"{job.directory}: batches of age {sorted(ages)}, expected {staleness}")
    accuracy = [r["sampled_accuracy"] for r in evaluations]
    later = accuracy[1:]
    return {
        "accuracy": float(np.mean(later)),
        "final": float(np.mean(later[-max(1, len(later) // 4) :])),
        "curve": {"train_step": [int(r["train_step"]) for r in evaluations], "accuracy": accuracy},
        **{
            name: float((np.median if name == "ratio_max" else np.mean)([r[name] for r in steady]))
            for name in DIAGNOSTICS
            if steady and all(r.get(name) is not None for r in steady)
        },
    }


def choose_rates(tuning: Mapping[tuple[str, int, float], Sequence[Numbers]]) -> dict[tuple[str, int], float]:
    """The rate of each loss and staleness with the highest mean accuracy over the tuning seeds; at a tie the lower."""
    best: dict[tuple[str, int], tuple[float, float]] = {}
    for (loss, staleness, rate), runs in tuning.items():
        candidate = (float(np.mean([run["accuracy"] for run in runs])), -rate)
        best[loss, staleness] = max(candidate, best.get((loss, staleness), candidate))
    return {cell: -negative for cell, (_, negative) in best.items()}


def summary(
    tuning: Mapping[tuple[str, int, float], Sequence[Numbers]],
    best: Mapping[tuple[str, int], float],
    runs: Mapping[tuple[str, int], Mapping[int, Numbers]],
) -> dict[str, Any]:
    """cells.<loss>.<staleness>: rate, tuning (rate -> accuracy of each tuning seed), seeds (seed -> `measured`)."""
    cells: dict[str, dict[str, Any]] = {}
    for (loss, staleness), rate in best.items():
        tried = {
            f"{r:g}": [run["accuracy"] for run in several]
            for (one, age, r), several in tuning.items()
            if (one, age) == (loss, staleness)
        }
        seeds = {str(seed): dict(run) for seed, run in runs[loss, staleness].items()}
        cells.setdefault(loss, {})[str(staleness)] = {"rate": rate, "tuning": tried, "seeds": seeds}
    return {"cells": cells}


def column(cell: Numbers, name: str) -> list[float]:
    """One value a seed, of the seeds that have it."""
    return [run[name] for run in cell["seeds"].values() if name in run]


def accuracy_table(numbers: Numbers) -> str:
    """Markdown: mean accuracy over the run by loss and staleness, the lowest and highest seed, the rate."""
    lines = _header("loss", numbers)
    for loss, row in numbers["cells"].items():
        shown = []
        for cell in row.values():
            values = column(cell, "accuracy")
            shown.append(f"{np.median(values):.2f} ({min(values):.2f} to {max(values):.2f}) at {cell['rate']:g}")
        lines.append(f"| `{loss}` | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def grid_table(numbers: Numbers) -> str:
    """Markdown: what each rate of the grid gave on the tuning seeds, in the order of the rates."""
    rates = next(iter(next(iter(numbers["cells"].values())).values()))["tuning"]
    lines = _header(f"loss, rates {', '.join(rates)}", numbers)
    for loss, row in numbers["cells"].items():
        shown = (", ".join(f"{np.mean(tried):.2f}" for tried in cell["tuning"].values()) for cell in row.values())
        lines.append(f"| `{loss}` | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def diagnostics_table(numbers: Numbers) -> str:
    """Markdown: KL, effective sample size, largest ratio and share of clipped tokens; medians over seeds."""
    lines = _header("loss: KL, ESS, largest ρ, clipped", numbers)
    for loss, row in numbers["cells"].items():
        shown = (", ".join(_median(cell, name, form) for name, form in SHOWN) for cell in row.values())
        lines.append(f"| `{loss}` | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _median(cell: Numbers, name: str, form: str) -> str:
    values = column(cell, name)
    middle = float(np.median(values)) if values else 0.0
    return f"{middle if middle > 1e-6 else 0:{form}}" if values else "-"


def _header(first: str, numbers: Numbers) -> list[str]:
    ages = list(next(iter(numbers["cells"].values())))
    return [f"| {first} | " + " | ".join(f"staleness {age}" for age in ages) + " |", "|---" * (len(ages) + 1) + "|"]


def renew_tables(numbers: Numbers, study: str, page: Path | None) -> None:
    """Print the tables, and put each between its two marks of a page that has them."""
    for name, table in (
        ("accuracy", accuracy_table(numbers)),
        ("rates", grid_table(numbers)),
        ("diagnostics", diagnostics_table(numbers)),
    ):
        print(f"\n{study}, {name}\n\n{table}")
        begin, end = f"<!-- {study} {name} -->", f"<!-- end of {study} {name} -->"
        if page is None or not page.exists():
            continue
        before, mark, rest = page.read_text(encoding="utf-8").partition(begin)
        _, closing, after = rest.partition(end)
        if mark and closing:
            write_atomic(page, f"{before}{begin}\n\n{table}\n\n{end}{after}")


def draw_curves(numbers: Numbers, path: Path) -> None:
    """Accuracy against train steps: a panel a staleness, a line a loss, the median over seeds."""
    cells = numbers["cells"]
    color, losses = colors(list(cells), BASELINE), list(cells)
    ages = list(next(iter(cells.values())))
    path.parent.mkdir(parents=True, exist_ok=True)
    with panels(path, 1, len(ages), (9.6, 3.3)) as (figure, axes):
        for ax, age in zip(axes[0], ages, strict=True):
            for place, loss in enumerate(losses):
                curves = [run["curve"] for run in cells[loss][age]["seeds"].values()]
                steps, accuracy = curves[0]["train_step"], np.median([c["accuracy"] for c in curves], axis=0)
                dashed = {"linestyle": (0, (3, 1.5))} if place > len(losses) // 2 else {}
                width = 2.2 if loss == BASELINE else 1.3
                ax.plot(steps, accuracy, color=color[loss], linewidth=width, label=loss, **dashed)
            ax.set(title=f"staleness {age}", xlabel="train steps")
            ax.sharey(axes[0, 0])
        axes[0, 0].set(ylabel="sampled accuracy", ylim=(0, None))
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
