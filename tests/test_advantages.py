import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.advantages import (
    centered_advantages,
    fixed_advantages,
    group_sizes,
    group_statistics,
    grpo_advantages,
    informative,
    leave_one_out_advantages,
    overlong_penalty,
    population_deviation,
    score_group,
    shifted_advantages,
)
from ostinato.errors import ConfigError, DataError
from ostinato.rollouts import Rollouts


def rollouts_of_groups(group_id: list[int]) -> Rollouts:
    n = len(group_id)
    return Rollouts.from_completions([[1, 2]] * n, [[3]] * n, [[-0.5]] * n, group_id=group_id)


@pytest.mark.parametrize(
    ("correct", "advantage_right", "advantage_wrong"),
    [(1, 2.474174, -0.353453), (2, 1.619835, -0.539945), (7, 0.353453, -2.474174)],
)
def test_grpo_advantages_are_the_hand_worked_ones_for_k_of_8_correct(correct, advantage_right, advantage_wrong):
    rewards = np.array([1.0] * correct + [0.0] * (8 - correct))
    mean, std = group_statistics(rewards, np.zeros(8, np.int64))
    p = correct / 8
    np.testing.assert_array_equal(mean, p)
    np.testing.assert_allclose(std, np.sqrt(8 / 7 * p * (1 - p)), rtol=1e-15)
    advantages = grpo_advantages(rewards, mean, std)
    np.testing.assert_allclose(advantages[:correct], advantage_right, atol=1e-6)
    np.testing.assert_allclose(advantages[correct:], advantage_wrong, atol=1e-6)


@pytest.mark.parametrize(("correct", "right", "wrong"), [(1, 2.474867, -0.353552), (2, 1.620182, -0.540061)])
def test_grpo_advantages_match_the_published_digits_at_eps_1e_6(correct, right, wrong):
    rewards = np.array([1.0] * correct + [0.0] * (8 - correct))
    advantages = grpo_advantages(rewards, *group_statistics(rewards, np.zeros(8, np.int64)), eps=1e-6)
    np.testing.assert_allclose(advantages[[0, -1]], [right, wrong], atol=1.5e-6)


def test_grpo_advantages_are_zero_when_a_group_has_equal_rewards_or_one_member():
    rewards = np.array([0.1, 0.1, 0.1, 5.0, 0.7, 0.7, 0.7])
    mean, std = group_statistics(rewards, np.array([4, 4, 4, 9, 1, 1, 1]))
    np.testing.assert_array_equal(std, 0.0)
    np.testing.assert_array_equal(mean, rewards)
    np.testing.assert_array_equal(grpo_advantages(rewards, mean, std, eps=0.0), 0.0)


@given(st.lists(st.tuples(st.integers(-3, 3), st.floats(-100, 100)), min_size=1, max_size=30))
def test_group_statistics_equal_those_of_each_group_by_itself_in_any_order(members):
    group_id = np.array([group for group, _ in members])
    rewards = np.array([reward for _, reward in members])
    mean, std = group_statistics(rewards, group_id)
    for i, group in enumerate(group_id):
        own = rewards[group_id == group]
        assert mean[i] == pytest.approx(own.mean(), abs=1e-12)
        assert std[i] == pytest.approx(own.std(ddof=1) if len(own) > 1 else 0.0, abs=1e-10)


def test_group_statistics_are_empty_when_there_is_no_rollout():
    mean, std = group_statistics(np.empty(0), np.empty(0, np.int64))
    assert mean.shape == std.shape == (0,)


def test_shifted_advantages_of_two_successes_in_8_are_1_6_and_minus_0_4():
    rewards = np.array([1.0, 1, -1, -1, -1, -1, -1, -1])
    mean, _ = group_statistics(rewards, np.zeros(8, np.int64))
    advantages = shifted_advantages(rewards, mean, shift=-0.1)
    np.testing.assert_allclose(advantages, [1.6] * 2 + [-0.4] * 6, rtol=1e-14)
    assert advantages.sum() == pytest.approx(0.8)


def test_score_group_freezes_statistics_of_interleaved_groups():
    scored = score_group(rollouts_of_groups([7, 3, 7, 3, 7]), [1, 0, 0, 0, 0])
    np.testing.assert_array_equal(scored.reward, [1, 0, 0, 0, 0])
    np.testing.assert_allclose(scored.group_reward_mean, [1 / 3, 0, 1 / 3, 0, 1 / 3])
    np.testing.assert_allclose(scored.group_reward_std, [3**-0.5, 0, 3**-0.5, 0, 3**-0.5])
    unit = 1 / 3 / (3**-0.5 + 1e-4)
    np.testing.assert_allclose(scored.advantage, [2 * unit, 0, -unit, 0, -unit])
    kept = scored.select([2])
    assert kept.advantage[0] == scored.advantage[2]


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([1.0, float("nan"), 0.0], r"reward nan of rollout 1 \(group 8\) is not finite"),
        ([1.0, 0.0, float("inf")], r"reward inf of rollout 2 \(group 9\) is not finite"),
        ([1.0, None, 0.0], "rollout 1"),
        ([1.0, 0.0], r"shape \(2,\), expected \(3,\)"),
        (np.zeros((3, 1)), r"shape \(3, 1\), expected \(3,\)"),
        (["right", "wrong", "wrong"], "rewards must be numbers"),
        ([1.0, [0.0], 0.0], "rewards must be numbers"),
    ],
)
def test_score_group_refuses_rewards_that_are_not_one_finite_number_a_rollout(rewards, message):
    with pytest.raises(DataError, match=message):
        score_group(rollouts_of_groups([7, 8, 9]), rewards)


