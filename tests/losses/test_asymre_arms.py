"""AsymRE on bandits, through the toy trainer: where the policy ends under each baseline."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

RECIPE = Path(__file__).parent.parent.parent / "recipes" / "asymre_arms.py"
spec = importlib.util.spec_from_file_location("asymre_arms", RECIPE)
assert spec is not None and spec.loader is not None
arms = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = arms
spec.loader.exec_module(arms)

BEHAVIOR, REWARDS = arms.THREE_ARMS  # mean reward 0.35


def limit_by_bisection(behavior, rewards, baseline):
    """The limit policy below the mean reward, tau found by halving: slow, and without sorting."""
    weight = behavior * (rewards - baseline)
    low, high = -1.0, weight.max()
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if np.maximum(weight - tau, 0).sum() > weight.sum() else (low, tau)
    return np.maximum(weight - low, 0) / weight.sum()


@pytest.mark.parametrize(
    ("baseline", "limit"),
    [
        (-1.0, (10 / 27, 9 / 27, 8 / 27)),
        (0.0, (0.0, 3 / 7, 4 / 7)),
        (0.25, (0.0, 0.125, 0.875)),
        (0.45, (0.0, 0.0, 1.0)),
    ],
)
def test_toy_when_trained_on_three_arms_ends_at_the_limit_policy_of_its_baseline(baseline, limit):
    np.testing.assert_allclose(arms.trained_policy(BEHAVIOR, REWARDS, baseline), limit, atol=1e-3)


@pytest.mark.parametrize(
    ("baseline", "limit", "reward"),
    [
        (-1.0, (10 / 27, 9 / 27, 8 / 27), 0.462963),
        (0.0, (0.0, 3 / 7, 4 / 7), 0.785714),
        (0.25, (0.0, 0.125, 0.875), 0.9375),
        (0.34, (0.0, 0.0, 1.0), 1.0),
    ],
)
def test_limit_policy_when_worked_by_hand_is_that(baseline, limit, reward):
    policy = arms.limit_policy(BEHAVIOR, REWARDS, baseline)
    np.testing.assert_allclose(policy, limit, atol=1e-12)
    assert policy @ REWARDS == pytest.approx(reward, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 40), gap=st.floats(1e-3, 3))
def test_limit_policy_when_below_the_mean_is_stationary_and_equals_the_slow_one(seed, size, gap):
    behavior, rewards = arms.random_bandit(seed, size)
    baseline = behavior @ rewards - gap
    policy = arms.limit_policy(behavior, rewards, baseline)
    np.testing.assert_allclose(policy, limit_by_bisection(behavior, rewards, baseline), atol=1e-9)
    assert policy.sum() == pytest.approx(1, abs=1e-9)
    # The logits of the arms that stay move together, those of the others fall behind: nothing changes any more.
    speed = behavior * (rewards - baseline) - gap * policy
    together = speed[policy > 0].mean()
    np.testing.assert_allclose(speed[policy > 0], together, atol=1e-9)
    assert speed.max() <= together + 1e-9
    assert policy @ rewards >= behavior @ rewards - 1e-9


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_toy_when_trained_on_100_arms_keeps_many_below_the_mean_reward_and_one_from_there_on(seed):
    behavior, rewards = arms.random_bandit(seed)
    sizes = []
    for shift in (-0.3, -0.1, -0.02, 0.0, 0.05):
        baseline = behavior @ rewards + shift
        policy = arms.trained_policy(behavior, rewards, baseline, steps=1000)
        sizes.append(arms.kept(policy))
        if shift < 0:
            limit = arms.limit_policy(behavior, rewards, baseline)
            assert abs(policy - limit).sum() < 0.03
    assert sizes[0] > 60 and sizes[0] > sizes[1] > sizes[2] > 10
    assert sizes[3:] == [1, 1]


def test_toy_when_the_baseline_is_the_mean_reward_can_end_on_an_arm_that_is_not_the_best():
    behavior, rewards = np.array([0.5, 0.45, 0.05]), np.array([0.0, 0.7, 1.0])
    mean = behavior @ rewards
    np.testing.assert_allclose(arms.trained_policy(behavior, rewards, mean), (0.0, 1.0, 0.0), atol=1e-3)
    # A little below it the best arm is still lost, far below it every arm stays.
    assert arms.trained_policy(behavior, rewards, mean - 0.05)[2] < 1e-3
    assert arms.trained_policy(behavior, rewards, -1.0).min() > 0.05


def test_recipe_when_run_draws_its_figure(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(arms, "SHIFTS", (-0.1, 0.0))
    monkeypatch.setattr(arms, "SEEDS", (0,))
    arms.main(["--out", str(tmp_path / "new" / "arms.png")])
    assert (tmp_path / "new" / "arms.png").read_bytes().startswith(b"\x89PNG")
    assert "arms kept" in capsys.readouterr().out
