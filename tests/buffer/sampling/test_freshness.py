"""Decay against brute force: exact over any time, any range of priorities and any other law."""

import numpy as np
import pytest
from fake_columns import FakeColumns

from ostinato.buffer.sampling import Exponential, Prioritized
from ostinato.errors import ConfigError, DataError

RNG = np.random.default_rng


def brute_force(columns, factor, exponent, age_from="insert_step"):
    """(p f(age)) ** a over all live rows, normalised in log space."""
    live = columns.live()
    with np.errstate(divide="ignore"):
        logs = np.log(columns["priority"][live]) + factor(columns.train_step - columns[age_from][live])
    weights = np.exp(exponent * (logs - logs.max()))
    return weights / weights.sum()


def assert_exact(sampler, columns, factor, exponent, **keywords) -> None:
    np.testing.assert_allclose(
        sampler.probabilities(columns, columns.live()), brute_force(columns, factor, exponent, **keywords), rtol=1e-9
    )


def test_probabilities_when_a_million_priorities_were_written_over_sixteen_decades_are_exact() -> None:
    rng, tau, held = RNG(0), 40.0, 2000
    columns = FakeColumns(held)
    sampler = columns.attach(Prioritized(exponent=0.6, decay=Exponential(tau)))
    for step in range(500):
        columns.train_step = step
        rows = np.unique(rng.integers(held, size=2000))
        columns.write(rows, priority=10.0 ** rng.uniform(-8, 8, len(rows)), insert_step=step)
        sampler(columns, 8, rng)
        rows = rng.permutation(held)[:750]
        columns.write(rows, priority=10.0 ** rng.uniform(-8, 8, 750))
        if step % 50 == 49:
            assert_exact(sampler, columns, lambda ages: -ages / tau, 0.6)


def test_probabilities_when_time_passes_cost_nothing_and_stay() -> None:
    columns = FakeColumns(5, priority=np.arange(1, 6.0), insert_step=np.array([0, 3, 3, 8, 9]), train_step=9)
    calls = []
    sampler = columns.attach(
        Prioritized(lambda c, rows: calls.append(len(rows)) or c["priority"][rows], decay=Exponential(7.0))
    )
    before = sampler.probabilities(columns, columns.live())
    columns.train_step = 10**9
    np.testing.assert_array_equal(sampler.probabilities(columns, columns.live()), before)
    assert calls == [5]


def test_weights_when_births_rise_far_beyond_float64_are_rebased_and_exact() -> None:
    tau, exponent = 0.5, 1.0  # e^2 a step: 355 steps leave float64
    columns = FakeColumns()
    sampler = columns.attach(Prioritized(exponent=exponent, decay=Exponential(tau)))
    rng = RNG(1)
    for step in range(0, 5000, 5):
        columns.train_step = step
        columns.add(2, insert_step=step, priority=rng.random(2) + 0.1)
        if len(columns) > 20:
            columns.kill(columns.live()[:2])
        assert len(sampler(columns, 3, rng).rows) == 3
        if step % 250 == 0:
            assert_exact(sampler, columns, lambda ages: -ages / tau, exponent)


def test_old_rows_when_all_newer_ones_leave_have_the_right_ratios_again() -> None:
    columns = FakeColumns(3, priority=np.array([1.0, 2.0, 4.0]), insert_step=np.array([0, 1, 2]))
    columns.add(1, insert_step=100_000, priority=1.0)
    columns.train_step = 100_000
    sampler = columns.attach(Prioritized(exponent=1.0, decay=Exponential(10.0)))
    assert sampler.probabilities(columns, columns.live()).tolist() == [0, 0, 0, 1]
    columns.kill([3])
    assert_exact(sampler, columns, lambda ages: -ages / 10, 1.0)
    columns.add(1, insert_step=100_000, priority=1.0)
    assert set(sampler(columns, 50, RNG(0)).rows) == {4}


@pytest.mark.parametrize("decay", [None, Exponential(3.0), lambda ages: 1 / (1 + ages)])
@pytest.mark.parametrize("scale", [1e-300, 1e-100, 1e100, 1e300])
def test_weights_when_priorities_reach_the_ends_of_float64_are_exact(decay, scale) -> None:
    rng = RNG(2)
    columns = FakeColumns(50, insert_step=rng.integers(0, 9, 50), train_step=9, priority=rng.random(50))
    sampler = columns.attach(Prioritized(exponent=1.0, decay=decay))
    sampler(columns, 5, rng)
    factor = (lambda ages: 0 * ages) if decay is None else lambda ages: np.log(decay(ages))
    for factor_of_scale in (scale, 1.0, scale):
        columns.write(np.arange(50), priority=rng.random(50) * factor_of_scale)
        assert_exact(sampler, columns, factor, 1.0)


