"""Presets: each scheme reproduces the worked numbers of its paper, through a real buffer."""

import math

import numpy as np
import pytest
from scipy.stats import chisquare

from ostinato.buffer import ReplayBuffer
from ostinato.buffer.presets import (
    PRESETS,
    advantage_prioritized,
    exgrpo_buckets,
    freshness_per,
    judge_guided,
    no_buffer,
    paper_fifo,
    paper_positive_bias,
    per,
    repo,
    rlep,
)
from ostinato.buffer.sampling import STRATEGIES
from ostinato.buffer.schedule import Linear
from ostinato.errors import ConfigError, DataError
from ostinato.rollouts import Rollouts

RNG = np.random.default_rng
NEEDED = {"judge_guided": {"warmup_steps": 10}, "paper_positive_bias": {"threshold": 0.5}, "rlep": {"threshold": 0.5}}
"""What has no default because the papers give none."""


def rollouts(n: int, **columns) -> Rollouts:
    return Rollouts.from_completions([[1, 2]] * n, [[3]] * n, [[-0.5]] * n, **columns)


def probabilities(buffer: ReplayBuffer) -> list[float]:
    columns = buffer.columns
    return buffer.sampler.probabilities(columns, np.arange(len(columns))).tolist()


def frequencies(buffer: ReplayBuffer, batches: int, *, step: int, n: int = 1) -> np.ndarray:
    """How often each of the rollouts 0, 1 ... came in so many batches of n."""
    rng = RNG(0)
    ids = np.concatenate([buffer.sample(n, train_step=step, rng=rng).rollout_ids for _ in range(batches)])
    return np.bincount(ids, minlength=int(buffer.columns["rollout_id"][-1]) + 1)


def weights_by_id(buffer: ReplayBuffer, n: int, *, step: int, batches: int = 1) -> dict[int, float]:
    rng, weights = RNG(0), {}
    for draw in [buffer.sample(n, train_step=step, rng=rng) for _ in range(batches)]:
        weights |= dict(zip(draw.rollout_ids.tolist(), draw.importance_weights.tolist(), strict=True))
    return weights


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_when_given_the_other_arguments_pass_them_on(name) -> None:
    buffer = PRESETS[name](200, **NEEDED.get(name, {}), first_id=1, id_stride=3, capacity_bytes=10**6)
    columns = {
        "reward": [1.0, 1.0, 0.0, 1.0],
        "group_reward_std": 0.5,
        "group_reward_mean": 0.75,
        "prompt_id": range(4),
    }
    ids = buffer.add(rollouts(4, **columns), train_step=0)
    assert [i for i in ids.tolist() if i >= 0] == [1 + 3 * i for i in range(len(buffer))]
    assert len(buffer) == (3 if name in {"rlep", "exgrpo_buckets"} else 4)
    assert buffer.capacity == 200 and buffer.capacity_bytes == 10**6


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_when_saved_and_restored_go_on_drawing_the_same(name) -> None:
    one, two = (PRESETS[name](200, **NEEDED.get(name, {})) for _ in range(2))
    rng = RNG(3)

    def add(buffer: ReplayBuffer, step: int, reward: np.ndarray) -> None:
        group = {"group_reward_std": 0.5, "group_reward_mean": 0.5, "advantage": 2 * reward - 1.0}
        given = rollouts(16, reward=reward, prompt_id=np.arange(16) + 16 * (step % 2), policy_version_min=step, **group)
        buffer.add(given, train_step=step)

    for step in range(12):
        add(one, step, rng.integers(0, 2, size=16).astype(float))
        if one.can_sample(4):
            one.sample(4, train_step=step, rng=rng)
    two.load_state_arrays(one.state_arrays())
    for step in range(12, 40):
        reward = rng.integers(0, 2, size=16).astype(float)
        draws = []
        for buffer in (one, two):
            if buffer.can_add(16):
                add(buffer, step, reward)
            draws.append(buffer.sample(4, train_step=step, rng=RNG(step)))
        assert draws[0].rollout_ids.tolist() == draws[1].rollout_ids.tolist()
        assert draws[0].importance_weights.tolist() == draws[1].importance_weights.tolist()


