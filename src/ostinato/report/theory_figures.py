"""Figures of the theory for one plan: best designs against mu, K(x), gamma, and the map of savings.

Each function writes one figure to each of `paths` and returns the matplotlib figure it wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.report.style import GRAY, INK, PALETTE, panels
from ostinato.theory import Plan, PowerLaw, Workload, compute_ratio, mean_uses, optimum
from ostinato.theory.variance import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALPHAS, RHOS = (0.05, 0.1, 0.2, 0.3), (0.0, 0.05, 0.2, 1.0)
K_ALPHAS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
PAPER_MUS = (5.28, 6.84)
ENDINGS = (".svg", ".png")
MOST_SPLITS = 15


def theory_figures(plan: Plan, directory: Path) -> list[Path]:
    """Write all figures of a plan, SVG and PNG; returns their paths. Raises `MissingExtraError` without matplotlib."""
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for draw in (optimum_against_mu, k_of_x, gamma_table, saving_map):
        paths = [directory / f"{draw.__name__}{ending}" for ending in ENDINGS]
        draw(plan, paths)
        written += paths
    return written


def optimum_against_mu(plan: Plan, paths: Sequence[Path]) -> Figure:
    """x* and y* against mu, one panel an alpha, one line a rho; the plan's own mu is marked (paper, figure 6)."""
    mus = np.geomspace(0.5, 20, 120)
    with panels(paths, 2, len(ALPHAS), (2.4 * len(ALPHAS) + 0.6, 4.8)) as (figure, axes):
        for column, alpha in enumerate(ALPHAS):
            for i, rho in enumerate(RHOS):
                best = [optimum(Workload(float(mu), rho, PowerLaw(alpha))) for mu in mus]
                for row, values in enumerate(([o.staleness_horizon for o in best], [o.uses_per_rollout for o in best])):
                    axes[row, column].plot(mus, values, color=PALETTE[i], linewidth=1.5, label=f"rho = {rho:g}")
            axes[0, column].set_title(f"alpha = {alpha:g}")
            axes[1, column].set_xlabel("mu")
            for ax in axes[:, column]:
                ax.set(xscale="log", yscale="log")
                ax.axvline(plan.workload.mu, color=GRAY, linewidth=0.8, linestyle=(0, (4, 3)))
        axes[0, 0].set_ylabel("best staleness horizon x*\n(train steps)")
        axes[1, 0].set_ylabel("best uses a rollout y*")
        axes[0, -1].legend()
    return figure


def k_of_x(plan: Plan, paths: Sequence[Path]) -> Figure:
    """K(x) = x^alpha (1/sqrt(mu) + sqrt(rho + 1/x)) at the plan's mu and rho, minimizers marked (paper, figure 7)."""
    mu, rho = plan.workload.mu, plan.workload.rho
    xs = np.geomspace(0.2, 1000, 400)
    with panels(paths, 1, 1, (6.4, 4.2)) as (figure, axes):
        ax = axes[0, 0]
        for i, alpha in enumerate(K_ALPHAS):
            color = PALETTE[i % len(PALETTE)] if i < len(PALETTE) else INK
            values = _k(xs, alpha, mu, rho)
            ax.plot(xs, values, color=color, linewidth=1.5, label=f"alpha = {alpha:g}")
            if 0 < alpha < 0.5:
                x = stationary_point(alpha, mu, rho)
                if xs[0] <= x <= xs[-1]:
                    ax.plot([x], [float(_k(np.array(x), alpha, mu, rho))], "o", color=color, markersize=5)
        ax.axvline(1, color=GRAY, linewidth=0.8, linestyle=(0, (4, 3)))
        ax.set(
            xscale="log", yscale="log", xlabel="staleness horizon x (train steps; feasible from 1 on)", ylabel="K(x)"
        )
        ax.set_title(f"K(x) at mu = {mu:.3g}, rho = {rho:.3g}")
        ax.legend()
    return figure


