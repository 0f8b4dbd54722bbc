"""Groups are generations: what may not merge does not, and what is pooled is pooled on purpose."""

import numpy as np
import pytest

from ostinato.advantages import (
    check_groups,
    group_statistics,
    grpo_advantages,
    joint_groups,
    overlong_penalty,
    score_group,
    split_groups,
)
from ostinato.errors import ConfigError, DataError
from ostinato.rollouts import Rollouts, concatenate


def rollouts(n: int, **columns) -> Rollouts:
    return Rollouts.from_completions([[1, 2]] * n, [[3]] * n, [[-0.5]] * n, **columns)


def group(group_id: int, rewards: list[float], **columns) -> Rollouts:
    return score_group(rollouts(len(rewards), group_id=group_id, **columns), rewards)


@pytest.mark.parametrize(
    ("fresh", "message"),
    [
        ({"birth_step": 6}, "birth_step of rollout 0 is 2, of rollout 4 6"),
        ({"prompt_id": 8}, "prompt_id of rollout 0 is 7, of rollout 4 8"),
        ({"rewards": [1.0, 1.0, 0.0, 0.0]}, r"group_reward_mean of rollout 0 is 0\.25, of rollout 4 0\.5"),
        ({"rewards": [0.5, 0.5, 0.0, 0.0]}, r"group_reward_std of rollout 0 is 0\.5, of rollout 4 0\.288"),
    ],
)
def test_groups_when_a_fresh_and_a_replayed_one_share_a_number_are_refused(fresh, message) -> None:
    replayed = {"group_id": 3, "prompt_id": 7, "birth_step": 2, "rewards": [1.0, 0.0, 0.0, 0.0]}
    both = concatenate([group(**replayed), group(**replayed | fresh)])
    expected = f"group 3 holds two generations: {message}.*; give every generation of a prompt its own group_id"
    with pytest.raises(DataError, match=expected):
        check_groups(both)
    with pytest.raises(DataError, match=expected):
        score_group(both, both.reward)
    check_groups(concatenate([group(**replayed), group(**replayed | fresh | {"group_id": 4})]))


def test_groups_when_weights_were_exchanged_while_they_were_generated_are_one() -> None:
    one = group(3, [1.0, 0.0, 0.0], policy_version_min=[4, 4, 5], policy_version_max=[4, 5, 5], birth_step=4)
    shaken = one.group_reward_mean.astype(np.float32).astype(np.float64)
    check_groups(one.replace(group_reward_mean=np.where([True, False, False], shaken, one.group_reward_mean)))
    check_groups(one.select([]))


def rlep() -> tuple[Rollouts, np.ndarray]:
    """4 of 16 fresh ones right, and 2 stored successes of the same prompt, out of an old group of 8; shuffled."""
    old = group(1, [1.0] * 3 + [0.0] * 5, prompt_id=7)
    fresh = group(2, [1.0] * 4 + [0.0] * 12, prompt_id=7, birth_step=9)
    order = np.random.default_rng(0).permutation(18)
    return concatenate([fresh, old.select([0, 2])]).select(order), np.array([True] * 16 + [False] * 2)[order]


@pytest.mark.parametrize(("ddof", "right", "wrong"), [(0, 1.414214, -0.707107), (1, 1.374369, -0.687184)])
def test_joint_normalization_when_2_successes_join_16_is_that_of_rlep(ddof, right, wrong) -> None:
    batch, fresh = rlep()
    numbers = joint_groups(batch, fresh)
    assert set(numbers) == {2}
    advantages = grpo_advantages(batch.reward, *group_statistics(batch.reward, numbers, ddof=ddof), eps=0.0)
    np.testing.assert_allclose(advantages, np.where(batch.reward == 1, right, wrong), atol=1e-6)
    alone = grpo_advantages(batch.reward, *group_statistics(batch.reward, batch.group_id), eps=0.0)[fresh]
    np.testing.assert_allclose(alone, np.where(batch.reward[fresh] == 1, 1.677051, -0.559017), atol=1e-6)


def test_split_and_mixed_normalization_when_3_of_8_are_retrieved_are_those_of_repo() -> None:
    fresh = group(20, [1.0] + [0.0] * 7, prompt_id=7, birth_step=5)
    # Retrieved one by one: 5 of an older generation, 3 of another.
    one, other = group(11, [1.0] * 2 + [0.0] * 6, prompt_id=7), group(12, [1.0] + [0.0] * 7, prompt_id=7, birth_step=1)
    batch = concatenate([fresh, one.select([0, 1, 3, 4, 5]), other.select([0, 6, 7])])
    is_fresh = np.arange(16) < 8
    split = grpo_advantages(batch.reward, *group_statistics(batch.reward, split_groups(batch, is_fresh)))
    right, wrong = batch.reward == 1, batch.reward == 0
    np.testing.assert_allclose(split[is_fresh & right], 2.474174, atol=1e-6)
    np.testing.assert_allclose(split[is_fresh & wrong], -0.353453, atol=1e-6)
    np.testing.assert_allclose(split[~is_fresh & right], 1.207381, atol=1e-6)
    np.testing.assert_allclose(split[~is_fresh & wrong], -0.724429, atol=1e-6)
    mixed = grpo_advantages(batch.reward, *group_statistics(batch.reward, joint_groups(batch, is_fresh)))
    np.testing.assert_allclose(mixed[right], 1.676676, atol=1e-6)
    np.testing.assert_allclose(mixed[wrong], -0.558892, atol=1e-6)


