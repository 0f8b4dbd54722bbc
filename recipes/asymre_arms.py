"""Where AsymRE ends on a bandit, trained and in closed form. Writes a figure and prints its numbers.

    python recipes/asymre_arms.py                                   # docs/figures/asymre_arms.png, half a minute

The policy is the toy backend's table of logits, the gradient exact: each step sees every arm once, weighted by how
often the behavior policy mu would draw it. With a_y = mu(y) (r(y) - V) and b = sum_y a_y = V^mu - V, gradient flow is

    d logit_y / dt = a_y - b pi(y)

For V < V^mu it ends at pi(y) = max(a_y - tau, 0) / b, for V = V^mu on the arm of the greatest a_y. For V > V^mu the arm
that is ahead grows the faster: it ends on one arm in general, and which one depends on the start too (here: mu).
Source: AsymRE, arXiv 2506.20520, its theorem on the limits and its bandit of 100 arms.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ostinato.backends.toy import ToyTrainer, log_softmax
from ostinato.config import LossConfig, ToyConfig
from ostinato.protocols import Draw
from ostinato.report.style import GRAY, PALETTE, panels
from ostinato.rollouts import Rollouts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "asymre_arms.png"
THREE_ARMS = (np.array([0.5, 0.3, 0.2]), np.array([0.0, 0.5, 1.0]))
SHIFTS = (-1.0, -0.5, -0.2, -0.1, -0.05, -0.02, -0.01, 0.0, 0.01, 0.05, 0.1)
SEEDS = range(7)
KEPT = 1e-3
"""An arm with at least this probability counts as still there."""


def limit_policy(behavior: Array, rewards: Array, baseline: float) -> Array:
    """The limit pi(y) = max(a_y - tau, 0) / b for a baseline below the mean reward; tau makes it sum to 1.

    The k greatest a_y survive for the largest k at which the smallest of them exceeds tau_k = (their sum - b) / k.
    """
    weight = behavior * (rewards - baseline)
    descending = np.sort(weight)[::-1]
    thresholds = (np.cumsum(descending) - weight.sum()) / np.arange(1, len(weight) + 1)
    tau = thresholds[np.flatnonzero(descending > thresholds)[-1]]
    return np.asarray(np.maximum(weight - tau, 0) / weight.sum())


def trained_policy(behavior: Array, rewards: Array, baseline: float, *, steps: int = 2000) -> Array:
    """What the toy trainer makes of mu itself in so many steps, of as much as the dynamics bear."""
    arms, mean, weight = len(behavior), float(behavior @ rewards), behavior * (rewards - baseline)
    trainer = ToyTrainer(
        ToyConfig(prompts=1, length=1, vocabulary=arms, learning_rate=1 / max(abs(weight.sum()), abs(weight).max())),
        LossConfig(name="asymre", shift=baseline - mean),
    )
    trainer.table = np.log(behavior)[None, None]
    draw = every_arm_once(behavior, rewards)
    for _ in range(steps):
        trainer.step(draw)
    return np.asarray(np.exp(log_softmax(trainer.table))[0, 0])


def every_arm_once(behavior: Array, rewards: Array) -> Draw:
    """One rollout an arm with weight n mu(arm): the mean over the n rollouts is the expectation under mu."""
    arms, mean = len(behavior), behavior @ rewards
    rollouts = Rollouts.from_completions(
        [[0]] * arms, [[arm] for arm in range(arms)], [[value] for value in np.log(behavior)], prompt_id=0, group_id=0
    )
    none = np.zeros(arms, np.int64)
    return Draw(
        rollouts=rollouts.replace(reward=rewards, group_reward_mean=np.full(arms, mean)),
        rollout_ids=np.arange(arms),
        importance_weights=arms * behavior,
        staleness=none,
        residence=none,
        uses=none,
        steps_since_last_use=none - 1,
    )


def random_bandit(seed: int, arms: int = 100) -> tuple[Array, Array]:
    """mu = softmax(standard normals / 10) and rewards uniform in [0, 1], as in the paper."""
    rng = np.random.default_rng(seed)
    return np.exp(log_softmax(rng.normal(size=arms) / 10)), rng.random(arms)


def kept(policy: Array) -> int:
    """Arms that are still there."""
    return int((policy >= KEPT).sum())


def measure(shifts: Sequence[float], seeds: Sequence[int]) -> tuple[Array, Array]:
    """(arms kept, expected reward of the trained policy), each (seeds, shifts); prints one line a shift."""
    bandits = [random_bandit(seed) for seed in seeds]
    size, reward = np.zeros((len(seeds), len(shifts))), np.zeros((len(seeds), len(shifts)))
    print(f"{'shift':>6} {'arms kept':>16} {'expected reward':>22}   median (range) over {len(seeds)} seeds")
    for column, shift in enumerate(shifts):
        for row, (behavior, rewards) in enumerate(bandits):
            policy = trained_policy(behavior, rewards, float(behavior @ rewards) + shift)
            size[row, column], reward[row, column] = kept(policy), policy @ rewards
        s, r = size[:, column], reward[:, column]
        print(
            f"{shift:>6g} {np.median(s):>5.0f} ({s.min():.0f} to {s.max():.0f})".ljust(24)
            + f"{np.median(r):>10.3f} ({r.min():.3f} to {r.max():.3f})"
        )
    best = [float(rewards.max()) for _, rewards in bandits]
    print(f"best arm: {np.median(best):.3f} ({min(best):.3f} to {max(best):.3f})")
    return size, reward


def draw_figure(path: Path, size: Array, reward: Array) -> None:
    """Three arms against the baseline; arms kept and expected reward of 100 arms against the shift."""
    with panels(path, 1, 3, (9.6, 3.2)) as (_, axes):
        three, support, value = axes[0]
        _draw_three_arms(three)
        places = np.arange(len(SHIFTS))
        for ax, figures in ((support, size), (value, reward)):
            for row in figures:
                ax.plot(places, row, color=PALETTE[0], linewidth=0.8, alpha=0.45)
            ax.plot(places, np.median(figures, axis=0), color=PALETTE[0], linewidth=2.2, marker="o", markersize=3)
            ax.axvline(SHIFTS.index(0.0), color=GRAY, linewidth=1, linestyle=(0, (4, 3)))
            ax.set_xticks(places, [f"{shift:g}" for shift in SHIFTS], rotation=60)
            ax.set_xlabel("shift = V − mean reward")
        support.set(title="100 arms: arms kept", ylim=(0, None))
        value.set(title="100 arms: expected reward")


def _draw_three_arms(ax: Axes) -> None:
    behavior, rewards = THREE_ARMS
    mean = float(behavior @ rewards)
    below = np.linspace(-1, mean - 1e-3, 300)
    curves = np.array([limit_policy(behavior, rewards, v) for v in below])
    tried = np.append(np.arange(-1, 0.31, 0.15), [0.4, 0.45, 0.5])
    dots = np.array([trained_policy(behavior, rewards, v) for v in tried])
    for arm, reward in enumerate(rewards):
        ax.plot(below, curves[:, arm], color=PALETTE[arm], label=f"reward {reward:g}, μ = {behavior[arm]:g}")
        ax.plot(tried, dots[:, arm], "o", color=PALETTE[arm], markersize=3.5)
    ax.axvline(mean, color=GRAY, linewidth=1, linestyle=(0, (4, 3)))
    ax.set(title="3 arms: limit policy", xlabel="baseline V (dashed: mean reward)", ylim=(-0.03, 1.03))
    ax.legend(loc="center left", fontsize=7)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=FIGURE, help="PNG to write")
    path = parser.parse_args(words).out
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_figure(path, *measure(SHIFTS, SEEDS))
    print(path)


if __name__ == "__main__":
    main()
