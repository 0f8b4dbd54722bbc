"""Properties of a replay buffer that were lost, and reported missing, in other systems; each by its own name."""

import numpy as np
import pytest
from rollout_makers import group, plain, same_rollout

from ostinato.advantages import score_group
from ostinato.buffer import (
    FiniteLogprobs,
    KeepBest,
    MaxStaleness,
    MinSize,
    Oldest,
    ReplayBuffer,
    Uniform,
    no_buffer,
    paper_fifo,
)
from ostinato.buffer.sampling import Groups
from ostinato.buffer.statistics import STARVED_DRAWS
from ostinato.errors import DataError
from ostinato.ragged import Ragged
from ostinato.rollouts import Rollouts, concatenate

RNG = np.random.default_rng

# ---------------------------------------------------------------- groups and columns


def test_groups_when_several_come_in_one_call_are_all_held_with_their_own_numbers() -> None:
    rewards = {7: [1.0, 0.0], 8: [0.0, 0.0, 3.0], 9: [5.0]}
    parts = [plain(len(r), first=10 * g, group_id=g, prompt_id=100 + g) for g, r in rewards.items()]
    scored = score_group(concatenate(parts), [value for values in rewards.values() for value in values])
    buffer = ReplayBuffer(20)
    buffer.add(scored, train_step=0)
    held = buffer.columns
    for number, values in rewards.items():
        rows = np.flatnonzero(held["group_id"] == number)
        assert held["reward"][rows].tolist() == values
        assert set(held["group_reward_mean"][rows]) == {np.mean(values)}
        std = np.std(values, ddof=1) if len(values) > 1 else 0.0
        assert held["group_reward_std"][rows] == pytest.approx([std] * len(values))
        want = (np.array(values) - np.mean(values)) / (std + 1e-4) if std else np.zeros(len(values))
        assert held["advantage"][rows] == pytest.approx(want)
        assert set(held["prompt_id"][rows]) == {100 + number} and set(held["group_rows"][rows]) == {len(values)}


def test_tool_tokens_when_stored_stay_masked_on_every_way_out(tmp_path) -> None:
    mask = np.array([0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 1], np.bool_)  # prompts of 2, tool output inside
    given = Rollouts.from_completions([[1, 2], [1, 2]], [[3] * 5, [4] * 3], [[-1.0] * 5, [-1.0] * 3])
    given = given.replace(
        loss_mask=mask,
        behavior_logprobs=np.where(mask, -1, 0).astype(np.float32),
        extras={
            "tool_name": Ragged.from_rows([np.array(["grep"]), np.array(["ls", "cat"])]),
            "depth": np.array([3, 4]),
        },
    )
    buffer, loaded = (ReplayBuffer(4, sampler=Oldest()) for _ in range(2))
    buffer.add(given, train_step=0)
    buffer.save(tmp_path / "b")
    loaded.load(tmp_path / "b")
    for one in (buffer, loaded):
        drawn = one.sample(2, train_step=0, rng=RNG(0)).rollouts
        assert np.array_equal(drawn.loss_mask, mask)
        assert drawn.extras["tool_name"].row(1).tolist() == ["ls", "cat"] and drawn.extras["depth"].tolist() == [3, 4]
        padded = one.sample_padded(2, train_step=0, rng=RNG(0))
        assert (
            np.concatenate([padded.loss_mask[i][padded.attention_mask[i]] for i in range(2)]).tolist() == mask.tolist()
        )
        assert not padded.loss_mask[~padded.attention_mask].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "column", ["behavior_logprobs", "reward", "advantage", "group_reward_mean", "group_reward_std"]
)
def test_number_when_not_finite_is_refused_whole_and_named(column, bad) -> None:
    buffer = ReplayBuffer(9, limiter=MinSize(1))
    buffer.add(plain(2), train_step=0)
    given = plain(3, first=2)
    array = getattr(given, column).copy()
    array[-1] = bad
    before = buffer.state_arrays()
    with pytest.raises(DataError, match=rf"{column} of rollout 2"):
        buffer.add(given.replace(**{column: array}), train_step=1)
    after = buffer.state_arrays()
    assert before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)
    if column == "behavior_logprobs":
        open_door = ReplayBuffer(9, admission=[FiniteLogprobs()])
        assert open_door.add(given.replace(**{column: array}), train_step=0).tolist() == [0, 1, -1]
        assert open_door.metrics()["refused.nonfinite_logprobs"] == 1


