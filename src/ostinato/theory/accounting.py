"""What compute is spent on, in units of one baseline update.

C is the trainer's compute of one optimizer step on B rollouts, mu C the compute of generating B rollouts. A baseline
update (no buffer, every rollout used once) costs C (1 + mu): that is one unit. W generators and T trainers that never
wait for each other do mu T / W optimizer samples a generated rollout.

Source: arXiv 2604.08706, section on compute accounting.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError, DataError

Amount = TypeVar("Amount", float, NDArray[np.float64])


def compute_ratio(mu: float, generators: int, trainers: int) -> float:
    """gamma = (1 + W/T) / (1 + mu): cost of an update with a buffer over one without.

    Raises `ConfigError` unless mu > 0 and W, T >= 1.  Source: arXiv 2604.08706, eq. 2.
    """
    _check(mu, generators, trainers)
    return (1 + generators / trainers) / (1 + mu)


def mean_uses(mu: float, generators: int, trainers: int) -> float:
    """mu T / W: times a rollout is drawn on average, when neither side waits.

    Raises `ConfigError` unless mu > 0 and W, T >= 1.  Source: arXiv 2604.08706, mean replay ratio.
    """
    _check(mu, generators, trainers)
    return mu * trainers / generators


def measured_mu(busy_generate_s: float, generated: int, busy_train_s: float, trained: int) -> float:
    """Cost ratio seen in a run: seconds a generated rollout over seconds a trained rollout.

    Busy seconds are summed over workers and exclude waiting; `trained` counts repeats. Unlike
    (trained / T) / (generated / W) it holds when workers wait, as they do without a buffer.
    Raises `DataError` when one of the four is not positive: nothing was measured.
    """
    if min(busy_generate_s, generated, busy_train_s, trained) <= 0:
        raise DataError(
            f"mu needs positive busy seconds and counts, got {busy_generate_s} s for {generated} generated "
            f"and {busy_train_s} s for {trained} trained rollouts"
        )
    return (busy_generate_s / generated) / (busy_train_s / trained)


def fifo_residence(capacity: int, rollouts_per_step: float) -> float:
    """(x - 1) / 2 with x = N / R: mean residence, in train steps, of a uniform draw from a full FIFO buffer.

    `rollouts_per_step` is R, the rollouts inserted a train step: B W / (mu T) when neither side waits. The newest ones
    are drawn at residence 0, the oldest at x - 1. Raises `ConfigError` unless N >= 1 and R > 0.
    Source: arXiv 2604.08706, staleness horizon x.
    """
    if capacity < 1 or not rollouts_per_step > 0:
        raise ConfigError(f"expected capacity >= 1 and rollouts_per_step > 0, got {capacity} and {rollouts_per_step}")
    return (capacity / rollouts_per_step - 1) / 2


def compute_units(generated: Amount, trained: Amount, *, mu: float, batch_size: int) -> Amount:
    """(mu generated + trained) / (B (1 + mu)): compute spent, in baseline updates of B rollouts.

    `generated` counts rollouts, `trained` rollouts pushed through backward with repeats: two numbers or two arrays.
    A batch trained k times in a row thus costs (1 + mu / k) / (1 + mu) an update.
    Raises `ConfigError` unless mu > 0 and B >= 1.
    """
    if not mu > 0 or batch_size < 1:
        raise ConfigError(f"expected mu > 0 and batch_size >= 1, got {mu} and {batch_size}")
    return (mu * generated + trained) / (batch_size * (1 + mu))


def _check(mu: float, generators: int, trainers: int) -> None:
    if not mu > 0 or generators < 1 or trainers < 1:
        raise ConfigError(f"expected mu > 0, generators >= 1 and trainers >= 1, got {mu}, {generators} and {trainers}")
