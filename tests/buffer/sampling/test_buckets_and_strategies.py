"""Prompts by pass count (ExGRPO), and which stored rollouts of a prompt (RePO)."""

from itertools import combinations

import numpy as np
import pytest
from fake_columns import FakeColumns
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from ostinato.buffer.sampling import STRATEGIES, Buckets
from ostinato.buffer.sampling.buckets import bucket_weights
from ostinato.errors import ConfigError, DataError

RNG = np.random.default_rng


def stored(pass_counts, successes=2, **columns) -> FakeColumns:
    """For each prompt p its `successes` and one failure, the latest group solved pass_counts[p] of 8 times."""
    prompts = np.repeat(np.arange(len(pass_counts)), successes + 1)
    reward = np.tile([1.0] * successes + [0.0], len(pass_counts))
    mean = np.repeat(np.array(pass_counts) / 8, successes + 1)
    return FakeColumns(len(prompts), prompt_id=prompts, reward=reward, group_reward_mean=mean, **columns)


def test_bucket_weights_when_eight_are_generated_are_those_of_the_paper() -> None:
    expected = [0.004433, 0.054006, 0.242036, 0.399050, 0.242036, 0.054006, 0.004433]
    assert bucket_weights(8) == pytest.approx(expected, abs=5e-7)


def test_prompts_when_drawn_one_by_one_have_the_chances_of_their_buckets() -> None:
    pass_counts = [4, 4, 4, 3, 2, 0, 8]
    columns, rng = stored(pass_counts, priority=np.arange(21.0)), RNG(0)
    rows = np.concatenate([Buckets()(columns, 1, rng) for _ in range(4000)])
    counts = np.bincount(rows, minlength=21)
    assert set(np.flatnonzero(counts)) == {0, 3, 6, 9, 12}  # the success of lowest priority; k = 0 and k = 8 never
    weights = bucket_weights(8)[[3, 2, 1]]
    expected = np.array([1 / 3, 1 / 3, 1 / 3, 1, 1]) * np.repeat(weights / weights.sum(), [3, 1, 1])
    assert chisquare(counts[[0, 3, 6, 9, 12]], expected * 4000).pvalue > 1e-3


def test_batch_when_a_bucket_runs_dry_is_filled_by_the_others() -> None:
    columns = stored([4, 1, 1, 7, 7])
    for seed in range(50):
        assert sorted(columns["prompt_id"][Buckets()(columns, 5, RNG(seed))]) == [0, 1, 2, 3, 4]
    with pytest.raises(DataError, match="cannot draw 6: 5 prompts are solved sometimes"):
        Buckets()(columns, 6, RNG(0))


def test_trajectory_when_entropies_are_written_back_is_the_lowest_success() -> None:
    columns = FakeColumns(
        5, reward=np.array([1.0, 1, 1, 0, 1]), priority=np.array([0.5, 0.2, 0.2, 0.1, 0.9]), group_reward_mean=0.5
    )
    assert Buckets()(columns, 1, RNG(0)).tolist() == [2]  # the newest among equals; row 3 failed
    columns.kill([2])
    assert Buckets()(columns, 1, RNG(0)).tolist() == [1]
    assert Buckets(lowest="advantage")(columns, 1, RNG(0)).tolist() == [4]


def test_pass_count_when_a_prompt_was_generated_again_is_the_latest() -> None:
    columns = FakeColumns(3, reward=1.0, group_reward_mean=np.array([0.5, 0.5, 1.0]))
    with pytest.raises(DataError, match="0 prompts are solved sometimes"):
        Buckets()(columns, 1, RNG(0))  # fully solved now: retired
    minus_one = FakeColumns(2, reward=np.array([1.0, -1.0]), group_reward_mean=0.0)
    assert Buckets(rewards=(-1.0, 1.0))(minus_one, 1, RNG(0)).tolist() == [0]


@pytest.mark.parametrize("settings", [{"group_size": 1}, {"sigma": 0.0}, {"sigma": np.nan}, {"rewards": (1.0, 1.0)}])
def test_buckets_when_settings_have_no_meaning_are_refused(settings) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Buckets(**settings)


def chosen(name, rewards, k, *, seed=0, **columns) -> np.ndarray:
    given = FakeColumns(len(rewards) + 3, reward=np.append([9.0, 9, 9], rewards), **columns)
    rows = np.arange(3, len(rewards) + 3)
    result = STRATEGIES[name](given, rows, k, RNG(seed))
    assert len(set(result)) == len(result) and set(result) <= set(rows)
    return result


def test_max_variance_when_five_of_sixteen_are_right_takes_two_and_two() -> None:
    rewards = np.array([1.0] * 5 + [0.0] * 11)
    assert sorted(rewards[chosen("max_variance_k", rewards, 4) - 3]) == [0, 0, 1, 1]


def test_max_variance_when_variances_tie_takes_the_greater_sum() -> None:
    rewards = np.array([0.0, 0, 0, 1, 1, 1])
    assert rewards[chosen("max_variance_k", rewards, 3) - 3].sum() == 2


@given(rewards=st.lists(st.integers(-3, 3).map(lambda x: x / 2), min_size=1, max_size=9), k=st.integers(1, 9))
def test_max_variance_when_all_subsets_are_tried_is_none_worse(rewards, k) -> None:
    values = np.array(rewards)
    result = values[chosen("max_variance_k", rewards, k) - 3]
    assert len(result) == min(k, len(values))
    best = max(
        (round(float(np.var(part)), 9), round(sum(part), 9)) for part in combinations(rewards, min(k, len(rewards)))
    )
    assert (round(float(result.var()), 9), round(float(result.sum()), 9)) == best


def test_max_variance_when_eight_of_sixteen_reals_are_wanted_equals_the_exhaustive_search() -> None:
    rewards = RNG(0).normal(size=16)
    every = np.array(list(combinations(rewards, 8)))
    assert rewards[chosen("max_variance_k", rewards, 8) - 3].var() == pytest.approx(every.var(axis=1).max(), rel=1e-12)


def test_other_strategies_when_asked_for_three_take_what_their_name_says() -> None:
    rewards = np.array([0.0, 3, 1, 2, 3])
    assert rewards[chosen("highest_k", rewards, 3) - 3].tolist() == [3, 3, 2]
    assert chosen("recent_k", rewards, 3).tolist() == [7, 6, 5]
    assert chosen("all", rewards, 3).tolist() == [3, 4, 5, 6, 7]
    priority = np.array([0, 0, 0, 5.0, 1, 4, 2, 3])
    assert chosen("lowest_priority_k", rewards, 3, priority=priority).tolist() == [4, 6, 7]
    for name in STRATEGIES:
        assert sorted(chosen(name, rewards, 9)) == [3, 4, 5, 6, 7]


def test_ties_and_random_choices_when_repeated_spread_over_the_rows() -> None:
    for name in ("random_k", "highest_k", "lowest_priority_k", "max_variance_k"):
        rows = np.concatenate([chosen(name, np.ones(5), 2, seed=seed) for seed in range(2000)])
        assert chisquare(np.bincount(rows - 3, minlength=5)).pvalue > 1e-3