def gamma_table(plan: Plan, paths: Sequence[Path]) -> Figure:
    """gamma = (1 + W/T) / (1 + mu) of each split, one row a mu: the plan's, and the two that the paper measured."""
    mus = sorted({plan.workload.mu, *PAPER_MUS})
    splits = _splits(max(plan.gpus, 2))
    values = np.array([[compute_ratio(mu, w, t) for w, t in splits] for mu in mus])
    with panels(paths, 1, 1, (0.72 * len(splits) + 1.8, 0.5 * len(mus) + 1.3)) as (figure, axes):
        ax = axes[0, 0]
        ax.grid(visible=False)
        limit = max(float(np.abs(np.log(values)).max()), 1e-9)
        ax.imshow(np.log(values), cmap="RdYlBu_r", vmin=-limit, vmax=limit, aspect="auto", alpha=0.6)
        for (row, column), value in np.ndenumerate(values):
            ax.text(column, row, f"{value:.3f}", ha="center", va="center", color=INK)
        ax.set_xticks(range(len(splits)), [f"{w}, {t}" for w, t in splits])
        ax.set_yticks(range(len(mus)), [f"{mu:.3g}" for mu in mus])
        ax.set(xlabel="generators, trainers", ylabel="mu", title="gamma: cost of an update over one without a buffer")
    return figure


def saving_map(plan: Plan, paths: Sequence[Path]) -> Figure:
    """1 - J / J0 over splits and capacities, ages in whole train steps; the plan's design is marked."""
    splits = _splits(max(plan.gpus, 2))
    b = plan.design.batch_size
    capacities = np.unique(np.geomspace(b, max(64 * b, 4 * plan.design.capacity), 60).round())
    savings = np.array([savings_of(plan, w, t, capacities) for w, t in splits]).T
    with panels(paths, 1, 1, (0.55 * len(splits) + 3.4, 4.4)) as (figure, axes):
        ax = axes[0, 0]
        ax.grid(visible=False)
        bound = float(np.nanmax(savings, initial=0.1))
        shown = ax.pcolormesh(
            np.arange(len(splits)), capacities, savings, cmap="RdBu", vmin=-bound, vmax=bound, shading="nearest"
        )
        figure.colorbar(shown, ax=ax, label="predicted saving to accuracy, 1 - J/J0", extend="min")
        chosen = (plan.design.generators, plan.design.trainers)
        if chosen in splits:
            _mark(ax, splits.index(chosen), plan.design.capacity, f"{plan.design.saving_to_accuracy:.0%}")
        ax.set_xticks(range(len(splits)), [f"{w}, {t}" for w, t in splits], rotation=90 if len(splits) > 8 else 0)
        ax.set(yscale="log", xlabel="generators, trainers", ylabel="capacity N (rollouts)")
        ax.set_title(f"mu = {plan.workload.mu:.3g}, rho = {plan.workload.rho:.3g}, B = {b}")
    return figure


def savings_of(plan: Plan, generators: int, trainers: int, capacities: Floats) -> Floats:
    """1 - J / J0 of a split at each capacity; NaN where the buffer is smaller than what a train step brings, or the
    variance was not measured that far."""
    work = plan.workload
    uses = mean_uses(work.mu, generators, trainers)
    x = capacities * uses / plan.design.batch_size
    possible = (x >= 1) & (x <= work.variance.longest)
    savings = np.full(len(x), np.nan)
    if possible.any():
        savings[possible] = 1 - work.objective(x[possible], uses) / work.objective_without_buffer()
    return savings


def stationary_point(alpha: float, mu: float, rho: float) -> float:
    """The x that minimizes K, 0 < alpha < 1/2, whether a batch fits or not: y*^2 / (2 alpha (mu + y*))."""
    y = mu * (1 - 2 * alpha) / (alpha + np.sqrt(alpha**2 + mu * rho * (1 - 2 * alpha)))
    return float(y * y / (2 * alpha * (mu + y)))


def _k(x: Floats, alpha: float, mu: float, rho: float) -> Floats:
    return np.asarray(x**alpha * (1 / np.sqrt(mu) + np.sqrt(rho + 1 / x)))


def _splits(gpus: int) -> list[tuple[int, int]]:
    """Every split, or `MOST_SPLITS` of them spread evenly, the most generators first."""
    trainers = np.unique(np.linspace(1, gpus - 1, min(gpus - 1, MOST_SPLITS)).round().astype(int))
    return [(gpus - int(t), int(t)) for t in trainers]


def _mark(ax: Axes, x: float, y: float, text: str) -> None:
    from matplotlib.patheffects import withStroke

    style: dict[str, Any] = {"textcoords": "offset points", "xytext": (0, 8), "ha": "center", "color": INK}
    style["path_effects"] = [withStroke(linewidth=3, foreground="white")]
    ax.plot([x], [y], "o", color=INK, markersize=6, markerfacecolor="white")
    ax.annotate(text, (x, y), **style)
