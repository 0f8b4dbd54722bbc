"""Governors at work in a run."""

import json
from dataclasses import replace

import numpy as np
import pytest
from watched import told, watch

from ostinato.backends.toy import ToyTrainer
from ostinato.config import LossConfig

BUFFER = {"capacity": 252}


def gradient(config, seen) -> np.ndarray:
    """That of an ungoverned trainer, on the same batch at the same table."""
    plain = ToyTrainer(config.toy, LossConfig())
    plain.table = seen.before
    plain.step(seen.draw)
    return (seen.before - plain.table) / config.toy.learning_rate


@pytest.mark.parametrize(("rule", "power"), [("sqrt", 0.5), ("linear", 1.0)])
def test_learning_rate_when_governed_is_scaled_exactly_and_for_one_step(toy, tmp_path, rule, power) -> None:
    governors = {"learning_rate": rule, "learning_rate_base": 0.9}
    config = toy(loop={"train_steps": 20}, buffer=BUFFER, governors=governors)
    seen, lines, _ = watch(config, tmp_path / "run")
    for one, line in zip(seen, lines, strict=True):
        weight = np.exp(told(one.draw, one.before)[0].sum(1))
        share = weight.sum() ** 2 / (len(weight) * (weight**2).sum())
        assert line["learning_rate_scale"] == pytest.approx(min(1.0, share / 0.9) ** power, rel=1e-6)
        moved = config.toy.learning_rate * line["learning_rate_scale"] * gradient(config, one)
        assert one.before - one.after == pytest.approx(moved, abs=1e-12)
    scales = [line["learning_rate_scale"] for line in lines]
    assert min(scales) < 0.9 and scales[0] == 1.0


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("level", ["geometric", "sequence"])
def test_rollouts_when_their_ratio_left_the_bound_are_never_drawn_again(toy, tmp_path, shards, level) -> None:
    governors = {"ratio_bound": 1.5, "ratio_level": level}
    config = toy(loop={"train_steps": 30, "shards": shards}, buffer=BUFFER, governors=governors)
    seen, lines, session = watch(config, tmp_path / "run")
    gone: set[int] = set()
    for one, line in zip(seen, lines, strict=True):
        assert not gone & set(one.draw.rollout_ids.tolist())
        x = told(one.draw, one.before)[0]
        log_ratio = x.mean(1) if level == "geometric" else x.sum(1)
        gone |= set(one.draw.rollout_ids[np.abs(log_ratio) > np.log(1.5)].tolist())
        assert line["reuse.removed_ratio"] == len(gone)
    assert len(gone) > 50
    store = session._loop.parts.store
    held = np.concatenate([s.columns["rollout_id"] for s in (store.shards if shards else [store])])
    assert not gone & set(held.tolist())
    # Whoever leaves early is counted where everybody who leaves is.
    uses = json.loads((tmp_path / "run" / "statistics.json").read_text())["uses"]["counts"]
    assert sum(uses) == session._loop.ledger.generated - len(store)


def test_rollouts_when_their_age_is_closed_leave_after_their_draw(toy, tmp_path) -> None:
    governors = {"ess_bound": 0.9, "ess_hysteresis": 0.0, "min_samples": 30, "window": 60}
    config = toy(loop={"train_steps": 40}, buffer=BUFFER, governors=governors)
    seen, lines, _ = watch(config, tmp_path / "run")
    assert lines[-1]["reuse.removed_age"] > 50 and lines[-1]["reuse.removed_ratio"] == 0
    assert max(line["reuse.closed_ages"] for line in lines) >= 1
    counts = [line["reuse.removed_age"] for line in lines]
    whole = [i for i in range(1, 39) if counts[i] - counts[i - 1] == len(np.unique(seen[i].draw.rollout_ids))]
    assert len(whole) > 3
    for i in whole:  # every age of the batch was closed
        assert not set(seen[i].draw.rollout_ids) & {int(x) for one in seen[i + 1 :] for x in one.draw.rollout_ids}


def spiked(at: int):
    """A batch whose losses weigh fifty times as much, at train step `at` (from 0)."""

    def alter(number, draw):
        return replace(draw, importance_weights=draw.importance_weights * (50.0 if number == at else 1.0))

    return alter


def test_gradient_when_it_surges_is_dropped_and_its_batch_leaves(toy, tmp_path) -> None:
    config = toy(loop={"train_steps": 30}, buffer=BUFFER, governors={"gate_z": 20.0})
    seen, lines, _ = watch(config, tmp_path / "run", spiked(17))
    assert [one.trained.dropped for one in seen].index(True) == 17
    spike = seen[17]
    assert (spike.before == spike.after).all() and lines[17]["gradients_dropped"] == 1
    energy = [np.square(gradient(config, one)).sum() for one in seen]
    assert lines[16]["gradient_energy"] == pytest.approx(energy[16], rel=1e-9)
    assert lines[17]["gradient_energy"] == pytest.approx(2500 * energy[17], rel=1e-9)
    assert sum(one.trained.dropped for one in seen) == 1  # whoever comes next passes
    gone = set(spike.draw.rollout_ids.tolist())
    assert not gone & {int(i) for one in seen[18:] for i in one.draw.rollout_ids}
    # Those of the batch that were still held; the others had made way while it was trained on.
    assert 0.5 * len(gone) < lines[17]["reuse.removed_dropped"] == lines[-1]["reuse.removed_dropped"] <= len(gone)
    assert (np.diff([line["train_step"] for line in lines]) == 1).all()


def test_gradient_when_it_surges_in_a_queue_ends_the_epochs_of_its_batch(toy, tmp_path) -> None:
    config = toy(
        loop={"train_steps": 60, "epochs": 6},
        buffer={"kind": "queue", "capacity": 180},
        governors={"gate_z": 500.0},
        toy={"learning_rate": 1.0},
    )
    seen, _, session = watch(config, tmp_path / "run", spiked(27))  # the fourth pass over the fifth batch
    passes = [int(one.draw.uses[0]) for one in seen]
    assert [one.trained.dropped for one in seen].count(True) == 1 and seen[27].trained.dropped
    assert passes[24:30] == [0, 1, 2, 3, 0, 1]
    assert not set(seen[27].draw.rollout_ids) & set(seen[28].draw.rollout_ids)
    counts = json.loads((tmp_path / "run" / "statistics.json").read_text())["uses"]["counts"]
    assert (counts[4], counts[6]) == (60, session._loop.ledger.trained // 60 // 6 * 60)


def test_governors_when_a_queue_uses_each_rollout_once_change_nothing(toy, tmp_path) -> None:
    queue = {"kind": "queue", "capacity": 180}
    tables = []
    for name, governors in (("off", {}), ("on", {"ratio_bound": 1.01, "ess_bound": 0.9, "gate_z": 0.0})):
        seen, lines, _ = watch(toy(loop={"train_steps": 12}, buffer=queue, governors=governors), tmp_path / name)
        tables.append(seen[-1].after)
        assert not any(key.startswith("reuse.") or "dropped" in key for line in lines for key in line)
    assert (tables[0] == tables[1]).all()
