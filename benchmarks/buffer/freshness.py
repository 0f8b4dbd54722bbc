"""G7: what it costs that every rollout is one train step older."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.sampling import Exponential, Prioritized
from ostinato.rollouts import Rollouts

from .peers import ELSEWHERE
from .results import Line, judged, least, most, skipped
from .setting import Setting
from .subject import NUMBA, Ostinato
from .timing import Measured, Times, milliseconds, race, ratio

BATCH, MILLION = 512, 1_000_000
BLOCK = 4096
TAU = 100.0


def freshness(setting: Setting) -> list[Line]:
    """The time that a new train step adds to a draw: an exponential law and any other, at N and at a million."""
    if not setting.is_long:
        return []  # nothing here touches a token
    lines: list[Line] = []
    laws = {"exponential": Exponential(TAU), "any law": lambda ages: 1 / (1 + np.asarray(ages) / TAU)}
    bounds = {
        ("exponential", False): 0.05,
        ("exponential", True): 0.05,
        ("any law", False): 0.25,
        ("any law", True): 12.0,
    }
    for law, decay in laws.items():
        for large in (False, True):
            n = (MILLION // 16 if setting.quick else MILLION) if large else len(setting.source)
            added = _per_step(n, decay, setting)
            what, bound = f"{NUMBA}: freshness a step, {law}, N = {n:,}", bounds[law, large]
            lines.append(judged("G7", setting.profile, what, added["step"], "ms", must=most(bound)))
            if law == "any law":
                lines += _beside_torchrl(setting, n, added["stepping"])
    return [*lines, skipped("G7", setting.profile, "FreshPER", ELSEWHERE)]


def tiny_rollouts(n: int) -> Iterator[Rollouts]:
    """n rollouts of 2 tokens, in blocks; for costs that do not depend on the payload."""
    for first in range(0, n, BLOCK):
        count = min(BLOCK, n - first)
        row = [[1]] * count
        yield Rollouts.from_completions(row, row, [[-0.5]] * count, group_id=first + np.arange(count))


def _per_step(n: int, decay: Any, setting: Setting) -> dict[str, Any]:
    """`stepping`: times of a draw of rows each at a new train step; `step`: ms more than a draw at the same one."""
    subject = Ostinato(n, sampler=Prioritized(exponent=0.6, decay=decay))
    for step, rollouts in enumerate(tiny_rollouts(n)):
        subject.buffer.add(rollouts, train_step=step)
    buffer = subject.buffer
    now = buffer.train_step

    def stepping() -> NDArray[np.int64]:
        nonlocal now
        now += 1
        return _drawn(buffer, now, subject.rng)

    def standing() -> NDArray[np.int64]:
        return _drawn(buffer, now, subject.rng)

    times = race({"standing": standing, "stepping": stepping}, setting.pace)
    more = [a - b for a, b in zip(times["stepping"].rounds, times["standing"].rounds, strict=True)]
    added = Measured(1e3 * max(0.0, float(np.median(more))), 1e3 * max(0.0, min(more)))
    return {"stepping": times["stepping"], "step": added}


def _drawn(buffer: Any, now: int, rng: np.random.Generator) -> NDArray[np.int64]:
    buffer.retain(train_step=now)
    rows: NDArray[np.int64] = buffer.sampler(buffer.columns, BATCH, rng).rows
    return rows


def _beside_torchrl(setting: Setting, n: int, ours: Times) -> list[Line]:
    """torchrl's sampler that weighs by staleness: it computes all weights at every draw."""
    name = "torchrl StalenessAwareSampler"
    try:
        draw = _torchrl_draw(n)
    except (ImportError, RuntimeError) as error:
        return [skipped("G7", setting.profile, name, str(error))]
    theirs = race({name: draw}, setting.pace)[name]
    beside = f"{NUMBA} {milliseconds(ours).value:.3g} ms, {name} {milliseconds(theirs).value:.3g} ms"
    what = f"{NUMBA}: a draw at a new step, any law, N = {n:,}, speed of torchrl"
    return [judged("G7", setting.profile, what, ratio(theirs, ours), "x", must=least(2.0), beside=beside)]


def _torchrl_draw(n: int) -> Callable[[], Any]:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.data.replay_buffers.samplers import StalenessAwareSampler

    sampler = StalenessAwareSampler(staleness_weight_fn=lambda age: 1 / (1 + age / TAU))
    buffer = ReplayBuffer(storage=LazyTensorStorage(n), sampler=sampler, batch_size=BATCH)
    buffer.extend(TensorDict({"policy_version": torch.arange(n) // BLOCK}, batch_size=[n]))

    def draw() -> Any:
        sampler.consumer_version = n // BLOCK
        return buffer.sample()

    return draw
