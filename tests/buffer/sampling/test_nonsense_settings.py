"""Every constructor, given nonsense for any of its settings, says so in one line; numpy's numbers are numbers."""

import dataclasses
import inspect
from fractions import Fraction

import numpy as np
import pytest
from fake_columns import FakeColumns

from ostinato.buffer import presets
from ostinato.buffer.admission import Correct
from ostinato.buffer.limits import BoundedQueue, MinSize, SamplesPerInsert
from ostinato.buffer.retention import (
    KeepBest,
    MaxStaleness,
    MaxUses,
    NewestPerPrompt,
    PositiveBias,
    Reservoir,
    SmartEviction,
    split_retention,
)
from ostinato.buffer.sampling import (
    Buckets,
    Exponential,
    FreshAnchored,
    Groups,
    Mixture,
    Newest,
    Picked,
    Prioritized,
    Quotas,
    Uniform,
)
from ostinato.buffer.schedule import Constant, Linear, StepAfter, bounded
from ostinato.errors import ConfigError, DataError

NONSENSE = {
    "none": None,
    "text": "x",
    "empty text": "",
    "list": [1],
    "array": np.array([[0.5, 0.5], [0.5, 0.5]]),
    "scalar array": np.array(0.5),
    "flag": True,
    "numpy flag": np.bool_(True),
    "inf": float("inf"),
    "-inf": -np.inf,
    "nan": np.float64("nan"),
    "float32 nan": np.float32("nan"),
    "huge": 10**400,
    "-huge": -(10**400),
    "gigantic": 10**5000,
    "complex": 1j,
    "dict": {"a": "b"},
    "class": Uniform,
    "object": object(),
}
TEXTS, FLAGS = {"text", "empty text"}, {"flag", "numpy flag"}

CALLS = [
    (Constant, {"value": 1.0}),
    (Linear, {"start": 0.0, "end": 1.0, "steps": 10, "begin": 0}),
    (StepAfter, {"step": 3, "before": 0.0, "after": 1.0}),
    (bounded, {"value": 0.5}),
    (Uniform, {"replacement": True}),
    (Exponential, {"tau": 5.0}),
    (
        Prioritized,
        {
            "by": "priority",
            "exponent": 0.6,
            "beta": 0.4,
            "normalize": "batch",
            "stratified": True,
            "replacement": True,
            "eps": 0.0,
            "decay": Exponential(3.0),
            "age_from": "insert_step",
            "new_priority": 1.0,
        },
    ),
    (Mixture, {"parts": (Uniform(), Uniform()), "shares": 0.5, "beta": 0.4, "normalize": None}),
    (Quotas, {"fractions": {"a": 1.0}, "inner": Uniform()}),
    (Groups, {"order": "newest"}),
    (FreshAnchored, {"replay": Uniform(), "ratio": 0.5, "warmup": 3}),
    (Buckets, {"group_size": 8, "sigma": 1.0, "lowest": "priority", "rewards": (0.0, 1.0)}),
    (MaxUses, {"n": 1}),
    (MaxStaleness, {"n": 1}),
    (NewestPerPrompt, {"n": 1}),
    (PositiveBias, {"delta": 0.5, "threshold": 0.0}),
    (KeepBest, {"by": "reward"}),
    (Reservoir, {"seed": 3}),
    (SmartEviction, {"tau": 3.0, "exponent": 0.6, "leaf": None}),
    (split_retention, {"retention": []}),
    (Correct, {"threshold": 0.5}),
    (MinSize, {"n": 3}),
    (BoundedQueue, {"batch_size": 1, "group_size": 1}),
    (SamplesPerInsert, {"ratio": 2.0, "min_size": 4, "error_buffer": 9.0, "batch_size": 1, "group_size": 1}),
    (MinSize(3).check, {"capacity": 8}),
    (BoundedQueue().check, {"capacity": 8}),
    (SamplesPerInsert(1.0).check, {"capacity": 8}),
    (presets.paper_fifo, {"capacity": 8, "replacement": True, "min_size": 0, "max_staleness": 3}),
    (presets.paper_positive_bias, {"capacity": 8, "threshold": 0.5, "delta": 0.5, "max_staleness": 3}),
    (presets.no_buffer, {"capacity": 8, "order": "newest", "max_staleness": 3, "batch_size": 1, "group_size": 1}),
    (
        presets.per,
        {"capacity": 8, "by": "reward", "exponent": 0.6, "beta": 0.4, "normalize": "batch", "min_size": 0},
    ),
    (
        presets.freshness_per,
        {"capacity": 8, "tau": 5.0, "by": "reward", "exponent": 0.6, "beta": 0.4, "normalize": None, "min_size": 1},
    ),
    (
        presets.advantage_prioritized,
        {"capacity": 8, "ratio": 0.5, "exponent": 0.5, "max_staleness": 10, "warmup": 20},
    ),
    (
        presets.judge_guided,
        {"capacity": 8, "warmup_steps": 5, "share": 0.5, "by": "reward", "default_priority": 1.0, "beta": 0.4},
    ),
    (presets.repo, {"capacity": 8, "per_prompt": 16}),
    (presets.exgrpo_buckets, {"capacity": 8, "group_size": 8, "sigma": 1.0, "rewards": (0.0, 1.0)}),
    (presets.rlep, {"capacity": 8, "threshold": 0.5}),
]
"""Something to call, and a value of each setting that it takes."""

MAY_BE = {
    "by": TEXTS,  # any column: whether it is there is known when a buffer comes
    "lowest": TEXTS,
    "replacement": FLAGS,
    "stratified": FLAGS,
    "beta": {"none"},
    "normalize": {"none"},
    "decay": {"none"},
    "leaf": {"none"},
    "inner": {"none"},
    "replay": {"none"},
    "error_buffer": {"none"},
    "shares": {"list"},  # [1] is the share of one part
}
"""Nonsense that is none for this setting."""