def test_joint_groups_when_there_are_several_prompts_find_each_its_own() -> None:
    parts = [group(4, [1.0, 0.0], prompt_id=9), group(5, [1.0], prompt_id=7), group(6, [0.0, 1.0], prompt_id=8)]
    replayed = [group(1, [1.0], prompt_id=8), group(2, [1.0], prompt_id=9), group(3, [0.0], prompt_id=8)]
    batch = concatenate([*parts, *replayed])
    assert joint_groups(batch, np.arange(8) < 5).tolist() == [4, 4, 5, 6, 6, 6, 4, 6]


def test_split_groups_when_a_group_and_a_prompt_have_one_number_keep_them_apart() -> None:
    batch = concatenate([group(7, [1.0, 0.0], prompt_id=5), group(8, [1.0, 0.0], prompt_id=7)])
    numbers = split_groups(batch, np.array([True, True, False, False]))
    assert numbers.dtype == np.int64
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3]
    assert split_groups(batch.select([]), np.zeros(0, np.bool_)).shape == (0,)
    assert joint_groups(batch.select([]), np.zeros(0, np.bool_)).shape == (0,)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            concatenate([group(1, [1.0, 0.0], prompt_id=5), group(2, [1.0, 0.0], prompt_id=6)]),
            r"replayed rollout 2 \(group 2, prompt 6\) has 0 fresh groups of its prompt in this batch, expected 1",
        ),
        (group(1, [1.0, 0.0, 0.0, 0.0], prompt_id=5), "group 1 is both fresh and replayed"),
        (
            concatenate(
                [group(1, [1.0], prompt_id=5), group(2, [0.0], prompt_id=5), group(3, [1.0, 0.0], prompt_id=5)]
            ),
            r"replayed rollout 2 \(group 3, prompt 5\) has 2 fresh groups of its prompt in this batch, expected 1",
        ),
    ],
)
def test_joint_groups_when_it_is_unclear_whom_a_rollout_joins_are_refused(batch, message) -> None:
    with pytest.raises(DataError, match=message):
        joint_groups(batch, np.array([True, True, False, False]))


def test_parts_when_the_mask_is_none_are_refused() -> None:
    with pytest.raises(DataError, match=r"fresh_n is int64 \(2,\), expected bool \(2,\)"):
        split_groups(group(1, [1.0, 0.0]), np.array([1, 0]))


def test_statistics_when_a_teacher_is_not_counted_are_those_of_the_others() -> None:
    # DUET: one success of a teacher among 8, on-policy mean 0.05: over all of them the mean would be 0.16875.
    rewards = np.array([1.0] + [0.05] * 7)
    group_id, counted = np.zeros(8, np.int64), np.arange(8) > 0
    assert group_statistics(rewards, group_id)[0][0] == pytest.approx(0.16875)
    mean, std = group_statistics(rewards, group_id, counted_n=counted)
    np.testing.assert_array_equal(mean, 0.05)
    np.testing.assert_array_equal(std, 0.0)
    spread = np.array([1.0, 0.0, 1.0, 0.0])
    mean, std = group_statistics(spread, np.zeros(4, np.int64), counted_n=np.array([False, True, True, True]))
    np.testing.assert_allclose(mean, 1 / 3)
    np.testing.assert_allclose(std, 3**-0.5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ddof": 2}, ConfigError, "ddof must be 0 or 1, got 2"),
        ({"counted_n": np.array([True, False, False])}, DataError, "group 6 has no member that counts"),
        ({"counted_n": np.array([1, 0, 1])}, DataError, r"counted_n is int64 \(3,\), expected bool \(3,\)"),
        ({"group_id_n": np.array([4, 4])}, DataError, r"shape \(3,\) and group ids \(2,\), expected \(n,\) each"),
    ],
)
def test_statistics_when_their_arguments_contradict_are_refused(arguments, error, message) -> None:
    given = {"rewards_n": np.array([1.0, 0.0, 0.5]), "group_id_n": np.array([4, 4, 6])}
    with pytest.raises(error, match=message):
        group_statistics(**given | arguments)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int8, np.float16, np.float32])
def test_group_statistics_when_rewards_are_of_a_small_type_do_not_wrap_around(dtype) -> None:
    mean, std = group_statistics(np.array([1, 0], dtype), np.zeros(2, np.int64))
    np.testing.assert_allclose(mean, [0.5, 0.5], rtol=1e-12)
    np.testing.assert_allclose(std, [0.5**0.5] * 2, rtol=1e-12)


@pytest.mark.parametrize("reward", [np.nan, np.inf, -1e200])
def test_group_statistics_when_a_reward_is_nan_or_its_square_overflows_names_it(reward) -> None:
    with pytest.raises(DataError, match=r"reward of rollout 1 is .*, expected a number within ±1e\+100"):
        group_statistics(np.array([0.0, reward]), np.zeros(2, np.int64))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64, np.int16])
def test_overlong_penalty_when_lengths_are_of_a_small_or_unsigned_type_is_the_same(dtype) -> None:
    penalty = overlong_penalty(np.array([80, 95, 250], dtype), max_tokens=100, margin_tokens=10)
    np.testing.assert_allclose(penalty, [0.0, -0.5, -1.0])