def test_paper_fifo_when_full_draws_uniformly_from_the_newest() -> None:
    buffer = paper_fifo(5)
    for step in range(3):
        buffer.add(rollouts(3), train_step=step)
    assert buffer.columns["rollout_id"].tolist() == [4, 5, 6, 7, 8]
    assert chisquare(frequencies(buffer, 400, step=9, n=5)[4:]).pvalue > 1e-3


@pytest.mark.parametrize(
    ("delta", "ages"),
    [(0.5, [8, 7, 5, 4, 3, 2, 1, 0]), (0.75, [8, 7, 5, 4, 2, 1, 0]), (0.0, [7, 6, 5, 4, 3, 2, 1, 0])],
)
def test_paper_positive_bias_when_given_the_papers_example_keeps_its_ages(delta, ages) -> None:
    buffer = paper_positive_bias(8, delta=delta, threshold=0.5)
    for step, reward in enumerate([0, 1, 1, 0, 1, 1, 0, 1, 0, 0]):
        buffer.add(rollouts(1, reward=float(reward)), train_step=step)
    assert (9 - buffer.columns["rollout_id"]).tolist() == ages
    buffer.check()


def test_paper_positive_bias_when_bytes_run_out_keeps_both_bounds_and_its_share() -> None:
    probe = paper_positive_bias(10**6, threshold=0.5)
    probe.add(rollouts(40), train_step=0)
    buffer, rng = paper_positive_bias(10**6, threshold=0.5, capacity_bytes=probe.nbytes), RNG(0)
    for step in range(120):
        buffer.add(rollouts(4, reward=(rng.random(4) < 0.4).astype(float)), train_step=step)
        buffer.check()
    reward, ids = buffer.columns["reward"], buffer.columns["rollout_id"]
    newest = len(buffer) // 2
    assert len(buffer) >= 36
    assert ids[-newest:].tolist() == list(range(480 - newest, 480)) and set(reward[: len(reward) - newest - 1]) == {1.0}


def test_no_buffer_when_both_sides_could_wait_for_each_other_is_refused() -> None:
    assert no_buffer(60, batch_size=60, group_size=12).can_add(60)
    with pytest.raises(ConfigError, match="it needs a capacity of 8"):
        no_buffer(7, batch_size=5, group_size=4)


def test_freshness_per_when_given_the_worked_example_draws_as_worked() -> None:
    buffer = freshness_per(min_size=1, beta=0.4)
    for step, reward in [(0, 1.0), (100, 0.5), (150, -0.15), (200, 0.0)]:
        buffer.add(rollouts(1, reward=reward), train_step=step)
    expected = [0.469981, 0.349605, 0.180264, 0.000150]
    assert probabilities(buffer) == pytest.approx(expected, abs=6e-7)
    weights = weights_by_id(buffer, 4000, step=200)
    worked = {0: 0.039966, 1: 0.044988, 2: 0.058635, 3: 1.0}
    assert set(weights) >= {0, 1, 2}
    assert weights == pytest.approx({i: worked[i] for i in weights}, abs=6e-7)


def test_freshness_per_when_left_alone_has_the_papers_settings() -> None:
    buffer = freshness_per()
    buffer.add(rollouts(127, reward=1.0), train_step=0)
    assert buffer.capacity == 50_000 and not buffer.can_sample(1)
    buffer.add(rollouts(1, reward=1.0), train_step=500)
    ratio = probabilities(buffer)[0] / probabilities(buffer)[-1]
    assert ratio == pytest.approx(math.exp(-0.6), rel=1e-12)  # tau 500, exponent 0.6
    assert weights_by_id(buffer, 128, step=500)[0] == 1.0  # no correction


