"""Named argument lists of `ReplayBuffer`, one for each published scheme: a table, `PRESETS`, and nothing else.

Every preset takes further arguments of `ReplayBuffer` (`capacity_bytes`, `first_id`, `kernels` ...) in `buffer`.
What paper and released code disagree on, and what is done here: docs/presets.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ostinato.buffer.admission import Correct, Informative
from ostinato.buffer.limits import BoundedQueue, MinSize
from ostinato.buffer.replay import ReplayBuffer
from ostinato.buffer.retention import MaxStaleness, MaxUses, NewestPerPrompt, PositiveBias, Rule
from ostinato.buffer.sampling import (
    Buckets,
    Exponential,
    FreshAnchored,
    Mixture,
    Newest,
    Oldest,
    Prioritized,
    PriorityFunction,
    Sampler,
    Uniform,
)
from ostinato.buffer.schedule import Linear, Schedule
from ostinato.setting_checks import check_choice, check_not_negative, check_share, check_whole


def paper_fifo(
    capacity: int, *, replacement: bool = True, min_size: int = 0, max_staleness: int | None = None, **buffer: Any
) -> ReplayBuffer:
    """Uniform draws from the newest `capacity` rollouts; drawing does not remove (arXiv 2604.08706, section 2)."""
    return ReplayBuffer(
        capacity,
        sampler=Uniform(replacement),
        retention=_bounded_age(max_staleness),
        limiter=MinSize(min_size),
        **buffer,
    )


def paper_positive_bias(
    capacity: int, *, threshold: float, delta: float = 0.5, max_staleness: int | None = None, **buffer: Any
) -> ReplayBuffer:
    """Uniform draws; the newest (1 - delta) N rollouts and, of older ones, correct ones (arXiv 2604.08706, section 6).

    Correct: a reward above `threshold`. The paper tried delta 0, 0.2 and 0.5 at N = 4608.
    """
    return ReplayBuffer(
        capacity, retention=(*_bounded_age(max_staleness), PositiveBias(delta, threshold)), limiter=MinSize(), **buffer
    )


def no_buffer(
    capacity: int,
    *,
    order: str = "newest",
    max_staleness: int | None = None,
    batch_size: int = 1,
    group_size: int = 1,
    **buffer: Any,
) -> ReplayBuffer:
    """The baseline: a bounded queue whose rollouts are used once, newest first (the paper) or oldest first.

    Arguments as in arXiv 2604.08706, section 1. With `batch_size` and `group_size` told, a capacity at which generators
    and trainers could wait for each other is refused.
    """
    orders: dict[str, Sampler] = {"newest": Newest(), "oldest": Oldest()}
    check_choice("order", order, sorted(orders))
    return ReplayBuffer(
        capacity,
        sampler=orders[order],
        retention=(MaxUses(1), *_bounded_age(max_staleness)),
        limiter=BoundedQueue(batch_size, group_size),
        **buffer,
    )


def per(
    capacity: int,
    *,
    by: str | PriorityFunction = "priority",
    exponent: float = 0.6,
    beta: float | Schedule | None = 0.4,
    normalize: str | None = "buffer",
    min_size: int = 0,
    **buffer: Any,
) -> ReplayBuffer:
    """Proportional prioritized replay (Schaul et al., arXiv 1511.05952): stratified draws, newcomers at the maximum.

    The trainer writes |advantage| or |TD error| back with `update_priorities`. `beta=Linear(0.4, 1.0, steps)` anneals
    over a run, as that paper does.
    """
    return ReplayBuffer(
        capacity,
        sampler=Prioritized(by, exponent, beta=beta, normalize=normalize, eps=1e-6),
        limiter=MinSize(min_size),
        **buffer,
    )


def freshness_per(
    capacity: int = 50_000,
    *,
    tau: float = 500.0,
    by: str | PriorityFunction = "reward",
    exponent: float = 0.6,
    beta: float | Schedule | None = None,
    normalize: str | None = "buffer",
    min_size: int = 128,
    **buffer: Any,
) -> ReplayBuffer:
    """Freshness-Aware PER (arXiv 2604.16918): weight ((|reward| + 1e-6) exp(-age / tau)) ** exponent.

    Age is counted from insertion, in train steps. `by="priority"` for values that the trainer writes back. `beta=0.4`
    or a `Linear(0.4, 1.0, steps)` turns the correction on, which that paper's main runs leave out.
    """
    sampler = Prioritized(by, exponent, beta=beta, normalize=normalize, eps=1e-6, decay=Exponential(tau))
    return ReplayBuffer(capacity, sampler=sampler, limiter=MinSize(min_size), **buffer)


def advantage_prioritized(
    capacity: int = 30_000,
    *,
    ratio: float = 0.5,
    exponent: float = 0.5,
    max_staleness: int = 10,
    warmup: int = 20,
    **buffer: Any,
) -> ReplayBuffer:
    """Rollout-level advantage-prioritized replay (arXiv 2606.04560): all fresh rollouts plus `ratio` times replayed.

    `sample(None, ...)` gives the whole batch. Replayed ones come without replacement, weight (|advantage| + 1e-6) **
    exponent. Groups of equal rewards are refused; what is older than `max_staleness` versions leaves before each draw.
    """
    replay = Prioritized("advantage", exponent, eps=1e-6, replacement=False)
    return ReplayBuffer(
        capacity,
        sampler=FreshAnchored(replay, ratio, warmup),
        retention=(MaxStaleness(max_staleness),),
        limiter=MinSize(1),
        admission=(Informative(),),
        **buffer,
    )


def judge_guided(
    capacity: int,
    *,
    warmup_steps: int,
    share: float = 0.5,
    by: str | PriorityFunction = "priority",
    default_priority: float = 1.0,
    beta: float | Schedule | None = None,
    **buffer: Any,
) -> ReplayBuffer:
    """A judge's scores mixed with uniform draws (arXiv 2602.01915): q = lambda score / sum + (1 - lambda) / N.

    Lambda rises from 0 to `share` within `warmup_steps`. A rollout counts `default_priority` until the judge, wherever
    it runs, writes its score back by rollout id with `update_priorities`.
    """
    check_not_negative("default_priority", default_priority)
    check_share("share", share)
    check_whole("warmup_steps", warmup_steps, least=1)
    scored = Prioritized(by, 1.0, stratified=False, new_priority=default_priority)
    sampler = Mixture((scored, Uniform()), Linear(0.0, share, warmup_steps), beta=beta)
    return ReplayBuffer(capacity, sampler=sampler, limiter=MinSize(), **buffer)


def repo(capacity: int, *, per_prompt: int = 16, **buffer: Any) -> ReplayBuffer:
    """RePO (arXiv 2506.09340): the newest 16 rollouts of each prompt.

    For the prompts of a batch: `sample_prompts(prompt_ids, 8, strategy=...)` with a strategy of `STRATEGIES`.
    """
    return ReplayBuffer(capacity, retention=(NewestPerPrompt(per_prompt),), limiter=MinSize(1), **buffer)


def exgrpo_buckets(
    capacity: int,
    *,
    group_size: int = 8,
    sigma: float = 1.0,
    rewards: tuple[float, float] = (0.0, 1.0),
    **buffer: Any,
) -> ReplayBuffer:
    """ExGRPO (arXiv 2510.02245): successes of prompts solved sometimes, most from those solved half of the time.

    A draw of n is n prompts, each with its success of lowest priority: write the entropy under the current policy back
    as the priority. `rewards`: of a failure and of a success.
    """
    return ReplayBuffer(
        capacity,
        sampler=Buckets(group_size, sigma=sigma, rewards=rewards),
        limiter=MinSize(1),
        admission=(Correct(sum(rewards) / 2),),
        **buffer,
    )


def rlep(capacity: int, *, threshold: float, **buffer: Any) -> ReplayBuffer:
    """RLEP (arXiv 2507.07451): verified successes of an earlier run.

    For the prompts of a batch: `sample_prompts(prompt_ids, 2)` draws two of each at random, to join 16 fresh ones.
    """
    return ReplayBuffer(capacity, limiter=MinSize(1), admission=(Correct(threshold),), **buffer)


def _bounded_age(max_staleness: int | None) -> tuple[Rule, ...]:
    return () if max_staleness is None else (MaxStaleness(max_staleness),)


PRESETS: dict[str, Callable[..., ReplayBuffer]] = {
    "advantage_prioritized": advantage_prioritized,
    "exgrpo_buckets": exgrpo_buckets,
    "freshness_per": freshness_per,
    "judge_guided": judge_guided,
    "no_buffer": no_buffer,
    "paper_fifo": paper_fifo,
    "paper_positive_bias": paper_positive_bias,
    "per": per,
    "repo": repo,
    "rlep": rlep,
}
"""Every preset by name."""