def test_score_group_does_not_share_memory_with_the_rewards_it_was_given():
    rewards = np.array([1.0, 0.0])
    scored = score_group(rollouts_of_groups([0, 0]), rewards)
    rewards[:] = 9.0
    np.testing.assert_array_equal(scored.reward, [1.0, 0.0])


GROUPS_OF_3_AND_8 = np.array([5, 2, 2, 5, 2, 2, 2, 5, 2, 2, 2, 9])
REWARDS = np.array([1.0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0.5])


@pytest.mark.parametrize(("ddof", "right", "wrong"), [(0, 1.7320, -0.5773), (1, 1.6202, -0.5401)])
def test_grpo_advantages_when_two_of_8_are_right_differ_by_the_convention_of_the_deviation(ddof, right, wrong):
    rewards = np.array([1.0] * 2 + [0.0] * 6)
    advantages = grpo_advantages(rewards, *group_statistics(rewards, np.zeros(8, np.int64), ddof=ddof), eps=1e-6)
    np.testing.assert_allclose(advantages[[0, -1]], [right, wrong], atol=6e-5)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=12), st.integers(-5, 5))
def test_group_when_alone_has_the_statistics_it_has_beside_another(values, group):
    rewards, group_id = np.array([*values, 1.0, 3.0]), np.array([group] * len(values) + [group + 1] * 2)
    alone = group_statistics(rewards[:-2], group_id[:-2])
    for one, both in zip(alone, group_statistics(rewards, group_id), strict=True):
        np.testing.assert_array_equal(one, both[:-2])
    assert group_sizes(group_id[:-2]).tolist() == [len(values)] * len(values)
    assert group_sizes(group_id).tolist() == [len(values)] * len(values) + [2, 2]
    assert group_sizes(np.array([], np.int64)).tolist() == []


def test_groups_when_of_1_and_3_and_8_in_one_batch_each_have_their_own_counts():
    mean, std = group_statistics(REWARDS, GROUPS_OF_3_AND_8)
    np.testing.assert_array_equal(group_sizes(GROUPS_OF_3_AND_8), [3, 8, 8, 3, 8, 8, 8, 3, 8, 8, 8, 1])
    np.testing.assert_allclose(mean[GROUPS_OF_3_AND_8 == 5], 2 / 3)
    np.testing.assert_allclose(std[GROUPS_OF_3_AND_8 == 5], 3**-0.5)
    np.testing.assert_allclose(mean[GROUPS_OF_3_AND_8 == 2], 2 / 8)
    np.testing.assert_allclose(std[GROUPS_OF_3_AND_8 == 2], (8 / 7 * 3 / 16) ** 0.5)
    np.testing.assert_allclose(
        population_deviation(std, group_sizes(GROUPS_OF_3_AND_8)),
        group_statistics(REWARDS, GROUPS_OF_3_AND_8, ddof=0)[1],
    )
    for eps in (1e-4, 0.0):
        assert grpo_advantages(REWARDS, mean, std, eps=eps)[-1] == 0.0
    assert leave_one_out_advantages(REWARDS, mean, group_sizes(GROUPS_OF_3_AND_8))[-1] == 0.0
    assert informative(std).tolist() == [True] * 11 + [False]


@given(st.lists(st.tuples(st.integers(-2, 2), st.floats(-10, 10)), min_size=1, max_size=20))
def test_leave_one_out_when_taken_from_mean_and_size_is_the_reward_above_the_others(members):
    group_id = np.array([group for group, _ in members])
    rewards = np.array([reward for _, reward in members])
    mean, _ = group_statistics(rewards, group_id)
    advantages = leave_one_out_advantages(rewards, mean, group_sizes(group_id))
    for i, group in enumerate(group_id):
        others = np.delete(rewards, i)[np.delete(group_id, i) == group]
        expected = rewards[i] - others.mean() if len(others) else 0.0
        assert advantages[i] == pytest.approx(expected, abs=1e-12)


def test_leave_one_out_when_only_some_of_a_group_are_still_held_uses_the_stored_mean():
    scored = score_group(rollouts_of_groups([3] * 4), [1.0, 0.0, 0.0, 0.0])
    held = scored.select([0, 2])
    advantages = leave_one_out_advantages(held.reward, held.group_reward_mean, 4)
    np.testing.assert_allclose(advantages, [1.0, -1 / 3])
    with pytest.raises(DataError, match="group size of rollout 1 is 0, expected 1 or more"):
        leave_one_out_advantages(held.reward, held.group_reward_mean, np.array([4, 0]))


