"""Schedules by numbers, and the bounds of the settings that take one."""

import pytest

from ostinato.buffer.schedule import Constant, Linear, StepAfter, bounded
from ostinato.errors import ConfigError


def test_linear_when_warming_up_follows_the_paper() -> None:
    warm_up = Linear(0, 0.5, steps=100)
    assert [warm_up(step) for step in (0, 25, 50, 100, 200)] == [0, 0.125, 0.25, 0.5, 0.5]
    assert [Linear(0.4, 1.0, steps=10, begin=5)(step) for step in (0, 5, 10, 15, 99)] == pytest.approx(
        [0.4, 0.4, 0.7, 1, 1]
    )


def test_step_when_at_the_step_is_still_before() -> None:
    assert [StepAfter(20, 0.0, 0.5)(step) for step in (0, 20, 21)] == [0, 0, 0.5]


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan"), Linear(0, 1.5, 10), StepAfter(3, -1, 0)])
def test_bounded_when_the_setting_may_leave_its_range_is_refused_at_construction(bad) -> None:
    with pytest.raises(ConfigError, match=r"beta must lie within \[0, 1\]|beta must be a finite number, got nan"):
        bounded("beta", bad, 0, 1)


def test_bounded_when_a_function_leaves_the_range_raises_at_that_step() -> None:
    beta = bounded("beta", lambda step: step / 10, 0, 1)
    assert beta(10) == 1
    with pytest.raises(ConfigError, match=r"beta must lie within \[0, 1\], got 1.1"):
        beta(11)


@pytest.mark.parametrize(
    "make", [lambda: Linear(0, 1, 0), lambda: Constant(float("inf")), lambda: Linear(0, float("nan"), 3)]
)
def test_schedule_when_without_meaning_is_refused(make) -> None:
    with pytest.raises(ConfigError):
        make()