def test_advantage_when_a_replayed_and_a_fresh_group_of_one_prompt_meet_stays_that_of_its_group() -> None:
    buffer = ReplayBuffer(9, sampler=Uniform(False))
    old = score_group(plain(3, group_id=1, prompt_id=5), [1.0, 0.0, 0.0])
    new = score_group(plain(8, first=3, group_id=2, prompt_id=5), [1.0] * 7 + [0.0])
    buffer.add(old, train_step=0)
    buffer.add(new, train_step=1)  # two of the old group leave, one stays alone
    draw = buffer.sample(9, train_step=1, rng=RNG(0)).rollouts
    alone = np.flatnonzero(draw.group_id == 1)
    assert len(alone) == 1 and draw.group_reward_mean[alone[0]] == pytest.approx(1 / 3)
    assert draw.advantage[alone[0]] == pytest.approx((0 - 1 / 3) / (np.std([1, 0, 0], ddof=1) + 1e-4))
    assert set(draw.group_reward_mean[draw.group_id == 2]) == {7 / 8}
    whole = ReplayBuffer(11, sampler=Groups())
    whole.add(concatenate([old, new]), train_step=0)
    assert set(whole.sample(8, train_step=0, rng=RNG(0)).rollouts.group_id) == {2}
    assert set(whole.sample(3, train_step=0, rng=RNG(0)).rollouts.group_id) == {1}


def test_group_statistics_when_members_leave_are_never_those_of_the_rest() -> None:
    buffer = ReplayBuffer(20, retention=[KeepBest("reward")], limiter=MinSize(1))
    for step in range(6):
        buffer.add(group(RNG(step), 8, group_id=step, version=step), train_step=step)
    buffer.remove(buffer.columns["rollout_id"][::2].copy())
    draw = buffer.sample(50, train_step=6, rng=RNG(1))
    for i, number in enumerate(draw.rollouts.group_id.tolist()):
        given = group(RNG(number), 8, group_id=number, version=number)
        assert same_rollout(draw.rollouts, i, given, int(draw.rollout_ids[i]) - 8 * number)


def test_prompt_when_another_one_has_its_prompt_id_is_still_the_one_it_was_generated_under() -> None:
    """What is trained on is what was generated: prompts are stored and shared by their tokens, not by their id."""
    given = Rollouts.from_completions([[1] * 30, [2] * 30, [1] * 30], [[9]] * 3, [[-1.0]] * 3, prompt_id=7)
    buffer = ReplayBuffer(3, sampler=Oldest())
    buffer.add(given, train_step=0)
    drawn = buffer.sample_prompts([7], 3, train_step=0, rng=RNG(0)).rollouts
    assert sorted(drawn.prompt(i).tolist() for i in range(3)) == [[1] * 30, [1] * 30, [2] * 30]


@pytest.mark.parametrize("n", [1, 3, 40])
def test_batch_when_more_is_asked_for_than_there_is_raises_and_never_holds_placeholders(n) -> None:
    for buffer in (paper_fifo(50, replacement=False), no_buffer(50), ReplayBuffer(50, sampler=Oldest())):
        assert not buffer.can_sample(n)
        with pytest.raises(DataError, match="cannot draw"):
            buffer.sample(n, train_step=0, rng=RNG(0))
        buffer.add(plain(n), train_step=0)
        assert not buffer.can_sample(n + 1)
        with pytest.raises(DataError, match="cannot draw"):
            buffer.sample(n + 1, train_step=0, rng=RNG(0))
        assert sorted(buffer.sample(n, train_step=0, rng=RNG(0)).rollout_ids.tolist()) == list(range(n))


# ---------------------------------------------------------------- age


def test_staleness_when_a_rollout_has_several_versions_counts_from_the_oldest_token() -> None:
    buffer = ReplayBuffer(4, sampler=Oldest())
    buffer.add(plain(1, policy_version_min=3, policy_version_max=5, birth_step=4), train_step=5)
    for train_step in (5, 6, 10):  # waiting counts, and so does every optimizer step of a batch that is learned from
        draw = buffer.sample(1, train_step=train_step, rng=RNG(0))
        assert draw.staleness.tolist() == [train_step - 3] and draw.residence.tolist() == [train_step - 5]
        assert draw.rollouts.policy_version_max.tolist() == [5] and draw.rollouts.birth_step.tolist() == [4]