def test_centered_advantages_when_squared_have_the_mean_p_times_1_minus_p():
    for correct, priority in ((0, 0.0), (1, 0.109375), (2, 0.1875), (4, 0.25), (6, 0.1875), (8, 0.0)):
        rewards = np.array([1.0] * correct + [0.0] * (8 - correct))
        mean, std = group_statistics(rewards, np.zeros(8, np.int64), ddof=0)
        assert np.mean(centered_advantages(rewards, mean) ** 2) == pytest.approx(priority)
        assert std[0] ** 2 == pytest.approx(priority)
        assert informative(std).all() == (0 < correct < 8)


@pytest.mark.parametrize(
    ("wins", "n", "c", "share"), [(5, 10, 0, 0.5), (5, 10, 0.5, 0.25), (5, 10, 0.8, 0.1), (1, 5, 0.5, 0.0769)]
)
def test_fixed_baseline_when_raised_lowers_the_share_of_weight_that_successes_hold(wins, n, c, share):
    advantages = fixed_advantages(np.array([1.0] * wins + [-1.0] * (n - wins)), baseline=c)
    assert advantages[:wins].sum() / np.abs(advantages).sum() == pytest.approx(share, abs=5e-5)


@pytest.mark.parametrize(("correct", "score"), [(1, 1.749505), (3, 3.749276)])
def test_score_of_a_group_when_advantages_and_deviation_are_multiplied_is_the_published_one(correct, score):
    rewards = np.array([1.0] * correct + [0.0] * (8 - correct))
    mean, std = group_statistics(rewards, np.zeros(8, np.int64))
    assert np.abs(grpo_advantages(rewards, mean, std)).sum() * std[0] == pytest.approx(score, abs=1e-6)


def test_deviation_of_the_population_when_one_of_8_succeeds_is_0_3307():
    _, std = group_statistics(np.array([0.0] * 7 + [1.0]), np.zeros(8, np.int64))
    np.testing.assert_allclose(population_deviation(std, 8), 0.3307, atol=5e-5)


def test_overlong_penalty_when_lengths_near_the_limit_falls_to_minus_1():
    lengths = np.array([0, 10000, 16384, 18432, 20480, 20481, 10**9])
    np.testing.assert_array_equal(overlong_penalty(lengths), [0, 0, 0, -0.5, -1, -1, -1])
    np.testing.assert_array_equal(overlong_penalty(np.array([6, 8]), max_tokens=8, margin_tokens=4), [-0.5, -1])
    for margin in (0, 9):
        with pytest.raises(ConfigError, match=f"0 < margin_tokens <= max_tokens, got {margin} and 8"):
            overlong_penalty(lengths, max_tokens=8, margin_tokens=margin)


@pytest.mark.parametrize(
    ("rewards", "group_id", "message"),
    [
        ([1.0, 0.0], np.zeros(2, np.int64), "rewards are list"),
        (np.zeros(2), [0, 0], "group ids are list"),
        (np.zeros(2), np.zeros(2), "group ids are float64"),
        (np.array(["a", "b"]), np.zeros(2, np.int64), "rewards are <U1"),
        (np.zeros(2, np.complex128), np.zeros(2, np.int64), "rewards are complex128"),
        (np.ma.masked_array([1.0, 2.0], [False, True]), np.zeros(2, np.int64), "rewards are MaskedArray"),
        (np.zeros((2, 2)), np.zeros((2, 2), np.int64), r"rewards have shape \(2, 2\)"),
    ],
)
def test_group_statistics_when_given_no_arrays_of_numbers_say_so(rewards, group_id, message):
    with pytest.raises(DataError, match=message):
        group_statistics(rewards, group_id)


@pytest.mark.parametrize("group_id", [np.zeros((2, 2), np.int64), 3, None, [[1], [2, 3]], ["a"], [1.5]])
def test_group_sizes_when_given_no_row_of_integers_say_so(group_id):
    with pytest.raises(DataError, match="group ids"):
        group_sizes(group_id)


@pytest.mark.parametrize(
    "rewards",
    [
        np.array(["2020-01-01"] * 3, "M8[D]"),
        np.array([1j, 0, 0]),
        np.ma.masked_array([1.0, 0.0, 0.0], [True, False, False]),
        [10**400, 0, 0],
    ],
)
def test_rewards_when_their_numbers_would_mean_something_else_are_refused(rewards):
    with pytest.raises(DataError, match="rewards must be numbers"):
        score_group(rollouts_of_groups([4, 4, 4]), rewards)


@pytest.mark.parametrize("ddof", [2, "1", None, np.array([0, 1])])
def test_group_statistics_when_the_deviation_is_of_neither_kind_say_so(ddof):
    with pytest.raises(ConfigError, match="ddof must be 0 or 1"):
        group_statistics(REWARDS, GROUPS_OF_3_AND_8, ddof=ddof)