def test_freshness_per_when_normalized_over_the_batch_escapes_the_zero_reward_trap() -> None:
    buffer = freshness_per(min_size=1, beta=0.4, normalize="batch")
    for step, reward in [(0, 1.0), (100, 0.5), (200, 0.0)]:
        buffer.add(rollouts(1, reward=reward), train_step=step)
    weights = weights_by_id(buffer, 64, step=200)
    assert weights == pytest.approx({0: 0.888381, 1: 1.0}, abs=6e-7)


def test_per_when_priorities_are_written_back_draws_by_them_and_corrects() -> None:
    buffer = per(10, min_size=1, beta=Linear(0.4, 1.0, 100))
    ids = buffer.add(rollouts(4), train_step=0)
    assert probabilities(buffer) == [0.25] * 4
    buffer.update_priorities(ids, [1.0, 0.5, 0.0, 0.15])
    leaves = np.array([1.0, 0.659755, 0.000251, 0.320373])
    assert probabilities(buffer) == pytest.approx(leaves / leaves.sum(), abs=1e-6)
    newcomer = buffer.add(rollouts(1), train_step=1)
    assert buffer.columns["priority"].tolist()[-1] == 1.0 and newcomer.tolist() == [4]
    for step, beta in [(50, 0.7), (100, 1.0)]:
        expected = {i: (0.000251 / leaf) ** beta for i, leaf in enumerate([*leaves, 1.0])}
        weights = weights_by_id(buffer, 100, step=step)
        assert weights == pytest.approx({i: expected[i] for i in weights}, rel=2e-3)


def test_advantage_prioritized_when_rollouts_are_used_replays_by_advantage() -> None:
    buffer = advantage_prioritized(warmup=0)
    advantages = [2.474867, -0.353552, 1.62018, -0.54006]
    buffer.add(rollouts(4, advantage=advantages, group_reward_std=0.5), train_step=0)
    assert buffer.sample(None, train_step=0, rng=RNG(0)).rollout_ids.tolist() == [0, 1, 2, 3]
    counts = frequencies(buffer, 3000, step=0)
    assert chisquare(counts, 3000 * np.array([0.376760, 0.142402, 0.304839, 0.175999])).pvalue > 1e-3
    draw = buffer.sample(4, train_step=0, rng=RNG(0))
    assert sorted(draw.rollout_ids.tolist()) == [0, 1, 2, 3]  # without replacement
    assert draw.importance_weights.tolist() == [1.0] * 4


def test_advantage_prioritized_when_groups_are_filtered_has_a_batch_of_sixty() -> None:
    buffer, batches = advantage_prioritized(), []
    std = np.repeat([0.0] * 6 + [0.5] * 5, 8)
    for step in range(1, 23):
        ids = buffer.add(
            rollouts(
                88, advantage=1.0, group_reward_std=std, policy_version_min=step, group_id=np.repeat(range(11), 8)
            ),
            train_step=step,
        )
        assert np.count_nonzero(ids == -1) == 48
        batches.append(buffer.sample(None, train_step=step, rng=RNG(step)))
    assert [len(batch) for batch in batches] == [40] * 20 + [60] * 2
    for step, batch in zip([21, 22], batches[20:], strict=True):
        assert batch.staleness[:40].tolist() == [0] * 40 and (batch.uses[:40] == 0).all()
        assert (batch.uses[40:] > 0).all() and len(set(batch.rollout_ids.tolist())) == 60
        assert batch.staleness.max() <= 10 and buffer.capacity == 30_000
        assert step - buffer.columns["policy_version_min"].min() <= 11


def test_advantage_prioritized_when_eleven_versions_old_drops_what_is_ten_old_it_keeps() -> None:
    buffer = advantage_prioritized()
    for version in (0, 1):
        buffer.add(rollouts(2, group_reward_std=1.0, policy_version_min=version), train_step=version)
    buffer.retain(train_step=10)
    assert len(buffer) == 4
    buffer.retain(train_step=11)
    assert buffer.columns["policy_version_min"].tolist() == [1, 1]