NONE_MEANS_NO_BOUND = {presets.paper_fifo, presets.paper_positive_bias, presets.no_buffer}


def make(call, settings):
    if call is bounded:
        return bounded("beta", low=0, high=1, **settings)
    return call(**settings)


def has_meaning(call, setting: str, kind: str) -> bool:
    if setting == "max_staleness" and call in NONE_MEANS_NO_BOUND:
        return kind == "none"
    return kind in MAY_BE.get(setting, ())


CASES = [
    pytest.param(call, settings, name, kind, id=f"{getattr(call, '__qualname__', call)}-{name}-{kind}")
    for call, settings in CALLS
    for name in settings
    for kind in NONSENSE
    if not has_meaning(call, name, kind)
]


@pytest.mark.parametrize(("call", "settings", "name", "kind"), CASES)
def test_setting_when_it_is_nonsense_is_refused_in_one_line(call, settings, name, kind) -> None:
    with pytest.raises(ConfigError) as caught:
        make(call, {**settings, name: NONSENSE[kind]})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


@pytest.mark.parametrize(("call", "settings"), CALLS)
def test_settings_when_listed_here_are_all_there_are_and_make_sense(call, settings) -> None:
    make(call, settings)
    known = set(inspect.signature(call).parameters) - {"buffer", "name", "low", "high"}
    assert {name for name in known if not name.startswith("_")} == set(settings)


@pytest.mark.parametrize(("call", "settings"), [(c, s) for c, s in CALLS if dataclasses.is_dataclass(c)])
def test_numbers_when_they_are_numpys_become_plain_ones(call, settings) -> None:
    small = {
        name: np.uint8(value) if type(value) is int else np.float32(value) if type(value) is float else value
        for name, value in settings.items()
    }
    made = call(**small)
    for name, value in settings.items():
        assert type(getattr(made, name)) is type(value)
        assert getattr(made, name) == (pytest.approx(value, rel=1e-6) if type(value) is float else value)


def test_small_unsigned_settings_when_calculated_with_do_not_wrap() -> None:
    columns = FakeColumns(4, train_step=1, policy_version_min=np.arange(4) - 2)
    rule = MaxStaleness(np.uint8(2))
    assert rule.expired(columns, None).tolist() == [0]  # below version 1 - 2, not 255
    assert StepAfter(np.uint8(3), 0, Fraction(1, 2))(4) == 0.5
    assert Linear(0, 1, np.uint8(4), np.uint8(2))(1) == 0.0


def test_schedule_when_its_function_gives_no_number_is_refused_at_that_step() -> None:
    for value in ("x", None, float("nan"), True):
        with pytest.raises(ConfigError, match="beta must be a finite number"):
            bounded("beta", lambda step, value=value: value, 0, 1)(3)


@pytest.mark.parametrize("make", [lambda: Mixture((Uniform, Uniform()), 0.5), lambda: bounded("beta", Linear, 0, 1)])
def test_class_when_given_for_an_instance_is_named(make) -> None:
    with pytest.raises(ConfigError, match=r"the class (Uniform|Linear), expected an instance"):
        make()


@pytest.mark.parametrize("fractions", [{"a": True}, {"a": "1"}, {1: 1.0}, {"a": None}, [("a", 1.0)], {"a": 10**400}])
def test_fractions_when_they_are_no_numbers_by_name_are_refused(fractions) -> None:
    with pytest.raises(ConfigError, match="quota"):
        Quotas(fractions)


@pytest.mark.parametrize("rewards", [(0.0, 1.0, 2.0), (None, 1.0), (0.0, "1"), (0.0, np.nan), "01", (0, 10**400)])
def test_rewards_of_buckets_when_they_are_no_two_numbers_are_refused(rewards) -> None:
    with pytest.raises(ConfigError, match="rewards"):
        Buckets(rewards=rewards)


def test_buckets_when_the_column_is_not_there_are_refused_by_the_buffer() -> None:
    with pytest.raises(ConfigError, match="lowest of buckets"):
        FakeColumns(2).attach(Buckets(lowest="entropy"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_importance_weights_when_one_is_no_weight_are_refused_with_its_place(bad) -> None:
    with pytest.raises(DataError, match="importance weight 1 of a batch is"):
        Picked(np.arange(3), np.array([1.0, bad, 1.0]))
    kept = Picked(np.arange(2), np.array([0.0, 2.0]))
    assert kept.importance_weights.tolist() == [0.0, 2.0]


@pytest.mark.parametrize("n", [2.0, True, "2", [2], np.array(2.0)])
def test_samplers_when_asked_for_no_whole_number_are_refused(n) -> None:
    for sampler in (Newest(), Uniform(), Groups(), FreshAnchored()):
        with pytest.raises(DataError, match="expected an integer"):
            sampler(FakeColumns(3), n, np.random.default_rng(0))


def test_newest_when_asked_with_a_small_unsigned_number_draws_as_many() -> None:
    assert Newest()(FakeColumns(3), np.uint8(3), np.random.default_rng(0)).tolist() == [2, 1, 0]


class NotWeighing:
    """A sampler whose weights are no numbers."""

    repeats = True

    def __call__(self, columns, n, rng):
        return Picked(Newest()(columns, n, rng), np.full(n, np.nan))


def test_quotas_when_an_inner_sampler_gives_nan_weights_are_refused() -> None:
    sampler = FakeColumns(3, sources=("a",)).attach(Quotas({"a": 1.0}, NotWeighing()))
    with pytest.raises(DataError, match="importance weight 0 of a batch is nan"):
        sampler(FakeColumns(3, sources=("a",)), 2, np.random.default_rng(0))