@pytest.mark.parametrize("age_from", ["insert_step", "policy_version_min", "birth_step"])
@pytest.mark.parametrize(
    "law",
    [Exponential(20.0), lambda ages: np.exp(-ages / 20.0), lambda ages: 1 / (1 + ages / 5), lambda ages: ages + 1],
)
def test_probabilities_when_any_law_decays_equal_brute_force(law, age_from) -> None:
    rng = RNG(3)
    columns = FakeColumns()
    sampler = columns.attach(Prioritized(exponent=0.7, decay=law, age_from=age_from, beta=0.5))
    for step in range(60):
        columns.train_step = step
        columns.add(3, priority=rng.random(3), **{age_from: np.array([step, max(0, step - 2), max(0, step - 7)])})
        if step > 20:
            columns.kill(rng.choice(columns.live(), 3, replace=False))
        columns.write(rng.choice(columns.live(), 2), priority=0.3)
        if step % 20 == 19:
            columns.compact()
        if step % 7 == 0:
            live = columns.live()
            assert_exact(sampler, columns, lambda ages: np.log(law(ages)), 0.7, age_from=age_from)
            assert sampler.least_drawable(columns) == pytest.approx(sampler.probabilities(columns, live).min())


def test_exponential_when_given_as_a_plain_function_is_the_same_law() -> None:
    rng = RNG(4)
    columns = FakeColumns(200, priority=rng.random(200), insert_step=rng.integers(0, 300, 200), train_step=300)
    fast = columns.attach(Prioritized(decay=Exponential(25.0)))
    slow = columns.attach(Prioritized(decay=lambda ages: np.exp(-ages / 25.0)))
    rows = columns.live()
    np.testing.assert_allclose(fast.probabilities(columns, rows), slow.probabilities(columns, rows), rtol=1e-10)


def test_half_life_when_the_exponent_is_below_one_is_longer() -> None:
    tau, exponent = 500, 0.6
    half_life = tau * np.log(2) / exponent
    columns = FakeColumns(2, insert_step=np.array([0, round(half_life)]), train_step=1000)
    sampler = columns.attach(Prioritized(exponent=exponent, decay=Exponential(tau)))
    chance = sampler.probabilities(columns, columns.live())
    assert chance[0] / chance[1] == pytest.approx(0.5, rel=1e-3)


def test_law_when_all_rows_are_so_old_that_its_factors_nearly_vanish_is_still_exact_and_takes_new_rows() -> None:
    columns = FakeColumns(2, insert_step=np.array([0, 10]), train_step=6000)
    law = lambda ages: np.exp(-ages / 10.0)  # noqa: E731
    sampler = columns.attach(Prioritized(exponent=1.0, decay=law))
    assert_exact(sampler, columns, lambda ages: -ages / 10, 1.0)
    columns.add(1, insert_step=6000, priority=1e100)
    assert sampler.probabilities(columns, np.array([2])).tolist() == [1.0]
    columns.kill([2])
    columns.train_step += 1
    assert_exact(sampler, columns, lambda ages: -ages / 10, 1.0)


def test_law_when_older_rows_arrive_within_a_step_reaches_to_their_ages() -> None:
    columns = FakeColumns(2, policy_version_min=np.array([98, 99]), train_step=100)
    sampler = columns.attach(
        Prioritized(exponent=1.0, decay=lambda ages: 1 / (1 + ages), age_from="policy_version_min", replacement=False)
    )
    for version in (90, 50):
        sampler(columns, 1, RNG(0))
        columns.add(1, policy_version_min=version)
        assert_exact(sampler, columns, lambda ages: -np.log(1 + ages), 1.0, age_from="policy_version_min")
    columns.kill([3])
    sampler.rebuilt(columns)
    columns.write([2], policy_version_min=10)
    sampler.rebuilt(columns)
    assert_exact(sampler, columns, lambda ages: -np.log(1 + ages), 1.0, age_from="policy_version_min")


@pytest.mark.parametrize(
    ("law", "message"),
    [
        (lambda ages: -1.0 - ages, "gives -1.0 at age 0"),
        (lambda ages: np.where(ages == 2, np.nan, 1.0), "gives nan at age 2"),
        (lambda ages: 1.0, "gives float64 .* for 4 ages"),
    ],
)
def test_law_when_it_gives_nonsense_is_named_and_fails_again(law, message) -> None:
    columns = FakeColumns(3, insert_step=np.arange(3), train_step=3)
    sampler = columns.attach(Prioritized(decay=law))
    for _ in range(2):
        with pytest.raises(DataError, match=f"decay law <lambda> {message}"):
            sampler(columns, 1, RNG(0))


@pytest.mark.parametrize("tau", [0, -1, np.inf, np.nan])
def test_tau_when_without_meaning_is_refused(tau) -> None:
    with pytest.raises(ConfigError, match="tau of an exponential decay"):
        Exponential(tau)
