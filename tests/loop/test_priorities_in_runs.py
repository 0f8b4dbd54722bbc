"""Prioritized draws and bounds of bytes in a run."""

import numpy as np
import pytest
from numpy.random import default_rng
from watched import told, watch

from ostinato.advantages import score_group
from ostinato.buffer import PRESETS
from ostinato.config import BufferConfig, LoopConfig
from ostinato.errors import DataError, RunError
from ostinato.loop.priorities import priorities_of
from ostinato.loop.stores import build_store, written_priority
from ostinato.protocols import Trained
from ostinato.rollouts import Rollouts

EXPECTED = {
    "log_ratio": lambda x, entropy, draw: np.abs(x).mean(1),
    "kl": lambda x, entropy, draw: (np.exp(x) - 1 - x).mean(1),
    "entropy": lambda x, entropy, draw: entropy.mean(1),
    "advantage": lambda x, entropy, draw: np.abs(draw.rollouts.advantage),
    "reward": lambda x, entropy, draw: np.abs(draw.rollouts.reward),
}


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("name", EXPECTED)
def test_priorities_when_a_step_is_done_are_what_the_batch_says(toy, tmp_path, name, shards) -> None:
    buffer = {"capacity": 252, "sampler": "per", "priority": name}
    config = toy(loop={"train_steps": 10, "shards": shards}, buffer=buffer)
    seen, _, session = watch(config, tmp_path / "run")
    expected: dict[int, float] = {}
    for one in seen:
        values = EXPECTED[name](*told(one.draw, one.before), one.draw)
        expected |= dict(zip(one.draw.rollout_ids.tolist(), values.tolist(), strict=True))
    store, compared = session._loop.parts.store, 0
    for shard in store.shards if shards else [store]:
        for rollout_id, priority in zip(shard.columns["rollout_id"], shard.columns["priority"], strict=True):
            if int(rollout_id) in expected:
                assert priority == pytest.approx(expected[int(rollout_id)], rel=1e-6, abs=1e-9)
                compared += 1
    assert compared > 100
    assert sum(shard.metrics()["stale_updates"] for shard in (store.shards if shards else [store])) < 60


def test_draws_when_by_a_stored_advantage_prefer_the_larger_ones(toy, tmp_path) -> None:
    mean = {}
    for sampler in ("uniform", "prioritized"):
        buffer = {"capacity": 252, "sampler": sampler}
        seen, _, _ = watch(toy(loop={"train_steps": 10}, buffer=buffer), tmp_path / sampler)
        mean[sampler] = np.mean([np.abs(one.draw.rollouts.advantage).mean() for one in seen])
    assert mean["prioritized"] > 1.3 * mean["uniform"]


def test_importance_weights_when_no_correction_is_on_are_one(toy, tmp_path) -> None:
    for beta, constant in ((0.0, True), (0.7, False)):
        buffer = {"capacity": 252, "sampler": "prioritized", "beta": beta}
        seen, _, _ = watch(toy(loop={"train_steps": 6}, buffer=buffer), tmp_path / str(beta))
        assert (seen[-1].draw.importance_weights == 1).all() == constant


def test_fresh_rollouts_when_anchored_all_come_first(toy, tmp_path) -> None:
    buffer = {"capacity": 252, "sampler": "advantage_prioritized"}
    seen, _, _ = watch(toy(loop={"train_steps": 40}, buffer=buffer), tmp_path / "run")
    last = -1
    for one in seen:
        assert len(np.unique(one.draw.rollout_ids)) == 60 and one.draw.staleness.max() <= 10
        fresh = one.draw.rollout_ids[one.draw.uses == 0].tolist()
        assert one.draw.rollout_ids[: len(fresh)].tolist() == fresh == list(range(last + 1, last + 1 + len(fresh)))
        last += len(fresh)
    assert last > 500 and sum((one.draw.uses > 0).any() for one in seen) > 20


@pytest.mark.parametrize("name", ["per", "freshness_per", "advantage_prioritized"])
def test_schemes_when_nothing_else_is_said_draw_as_the_presets_do(name) -> None:
    chosen, preset = build_store(BufferConfig(sampler=name), LoopConfig()), PRESETS[name](1020)
    rng, seeds = np.random.default_rng(0), iter(range(100))
    for train_step in range(21, 60):
        rewards = rng.random(150)
        group = Rollouts.from_completions([[1]] * 150, [[2]] * 150, [[-0.5]] * 150, group_id=train_step)
        group = score_group(
            group.replace(**dict.fromkeys(("policy_version_min", "policy_version_max"), np.full(150, train_step))),
            rewards,
        )
        draws, seed = [], next(seeds)
        for store in (chosen, preset):
            store.add(group, train_step=train_step)
            draws.append(store.sample(200 if train_step > 25 else 100, train_step=train_step, rng=default_rng(seed)))
            store.update_priorities(draws[-1].rollout_ids, np.abs(draws[-1].rollouts.advantage))
        assert draws[0].rollout_ids.tolist() == draws[1].rollout_ids.tolist()
        assert draws[0].importance_weights.tolist() == draws[1].importance_weights.tolist()
    assert (np.ptp(draws[0].importance_weights) > 0) == (name == "per")
    assert (draws[0].uses > 0).sum() > 20
    assert written_priority(BufferConfig(sampler=name)) == ("advantage" if name == "per" else None)


def test_priority_when_a_trainer_tells_no_figures_is_refused_by_name(toy, tmp_path) -> None:
    seen, _, _ = watch(toy(loop={"train_steps": 1}), tmp_path / "run")
    with pytest.raises(DataError, match="priority 'kl' needs the figure 'kl_sum', got"):
        priorities_of("kl", seen[0].draw, Trained({}, {}))
    assert priorities_of("reward", seen[0].draw, Trained({}, {})).tolist() == seen[0].draw.rollouts.reward.tolist()


def test_buffer_when_bounded_in_bytes_stays_below(toy, tmp_path) -> None:
    for shards in (False, True):
        buffer = {"capacity": 600, "capacity_bytes": 24000}
        config = toy(loop={"train_steps": 12, "shards": shards}, buffer=buffer, sampling={"max_new_tokens": 2})
        _, lines, session = watch(config, tmp_path / str(shards))
        store = session._loop.parts.store
        assert store.metrics()["bytes"] <= 24000
        assert 60 <= lines[-1]["buffer_size"] < 400 and session._loop.ledger.generated > 200


def test_run_when_bytes_never_hold_a_batch_ends_with_an_error(toy, tmp_path) -> None:
    config = toy(loop={"train_steps": 12}, buffer={"capacity_bytes": 5000}, sampling={"max_new_tokens": 2})
    with pytest.raises(RunError, match=r"no batch of 60 can be drawn: raise buffer.capacity_bytes") as caught:
        watch(config, tmp_path / "run")
    assert "\n" not in str(caught.value)
