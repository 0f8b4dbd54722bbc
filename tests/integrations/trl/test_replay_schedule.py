"""When TRL generates, and what each optimizer step is trained on."""

import numpy as np
import pytest
import torch

pytest.importorskip("trl")

from replaying import Rewards, Scripted, log_of, run, trainer, weights

from ostinato.buffer import (
    FreshAnchored,
    Groups,
    Informative,
    MaxStaleness,
    MaxUses,
    MinSize,
    NeverUsedFirst,
    SamplesPerInsert,
)
from ostinato.integrations.trl import ReplayConfig, ReplayMixin


@pytest.mark.parametrize(
    ("replay", "shape"),
    [
        (ReplayConfig(capacity=0), {"steps_per_generation": 4, "loss_type": "grpo", "beta": 0.1}),
        (ReplayConfig(capacity=64, uses=1), {}),
    ],
)
def test_losses_when_nothing_is_replayed_are_those_of_trl_bit_for_bit(model_directory, tmp_path, replay, shape) -> None:
    one = run(model_directory, tmp_path, None, **shape)
    other = run(model_directory, tmp_path, replay, **shape)
    assert len(one.losses) == 12 and len(set(one.losses)) > 8
    assert one.losses == other.losses
    assert torch.equal(weights(one), weights(other))
    assert len(one.generated) == len(other.generated) == 6 // (shape.get("steps_per_generation", 2) // 2)


def test_generations_when_each_rollout_is_used_three_times_are_a_third(model_directory, tmp_path) -> None:
    plain = run(model_directory, tmp_path, None, max_steps=12)
    replaying = run(model_directory, tmp_path, ReplayConfig(capacity=64, uses=3), max_steps=12)
    assert (len(plain.generated), len(replaying.generated)) == (12, 4)
    assert len(plain.losses) == len(replaying.losses) == 24
    assert replaying.args.num_iterations == 3
    drawn = replaying.replay_store.buffer.metrics()
    assert (drawn["admitted"], drawn["drawn"]) == (32, 96)
    assert log_of(replaying, "replay/generations")[-1] == 4
    # Prompts go with the generations: one of the first epoch's order each two, none skipped.
    assert len(replaying.reward_funcs[0].seen) == 32


@pytest.mark.parametrize(
    ("shape", "uses", "generations"),
    [
        ({"steps_per_generation": 4}, 2, 3),  # a generation of two optimizer steps, each of which is used twice
        ({"steps_per_generation": 1}, 2, 12),  # half a batch a step
        ({"steps_per_generation": 1}, 4, 7),  # 6, and one out of turn: the second step finds 4 rollouts for 8
    ],
)
def test_generations_when_their_size_is_not_that_of_a_step_follow_the_uses(
    model_directory, tmp_path, shape, uses, generations
) -> None:
    done = run(model_directory, tmp_path, ReplayConfig(capacity=64, uses=uses), max_steps=12, **shape)
    assert len(done.generated) == generations
    admitted = done.replay_store.buffer.metrics()["admitted"]
    assert admitted == sum(len(batch["completion_ids"]) for batch in done.generated)


def test_batches_when_anchored_hold_every_new_rollout_and_a_replayed_half(model_directory, tmp_path) -> None:
    replay = ReplayConfig(capacity=64, uses=2, sampler=FreshAnchored())
    done = run(model_directory, tmp_path, replay, steps_per_generation=1, max_steps=8)
    new = [draw.uses == 0 for draw in done.drawn]
    # One group is all there is at first: the step borrows. The next finds two groups, both new.
    assert log_of(done, "replay/borrowed_batches") == [1] * 8
    assert [int(fresh.sum()) for fresh in new[1:]] == [8, 4, 4, 4, 4, 4, 4]
    assert all((draw.staleness[fresh] == 0).all() for draw, fresh in zip(done.drawn[2:], new[2:], strict=True))