def judged(step: int, **settings) -> ReplayBuffer:
    """Four rollouts of which the judge likes two, at a train step."""
    buffer = judge_guided(4, warmup_steps=100, **settings)
    ids = buffer.add(rollouts(4, advantage=[0.1, -0.4, 2.0, 0.5]), train_step=0)
    buffer.retain(train_step=step)
    assert probabilities(buffer) == [0.25] * 4  # nothing is scored: everybody has the default
    assert buffer.update_priorities(ids, [1.0, 1.0, 0.0, 0.0]) == 4
    return buffer


@pytest.mark.parametrize(
    ("step", "liked", "others"),
    [(0, 0.25, 0.25), (25, 0.28125, 0.21875), (50, 0.3125, 0.1875), (100, 0.375, 0.125), (900, 0.375, 0.125)],
)
def test_judge_guided_when_warming_up_mixes_in_more_of_the_scores(step, liked, others) -> None:
    assert probabilities(judged(step)) == pytest.approx([liked, liked, others, others], abs=1e-12)


def test_judge_guided_when_drawn_corrects_against_the_mixture() -> None:
    weights = weights_by_id(judged(100, beta=0.4), 4, step=100, batches=20)
    assert weights == pytest.approx(dict(enumerate([0.644394, 0.644394, 1.0, 1.0])), abs=6e-7)
    counts = frequencies(judged(100), 1000, step=100, n=4)
    assert chisquare(counts, 4000 * np.array([0.375, 0.375, 0.125, 0.125])).pvalue > 1e-3


def test_judge_guided_when_scores_weigh_td_errors_draws_by_the_product() -> None:
    def product(columns, rows):
        return columns["priority"][rows] * np.abs(columns["advantage"][rows])

    buffer = judge_guided(4, warmup_steps=1, by=product)
    ids = buffer.add(rollouts(4, advantage=[0.1, -0.4, 2.0, 0.5]), train_step=1)
    buffer.update_priorities(ids, [1.0, 1.0, 0.0, 0.0])
    assert probabilities(buffer) == pytest.approx([0.225, 0.525, 0.125, 0.125], abs=1e-12)


def test_judge_guided_when_a_score_comes_too_late_ignores_it() -> None:
    buffer = judge_guided(2, warmup_steps=1, default_priority=0.5)
    late = buffer.add(rollouts(2), train_step=0)
    buffer.add(rollouts(2), train_step=5)
    assert buffer.update_priorities(late, [9.0, 9.0]) == 0
    assert buffer.columns["priority"].tolist() == [0.5, 0.5]
    assert buffer.metrics()["stale_updates"] == 2.0
    with pytest.raises(DataError, match="finite number >= 0"):
        buffer.update_priorities([2], [float("nan")])
    buffer.update_priorities([2, 3], [0.0, 0.0])  # nobody is liked: uniform
    assert probabilities(buffer) == [0.5, 0.5]


def test_repo_when_a_prompt_is_full_keeps_sixteen_and_retrieves_the_widest_spread() -> None:
    buffer = repo(1000)
    buffer.add(rollouts(4, prompt_id=7, reward=9.0), train_step=0)
    buffer.add(rollouts(16, prompt_id=7, reward=[1.0] * 5 + [0.0] * 11), train_step=0)
    buffer.add(rollouts(3, prompt_id=8, reward=0.5), train_step=0)
    buffer.retain(train_step=0)
    assert buffer.columns["rollout_id"].tolist() == list(range(4, 23))
    given = {"train_step": 1, "rng": RNG(0)}
    spread = buffer.sample_prompts([7], 4, strategy=STRATEGIES["max_variance_k"], **given)
    assert sorted(spread.rollouts.reward.tolist()) == [0.0, 0.0, 1.0, 1.0]
    best = buffer.sample_prompts([8, 7, 9], 8, strategy=STRATEGIES["highest_k"], **given)
    assert best.rollouts.prompt_id.tolist() == [8] * 3 + [7] * 8 and best.rollouts.reward[3:].sum() == 5.0