@pytest.mark.parametrize("steps_a_batch", [1, 2, 5])
def test_staleness_when_a_batch_takes_several_steps_grows_by_as_many(steps_a_batch) -> None:
    buffer = ReplayBuffer(64, sampler=Oldest(), retention=[MaxStaleness(10)])
    buffer.add(plain(64), train_step=0)
    for batch in range(1 + 10 // steps_a_batch):
        draw = buffer.sample(4, train_step=batch * steps_a_batch, rng=RNG(0))
        assert set(draw.staleness) == {batch * steps_a_batch}
    buffer.retain(train_step=11)
    assert len(buffer) == 0


def test_rollouts_when_all_are_too_old_leave_once_and_make_room_for_as_many() -> None:
    buffer = ReplayBuffer(8, retention=[MaxStaleness(1)], limiter=MinSize(1))
    queue = no_buffer(8, max_staleness=1)
    for one in (buffer, queue):
        one.add(plain(8), train_step=0)
        for _ in range(3):  # asking again and again frees nothing twice and draws nothing
            with pytest.raises(DataError, match="cannot draw"):
                one.sample(1, train_step=2, rng=RNG(0))
        assert one.departures().tolist() == [0] * 8 and one.departures().tolist() == []
        assert one.can_add(8) and not one.can_sample(1)
        one.add(plain(8, policy_version_min=2), train_step=2)
        assert one.can_sample(8)


def test_age_when_the_producer_is_three_times_faster_is_bounded_by_the_capacity() -> None:
    buffer, ages = ReplayBuffer(96, limiter=MinSize(1)), []
    for step in range(200):
        for part in range(3):  # three groups of 8 a step: everything has left after 4 steps
            buffer.add(plain(8, group_id=3 * step + part, policy_version_min=step), train_step=step)
        draw = buffer.sample(8, train_step=step, rng=RNG(step))
        ages += draw.staleness.tolist() if step > 10 else []
        held = buffer.columns["policy_version_min"]
        assert held.min() >= step - 3 and (np.diff(held) >= 0).all(), "the stalest leave first"
    assert max(ages) == 3 and np.mean(ages) == pytest.approx(1.5, abs=0.1)


def test_source_when_no_longer_drawn_is_reported_as_starved() -> None:
    buffer = paper_fifo(8, min_size=1)
    buffer.add(plain(4, source="slow"), train_step=0)
    buffer.add(plain(4, source="fast"), train_step=0)
    buffer.sample(64, train_step=0, rng=RNG(0))
    assert buffer.metrics()["starved_sources"] == 0 and buffer.metrics()["source_share.slow"] == 0.5
    buffer.add(plain(8, source="fast"), train_step=1)  # nothing slow is left
    for number in range(STARVED_DRAWS):
        assert buffer.metrics()["starved_sources"] == 0
        buffer.sample(4, train_step=1, rng=RNG(number))
    metrics = buffer.metrics()
    assert metrics["starved_sources"] == 1 and metrics["source_share.slow"] == 0
    assert buffer.statistics.starved(buffer.columns) == ["slow"]


def test_long_rollouts_when_they_leave_unused_are_counted_by_their_length() -> None:
    buffer = ReplayBuffer(4, retention=[MaxStaleness(0)], limiter=MinSize(1), sampler=Oldest())
    buffer.add(plain(1, prompt=0, length=5), train_step=0)
    for length in (127, 128, 600):
        buffer.add(plain(1, prompt=0, length=length), train_step=0)
    buffer.sample(1, train_step=0, rng=RNG(0))  # the short one was of use
    buffer.retain(train_step=1)
    metrics = buffer.metrics()
    counts = {k: v for k, v in metrics.items() if k.startswith("left_unused_from")}
    assert counts == {
        f"left_unused_from_{lower}_tokens": count
        for lower, count in zip((0, 128, 512, 2048, 8192, 32768), (1.0, 1.0, 1.0, 0.0, 0.0, 0.0), strict=True)
    }
    assert metrics["left_unused_fraction"] == 0.75