def test_old_logprobs_when_a_generation_lies_within_a_step_are_there_and_frozen(model_directory, tmp_path) -> None:
    """TRL leaves them out where gradient_accumulation_steps is a multiple of the micro-batches of a generation."""
    plain = run(model_directory, tmp_path, None, steps_per_generation=1, max_steps=1)
    assert "old_per_token_logps" not in plain.generated[0]
    replay = ReplayConfig(capacity=64, uses=2, sampler=FreshAnchored())
    done = run(model_directory, tmp_path, replay, steps_per_generation=1, max_steps=6)
    given = {}
    for batch in done.generated:
        for ids, mask, old in zip(
            batch["completion_ids"], batch["completion_mask"], batch["old_per_token_logps"], strict=True
        ):
            given.setdefault(tuple(ids[mask.bool()].tolist()), []).append(old[mask.bool()])
    for batch in done.batches:
        for ids, mask, old in zip(
            batch["completion_ids"], batch["completion_mask"], batch["old_per_token_logps"], strict=True
        ):
            assert any(torch.equal(old[mask.bool()], one) for one in given[tuple(ids[mask.bool()].tolist())])


def test_staleness_when_drawn_counts_optimizer_steps_since_the_weights(model_directory, tmp_path) -> None:
    """verl 7568, prime-rl 2674, miles 1697: waiting counts, two steps on one generation are one step older."""
    done = run(model_directory, tmp_path, ReplayConfig(capacity=8, uses=3), max_steps=6)
    # A capacity of one generation: all are of the last one.
    assert [set(draw.staleness.tolist()) for draw in done.drawn] == [{0}, {1}, {2}, {0}, {1}, {2}]
    assert log_of(done, "replay/batch_staleness_mean") == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(("bound", "oldest", "generations"), [(0, 0, 6), (1, 1, 4), (2, 2, 2), (5, 5, 2)])
def test_staleness_when_bounded_admits_the_bound_and_generates_once_where_all_are_older(
    model_directory, tmp_path, bound, oldest, generations
) -> None:
    """prime-rl 1764, open-instruct 1738 (boundary), torchforge 557 (bound 0), verl 6975 (all too old), verl 7579."""
    replay = ReplayConfig(capacity=16, uses=3, retention=[MaxStaleness(bound)])
    done = run(model_directory, tmp_path, replay)
    ages = [draw.staleness.max() for draw in done.drawn]
    assert bound == 5 or max(ages) == oldest  # two generations in six steps: nothing gets as old as 5
    assert len(done.generated) == generations
    assert (log_of(done, "replay/extra_generations") or [0])[-1] == generations - 2


def test_steps_when_the_buffer_warms_up_take_what_was_just_generated(model_directory, tmp_path) -> None:
    """slime 1474: a short buffer gives no placeholders. Here it holds back until 24 rollouts are there."""
    replay = ReplayConfig(capacity=64, uses=3, limiter=MinSize(24))
    done = run(model_directory, tmp_path, replay)
    assert [int(draw.staleness.max()) for draw in done.drawn[:2]] == [0, 0]
    assert log_of(done, "replay/borrowed_batches") == [1, 2, 2, 2, 2, 2]
    assert log_of(done, "replay/extra_generations") == [1, 2, 2, 2, 2]
    for draw in done.drawn[:2]:
        assert len(np.unique(draw.rollout_ids)) == 8


def test_generations_when_the_limiter_lets_none_in_are_left_out(model_directory, tmp_path) -> None:
    """6 draws of a rollout where the schedule brings 3: 24 steps draw 192, 8 fill and (192 + 48) / 6 may follow."""
    limiter = SamplesPerInsert(6.0, batch_size=8, group_size=8)
    done = run(model_directory, tmp_path, ReplayConfig(capacity=64, uses=3, limiter=limiter), max_steps=24)
    admitted = done.replay_store.buffer.metrics()["admitted"]
    assert admitted == 8 * len(done.generated) <= 8 + (24 * 8 + 48) / 6
    assert log_of(done, "replay/held_back_generations")[-1] == 8 - len(done.generated) == 3
    assert log_of(done, "replay/borrowed_batches") == []


