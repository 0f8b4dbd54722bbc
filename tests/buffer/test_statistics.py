"""What a buffer says about itself, against a count of everything that went in, was drawn and left."""

import numpy as np
import pytest
from rollout_makers import groups, plain

from ostinato.buffer import Informative, MaxStaleness, MaxUses, MinSize, ReplayBuffer, Uniform

RNG = np.random.default_rng
BUCKETS = (0, 128, 512, 2048, 8192, 32_768)


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_metrics_when_compared_with_a_count_of_every_row_are_the_same(kernels) -> None:
    buffer = ReplayBuffer(
        30, retention=[MaxStaleness(3), MaxUses(3)], limiter=MinSize(1), admission=[Informative()], kernels=kernels
    )
    rng, lengths, refused = RNG(0), {}, 0
    drawn: list[tuple] = []  # staleness, since last use, repeated in its batch, correct, informative, source
    uses: dict[int, int] = {}
    left: list[int] = []
    for step in range(40):
        given = groups(rng, [4, 4], first_group=2 * step, version=step, longest=700)
        ids = buffer.add(given, train_step=step)
        refused += int((ids < 0).sum())
        lengths |= {i: n for i, n in zip(ids.tolist(), given.lengths.tolist(), strict=True) if i >= 0}
        if not buffer.can_sample(1):
            continue
        draw = buffer.sample(12, train_step=step, rng=rng)
        for i, rollout_id in enumerate(draw.rollout_ids.tolist()):
            about = draw.rollouts
            correct, informative = about.reward[i] > 0, about.group_reward_std[i] > 0
            again = rollout_id in draw.rollout_ids[:i]
            drawn.append(
                (draw.staleness[i], draw.steps_since_last_use[i], again, correct, informative, about.source[i])
            )
            uses[rollout_id] = uses.get(rollout_id, 0) + 1
        left += buffer.departures().tolist()
        buffer.update_priorities([10**6], [1.0])
        metrics, held = buffer.metrics(), buffer.columns
        gone = [i for i in lengths if i not in set(held["rollout_id"].tolist())]
        unused = [lengths[i] for i in gone if not uses.get(i)]
        assert sorted(left) == sorted(uses.get(i, 0) for i in gone)
        stale, since, repeats, correct, informative, _ = (list(column) for column in zip(*drawn, strict=True))
        age = step - held["policy_version_min"]
        waited = [one for one in since if one >= 0]
        expected = {
            "size": len(held),
            "fill": len(held) / 30,
            "admitted": len(lengths),
            "refused.uninformative": refused,
            "left": len(gone),
            "draws": len(drawn) / 12,
            "stale_updates": len(drawn) / 12,
            "drawn": len(drawn),
            "uses_when_left": np.mean(left) if left else 0,
            "left_unused_fraction": len(unused) / max(len(gone), 1),
            "drawn_staleness": np.mean(stale),
            "drawn_unique_fraction": 1 - np.mean(repeats),
            "drawn_correct_fraction": np.mean(correct),
            "drawn_informative_fraction": np.mean(informative),
            "drawn_new_fraction": np.mean(np.array(since) < 0),
            "steps_since_last_use": np.mean(waited) if waited else 0,
            "never_used_fraction": np.mean(held["uses"] == 0) if len(held) else 0,
            "staleness": np.mean(age) if len(held) else 0,
            "correct_fraction": np.mean(held["reward"] > 0) if len(held) else 0,
            "informative_fraction": float(len(held) > 0),
        }
        expected |= {
            f"left_unused_from_{low}_tokens": sum(low <= n < high for n in unused)
            for low, high in zip(BUCKETS, (*BUCKETS[1:], 10**9), strict=True)
        }
        for code, name in enumerate(held.sources):
            expected[f"source_share.{name}"] = np.mean(held["source_code"] == code) if len(held) else 0
            expected[f"drawn_source_share.{name}"] = np.mean([one[5] == name for one in drawn])
        assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_correct_share_when_the_threshold_is_stated_counts_rewards_above_it() -> None:
    buffer = ReplayBuffer(4, sampler=Uniform(False))
    buffer.statistics.correct_above = 0.5
    buffer.add(plain(4, reward=[0.5, 0.6, 1.0, -1.0]), train_step=0)
    buffer.sample(4, train_step=0, rng=RNG(0))
    assert buffer.metrics()["correct_fraction"] == 0.5 == buffer.metrics()["drawn_correct_fraction"]


def test_metrics_when_nothing_happened_are_zero_and_finite() -> None:
    metrics = ReplayBuffer(4).metrics()
    assert metrics["size"] == metrics["drawn"] == metrics["left"] == 0
    assert all(np.isfinite(value) for value in metrics.values())
