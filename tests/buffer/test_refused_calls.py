"""Calls that fail, by whatever fault, leave the buffer as it was."""

import numpy as np
import pytest
from rollout_makers import plain, same_rollout

from ostinato.buffer import (
    MinSize,
    Oldest,
    ReplayBuffer,
    RightPadded,
    SmartEviction,
    Workspace,
)
from ostinato.buffer.sampling import Epoch, Picked
from ostinato.errors import ConfigError, DataError

RNG = np.random.default_rng


def test_draw_when_it_fails_after_the_sampler_chose_uses_nothing_up() -> None:
    def refuse(size: int) -> np.ndarray:
        raise MemoryError(f"{size} bytes")

    buffer = ReplayBuffer(4, sampler=Epoch())
    buffer.add(plain(4), train_step=0)
    before = buffer.state_arrays()
    for error, call in (
        (DataError, lambda: buffer.sample_padded(2, train_step=0, rng=RNG(0), layout=RightPadded(width=2))),
        (MemoryError, lambda: buffer.sample_padded(2, train_step=0, rng=RNG(0), out=Workspace(refuse))),
        (MemoryError, lambda: buffer.sample(2, train_step=0, rng=RNG(0), out=Workspace(refuse))),
    ):
        with pytest.raises(error):
            call()
        after = buffer.state_arrays()
        assert all(np.array_equal(before[name], after[name]) for name in before)
    drawn = [buffer.sample(2, train_step=0, rng=RNG(seed)).rollout_ids.tolist() for seed in range(2)]
    assert sorted(drawn[0] + drawn[1]) == [0, 1, 2, 3]


class Failing:
    """A rule, and a function of an order, that fails when told to."""

    on = False

    def expired(self, columns, touched) -> np.ndarray:
        return self.leaf(columns, np.empty(0, np.int64)).astype(np.int64)

    def leaf(self, columns, rows) -> np.ndarray:
        if self.on:
            raise RuntimeError("not today")
        return np.ones(len(rows))


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("make", [lambda f: f, lambda f: SmartEviction(1.0, leaf=f.leaf)])
def test_add_when_a_rule_or_an_order_fails_leaves_a_whole_buffer(make, kernels) -> None:
    failing = Failing()
    buffer = ReplayBuffer(4, sampler=Oldest(), retention=[make(failing)], limiter=MinSize(1), kernels=kernels)
    given = plain(4)
    buffer.add(given, train_step=0)
    failing.on = True
    with pytest.raises((RuntimeError, DataError), match="not today"):
        buffer.add(plain(2, first=4), train_step=1)
    failing.on = False
    buffer.check()
    held = buffer.columns["rollout_id"].tolist()
    assert held == [0, 1, 2, 3]
    draw = buffer.sample(4, train_step=1, rng=RNG(0))
    assert all(same_rollout(draw.rollouts, i, given, i) for i in range(4))
    buffer.add(plain(2, first=6), train_step=1)
    buffer.check()
    assert len(buffer) == 4


def test_sampler_when_its_weights_do_not_fit_its_rows_is_refused() -> None:
    class Wrong:
        repeats = True

        def __call__(self, columns, n, rng) -> Picked:
            return Picked(np.zeros(n, np.int64), np.ones(n + 1))

    buffer = ReplayBuffer(4, sampler=Wrong(), limiter=MinSize(1))
    buffer.add(plain(2), train_step=0)
    with pytest.raises(DataError, match="Wrong"):
        buffer.sample(2, train_step=0, rng=RNG(0))
    assert buffer.columns["uses"].tolist() == [0, 0]


def test_capacity_and_train_step_when_no_whole_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="capacity"):
        ReplayBuffer(2.5)
    with pytest.raises(ConfigError, match="capacity_bytes"):
        ReplayBuffer(2, capacity_bytes=1e9 + 0.5)
    buffer = ReplayBuffer(4)
    with pytest.raises(DataError, match="train step"):
        buffer.add(plain(2), train_step=2.5)
    assert len(buffer) == 0