def test_steps_that_keep_generating_out_of_turn_are_said_once(model_directory, tmp_path, caplog) -> None:
    """Each rollout leaves after one use: every step generates, and uses=3 saves nothing."""
    done = run(model_directory, tmp_path, ReplayConfig(capacity=64, uses=3, retention=[MaxUses(1)]))
    assert len(done.generated) == 6
    said = [record.getMessage() for record in caplog.records if record.name.startswith("ostinato")]
    assert len(said) == 1 and said[0].startswith("train step 1 finds no batch among 0 rollouts and generates out of")


def test_groups_when_nothing_is_informative_do_not_stop_the_run(model_directory, tmp_path) -> None:
    equal = Rewards(lambda number, ids: 1.0)
    replay = ReplayConfig(capacity=64, uses=3, admission=[Informative()])
    done = run(model_directory, tmp_path, replay, rewards=equal, max_steps=3)
    assert len(done.replay_store.buffer) == 0 and len(done.losses) == 6
    assert log_of(done, "replay/refused.uninformative")[-1] == 24
    assert all(np.isfinite(done.losses))


def test_groups_when_drawn_whole_stay_whole_and_are_all_reached(model_directory, tmp_path) -> None:
    """torchtune 2943: 1,000 batches of uniform draws reach every group; capacity counts rollouts."""
    replay = ReplayConfig(capacity=40, uses=4, sampler=Groups())
    done = run(model_directory, tmp_path, replay, max_steps=16)
    for draw in done.drawn:
        assert np.unique(draw.rollouts.group_id, return_counts=True)[1].tolist() == [4, 4]
        assert len(np.unique(draw.rollout_ids)) == 8
    buffer, rng = done.replay_store.buffer, np.random.default_rng(0)
    assert len(buffer) == 32
    reached = [buffer.sample(8, train_step=16, rng=rng).rollouts.group_id for _ in range(1000)]
    counts = np.unique(np.concatenate(reached), return_counts=True)[1]
    assert len(counts) == 8 and counts.min() > 850 and counts.max() < 1150  # 1,000 each, 5 standard deviations


def test_mixin_when_put_before_another_trainer_replays_for_it(model_directory, tmp_path) -> None:
    gmpo = pytest.importorskip("trl.experimental.gmpo")
    from replaying import Watched

    class ReplayGMPO(Watched, ReplayMixin, gmpo.GMPOTrainer):
        pass

    class PlainGMPO(Watched, gmpo.GMPOTrainer):
        pass

    off = run(model_directory, tmp_path, ReplayConfig(capacity=0), kind=ReplayGMPO)
    plain = run(model_directory, tmp_path, None, kind=PlainGMPO)
    grpo = run(model_directory, tmp_path, None)
    assert off.losses == plain.losses != grpo.losses
    done = run(model_directory, tmp_path, ReplayConfig(capacity=32, uses=3), kind=ReplayGMPO)
    assert len(done.generated) == 2
    assert len(log_of(done, "replay/policy/kl_k3")) == 6


def test_draws_when_seeded_alike_are_alike(model_directory, tmp_path) -> None:
    replay = ReplayConfig(capacity=32, uses=3, sampler=NeverUsedFirst())
    runs = [run(model_directory, tmp_path, replay, seed=seed) for seed in (3, 3, 4)]
    assert runs[0].losses == runs[1].losses != runs[2].losses


def test_training_when_begun_again_begins_with_an_empty_buffer(model_directory, tmp_path) -> None:
    done = run(model_directory, tmp_path, ReplayConfig(capacity=64, uses=3), max_steps=2)
    done.train()
    assert [draw.staleness.max() for draw in done.drawn] == [0, 1, 0, 1]
    assert log_of(done, "replay/admitted") == [8, 8]


def test_evaluation_when_in_between_leaves_the_buffer_alone(model_directory, tmp_path) -> None:
    done = trainer(
        model_directory,
        tmp_path,
        ReplayConfig(capacity=64, uses=3),
        rollouts=Scripted(lambda call, row: [5 + (call + row) % 7, 6]),
    )
    done.eval_dataset = done.train_dataset.select(range(2))
    done.args.per_device_eval_batch_size = 4
    done.train()
    before = done.replay_store.buffer.metrics()
    assert np.isfinite(done.evaluate()["eval_loss"])
    assert done.replay_store.buffer.metrics() == before