def test_exgrpo_buckets_when_prompts_differ_draws_the_half_solved_most() -> None:
    buffer = exgrpo_buckets(1000)
    for solved in range(9):
        reward = [1.0] * solved + [0.0] * (8 - solved)
        mean = np.mean(reward)
        buffer.add(rollouts(8, prompt_id=solved, reward=reward, group_reward_mean=mean), train_step=0)
    assert len(buffer) == 36
    rng = RNG(0)
    prompts = [int(buffer.sample(1, train_step=0, rng=rng).rollouts.prompt_id[0]) for _ in range(3000)]
    weights = np.array([0.004433, 0.054006, 0.242036, 0.399050, 0.242036, 0.054006, 0.004433])
    counts = np.bincount(prompts, minlength=9)
    assert counts[0] == counts[8] == 0
    assert chisquare(counts[1:8], 3000 * weights / weights.sum()).pvalue > 1e-3


def test_exgrpo_buckets_when_entropies_are_written_back_takes_the_lowest_of_each_prompt() -> None:
    buffer = exgrpo_buckets(1000, rewards=(-1.0, 1.0))
    reward = [1.0, 1.0, 1.0, -1.0]
    ids = buffer.add(rollouts(8, prompt_id=[1] * 4 + [2] * 4, reward=reward * 2, group_reward_mean=0.5), train_step=0)
    assert ids.tolist() == [0, 1, 2, -1, 3, 4, 5, -1]
    buffer.update_priorities([0, 1, 2, 3, 4, 5], [0.9, 0.2, 0.5, 0.3, 0.8, 0.1])
    assert sorted(buffer.sample(2, train_step=0, rng=RNG(0)).rollout_ids.tolist()) == [1, 5]


def test_rlep_when_filled_holds_successes_and_draws_two_of_each_prompt() -> None:
    buffer = rlep(1000, threshold=0.5)
    ids = buffer.add(rollouts(8, prompt_id=[1] * 5 + [2] * 3, reward=[1, 0, 1, 1, 0, 0, 1, 0.5]), train_step=0)
    assert ids.tolist() == [0, -1, 1, 2, -1, -1, 3, -1]
    drawn = buffer.sample_prompts([2, 1], 2, train_step=0, rng=RNG(0))
    assert drawn.rollouts.prompt_id.tolist() == [2, 1, 1] and len(set(drawn.rollout_ids.tolist())) == 3
    rng, pairs = RNG(1), np.zeros(3)
    for _ in range(600):
        pairs[buffer.sample_prompts([1], 2, train_step=0, rng=rng).rollout_ids] += 1
    assert chisquare(pairs).pvalue > 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: paper_positive_bias(8, delta=1.5, threshold=0.0), "delta must lie between 0 and 1, got 1.5"),
        (lambda: rlep(8, threshold=float("nan")), "threshold must be a finite number, got nan"),
        (lambda: freshness_per(tau=0.0), "tau"),
        (lambda: freshness_per(100), "min_size 128 is never reached at a capacity of 100"),
        (lambda: judge_guided(8, warmup_steps=0), "warmup_steps must be at least 1"),
        (lambda: judge_guided(8, warmup_steps=5, share=1.5), "share must lie between 0 and 1"),
        (lambda: advantage_prioritized(max_staleness=-1), "max_staleness must be at least 0"),
        (lambda: repo(8, per_prompt=0), "rollouts kept per prompt must be at least 1"),
        (lambda: exgrpo_buckets(8, group_size=1), "group_size must be at least 2"),
    ],
)
def test_presets_when_impossible_are_refused(make, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
