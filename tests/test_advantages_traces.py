"""V-trace and Retrace: the hand-worked trajectory, closed forms, and what they are on data of the policy itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.advantages import retrace, vtrace
from ostinato.errors import DataError

RATIOS = np.array([2.0, 0.5, 1.5])
REWARDS = np.array([0.0, 0.0, 1.0])
VALUES = np.array([0.2, 0.4, 0.6])
NEXT = np.array([0.4, 0.6, 0.0])


def test_vtrace_when_hand_worked_has_the_published_targets_and_advantages() -> None:
    trace = vtrace(RATIOS, REWARDS, VALUES, NEXT)
    assert trace.targets.tolist() == pytest.approx([0.7, 0.7, 1.0])
    assert trace.advantages.tolist() == pytest.approx([0.5, 0.3, 0.4])


def test_retrace_when_hand_worked_does_not_weigh_its_own_action() -> None:
    targets = retrace(RATIOS, REWARDS, VALUES, NEXT)
    assert targets[0] == pytest.approx(0.7)
    assert targets.tolist() == pytest.approx([0.2 + 0.2 + 0.5 * (0.2 + 0.4), 0.4 + 0.2 + 0.4, 1.0])
    assert retrace(np.array([0.0, 0.5, 1.5]), REWARDS, VALUES, NEXT)[0] == targets[0]


@given(st.integers(0, 6), st.floats(0, 1), st.integers(0, 1000))
def test_traces_when_the_policy_has_not_moved_are_discounted_returns(length, discount, seed) -> None:
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=length), rng.normal(size=length)
    following, ones = np.append(values[1:], [0.0] * (length > 0)), np.ones(length)
    returns = np.array([sum(discount**k * r for k, r in enumerate(rewards[t:])) for t in range(length)])
    np.testing.assert_allclose(vtrace(ones, rewards, values, following, discount=discount).targets, returns, atol=1e-12)
    np.testing.assert_allclose(retrace(ones, rewards, values, following, discount=discount), returns, atol=1e-12)


@given(st.integers(1, 5), st.integers(0, 1000))
def test_vtrace_when_summed_step_by_step_is_its_definition(length, seed) -> None:
    rng = np.random.default_rng(seed)
    ratios, rewards, values = rng.uniform(0, 3, length), rng.normal(size=length), rng.normal(size=length)
    following, gamma, lam = np.append(values[1:], 0.3), 0.9, 0.8
    trace = vtrace(ratios, rewards, values, following, discount=gamma, trace=lam, ratio_bound=2.0)
    rho, c = np.minimum(2, ratios), lam * np.minimum(1, ratios)
    delta = rho * (rewards + gamma * following - values)
    for s in range(length):
        target = values[s] + sum(gamma ** (t - s) * np.prod(c[s:t]) * delta[t] for t in range(s, length))
        assert trace.targets[s] == pytest.approx(target)
        after = trace.targets[s + 1] if s + 1 < length else 0.3
        assert trace.advantages[s] == pytest.approx(rho[s] * (rewards[s] + gamma * after - values[s]))


@pytest.mark.parametrize("correction", [vtrace, retrace])
def test_traces_when_shapes_differ_are_refused(correction) -> None:
    with pytest.raises(DataError, match=r"have shapes \[\(3,\), \(2,\), \(3,\), \(3,\)\], expected \(L,\) each"):
        correction(RATIOS, REWARDS[:2], VALUES, NEXT)
