"""Draws by priority through the real trainer, and the faults that were reported of them elsewhere."""

import numpy as np
import pytest
import torch

pytest.importorskip("trl")

from replaying import Rewards, log_of, run, trainer

from ostinato.buffer import Prioritized
from ostinato.integrations.trl import ReplayConfig


def test_priorities_when_written_back_are_of_the_rollouts_of_the_step(model_directory, tmp_path) -> None:
    replay = ReplayConfig(capacity=16, uses=3, sampler=Prioritized(exponent=1.0), priority="log_ratio")
    done = trainer(model_directory, tmp_path, replay)
    before, score = [], done._get_per_token_logps_and_entropies

    def heard(*args, **kwargs):
        result = score(*args, **kwargs)
        if torch.is_grad_enabled():
            before.append(result[0].detach())
        return result

    done._get_per_token_logps_and_entropies = heard
    done.train()
    before = before[-2:]
    # Before the first step the policy is the one that generated: every ratio is 1, every priority written is 0.
    columns, last = done.replay_store.buffer.columns, done.drawn[-1]
    held = dict(zip(columns["rollout_id"].tolist(), columns["priority"].tolist(), strict=True))
    assert log_of(done, "replay/policy/log_ratio_abs")[0] == 0.0
    wanted = {}
    for index, identity in enumerate(last.rollout_ids.tolist()):
        part, row = done._window.parts[index // 4], index % 4
        mask = part["completion_mask"][row].bool()
        moved = (before[index // 4][row] - part["old_per_token_logps"][row])[mask]
        wanted[identity] = float(moved.abs().mean())
    for identity, priority in wanted.items():
        assert held[identity] == pytest.approx(priority, rel=1e-5, abs=1e-7)
    assert len(set(wanted.values())) > 1


def test_priorities_when_equal_or_all_zero_draw_uniformly(model_directory, tmp_path) -> None:
    """TRL up to 1.15: ties compared dicts (TypeError), scores of zero gave NaN. Here every advantage is 0."""
    replay = ReplayConfig(capacity=32, uses=3, sampler=Prioritized("advantage", exponent=0.6))
    done = run(model_directory, tmp_path, replay, rewards=Rewards(lambda number, ids: 1.0))
    assert (done.replay_store.buffer.columns["advantage"] == 0).all()
    assert {int(i) for draw in done.drawn for i in draw.rollout_ids} >= set(range(4))
    assert all(np.isfinite(draw.importance_weights).all() for draw in done.drawn)


def test_priorities_when_the_rollout_has_left_are_ignored_and_counted(model_directory, tmp_path) -> None:
    """ray 6534: a late write-back hit the slot's next tenant. A capacity of one generation overwrites every rollout."""
    done = run(model_directory, tmp_path, ReplayConfig(capacity=8, uses=3, sampler=Prioritized()))
    buffer = done.replay_store.buffer
    before = buffer.columns["priority"].copy()
    assert buffer.update_priorities(done.drawn[0].rollout_ids, np.full(8, 99.0)) == 0
    assert buffer.metrics()["stale_updates"] == 8
    np.testing.assert_array_equal(buffer.columns["priority"], before)


def test_importance_weights_when_a_sampler_gives_them_weigh_the_advantages(model_directory, tmp_path) -> None:
    replay = ReplayConfig(capacity=32, uses=3, sampler=Prioritized("reward", exponent=1.0, beta=1.0, eps=0.5))
    done = run(model_directory, tmp_path, replay)
    ratios = set()
    for index, batch in enumerate(done.batches):
        draw, own = done.drawn[index // 2], slice(4 * (index % 2), 4 * (index % 2) + 4)
        wanted = draw.rollouts.advantage[own] * draw.importance_weights[own]
        np.testing.assert_allclose(batch["advantages"].numpy(), wanted, rtol=1e-6)
        ratios |= set(draw.importance_weights.round(6).tolist())
    assert len(ratios) > 4
