"""The control of capacity and samples per insert, on workloads whose mu and variance by age are known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.config.bounds import Bounds
from ostinato.config.governing import ControlConfig
from ostinato.errors import DataError
from ostinato.governors import BufferControl, ControlSettings, Dials, Spent, WorkloadWindow
from ostinato.governors.control import LEAST_HORIZON
from ostinato.governors.estimates import EDGES, NOTHING_SPENT
from ostinato.stats.off_policy import FIGURES
from ostinato.theory import PowerLaw, Workload, best_horizon, best_uses_at, mean_uses, optimum, safest_rho
from ostinato.theory.variance import ASSUMED_ALPHA

B, RHO = 60, 0.05
WIDE = Bounds(60, 3840, 1, 1.0, 32.0)


class Synthetic:
    """A synchronous run: sigma^2(age) = age^(2 alpha) in the token ratios, cost ratio mu, ages 1 to x of the buffer."""

    def __init__(self, control: BufferControl, *, noise: float = 0.02, seed: int = 0) -> None:
        self.control, self.noise, self.rng = control, noise, np.random.default_rng(seed)
        self.totals, self.step, self.changes = NOTHING_SPENT, 0, []

    def play(self, steps: int, *, mu: float, alpha: float, uses: float = 1.0) -> Dials:
        """`uses`: of a buffer that runs free."""
        for _ in range(steps):
            self.step += 1
            dials = self.control.dials
            made = B / (dials.samples_per_insert or uses)
            staleness = self.rng.integers(1, max(int(dials.capacity / made), 1) + 1, B)
            moment = staleness.astype(float) ** (2 * alpha) * np.exp(self.noise * self.rng.standard_normal(B))
            figures = ratios(np.full(B, 50.0), np.full(B, 50.0), 50 * moment)
            self.totals = Spent(*np.add(self.totals, (mu * made / B, made, 1.0, B)).tolist())
            change = self.control.act(self.step, self.totals, figures, staleness)
            self.changes += [change] if change else []
        return self.control.dials


def ratios(tokens, ratio_sum, ratio_square_sum, log_ratio_sum=0.0) -> dict[str, np.ndarray]:
    figures = {name: np.zeros(len(tokens)) for name in FIGURES}
    return figures | {
        "tokens": np.asarray(tokens, float),
        "ratio_sum": np.asarray(ratio_sum, float),
        "ratio_square_sum": np.asarray(ratio_square_sum, float),
        "ratio_max": np.ones(len(tokens)),
        "log_ratio_sum": np.broadcast_to(np.asarray(log_ratio_sum, float), (len(tokens),)),
    }


def control(**changed) -> BufferControl:
    return BufferControl(ControlSettings(**{"batch_size": B, "bounds": WIDE, "mu": 5.28, "rho": RHO} | changed))


BOTH = {"turns_capacity": True, "turns_uses": True}


def test_start_when_nothing_is_measured_is_the_optimum_of_the_assumed_workload() -> None:
    assumed = Workload(5.28, RHO, PowerLaw(ASSUMED_ALPHA))
    uses = mean_uses(5.28, 5, 3)  # 3.168; x = 4 / (1 / 3.168 + .05) = 10.94, N = x 60 / 3.168
    assert control(turns_capacity=True, uses=uses).dials == Dials(round(4 / (1 / uses + RHO) * B / uses)) == Dials(207)
    best = optimum(assumed)  # the paper's 21.62 and 7.406
    assert control(**BOTH).dials == Dials(175, best.uses_per_rollout)
    assert control(turns_uses=True, capacity=300).dials == Dials(300, best_uses_at(assumed, 5.0))


@pytest.mark.parametrize(("mu", "alpha"), [(5.28, 0.1), (2.0, 0.2), (10.0, 0.05), (0.7, 0.15)])
@pytest.mark.parametrize("turned", ["capacity", "uses", "both"])
def test_dials_when_the_law_is_known_end_within_a_fifth_of_its_optimum(mu, alpha, turned) -> None:
    """The hysteresis of 15 % and the noise of the estimates are all that is left."""
    law = Workload(mu, RHO, PowerLaw(alpha))
    if turned == "capacity":
        dials = Synthetic(control(turns_capacity=True, uses=3.0)).play(900, mu=mu, alpha=alpha, uses=3.0)
        assert dials.capacity == pytest.approx(max(best_horizon(law, 3.0), LEAST_HORIZON) * B / 3, rel=0.2)
    elif turned == "uses":
        dials = Synthetic(control(turns_uses=True, capacity=240)).play(900, mu=mu, alpha=alpha)
        assert dials.samples_per_insert == pytest.approx(max(best_uses_at(law, 4.0), 1.0), rel=0.2)
    else:
        dials = Synthetic(control(**BOTH)).play(900, mu=mu, alpha=alpha)
        best = optimum(law)
        assert dials.samples_per_insert == pytest.approx(max(best.uses_per_rollout, 1.0), rel=0.2)
        horizon = max(best_horizon(law, dials.samples_per_insert), LEAST_HORIZON)
        assert dials.capacity == pytest.approx(max(horizon * B / dials.samples_per_insert, B), rel=0.25)


def test_dials_when_the_workload_moves_follow_it() -> None:
    """And come back, although a small buffer shows few ages: x* is 57.7, then 1.3, then 57.7 again."""
    run = Synthetic(control(**BOTH))
    for mu, alpha in ((6.0, 0.05), (1.5, 0.25), (6.0, 0.05)):
        dials, best = run.play(900, mu=mu, alpha=alpha), optimum(Workload(mu, RHO, PowerLaw(alpha)))
        assert dials.samples_per_insert == pytest.approx(best.uses_per_rollout, rel=0.2)
        horizon = max(best.staleness_horizon, LEAST_HORIZON)
        assert dials.capacity == pytest.approx(horizon * B / best.uses_per_rollout, rel=0.3)
    assert len(run.changes) > 12


def test_dials_when_at_the_optimum_do_not_chatter() -> None:
    """Estimates move by a tenth and more from look to look; 100 looks change nothing."""
    law = Workload(5.28, RHO, PowerLaw(ASSUMED_ALPHA))
    run = Synthetic(control(**BOTH, window=40), noise=0.3)
    assert run.play(2000, mu=5.28, alpha=ASSUMED_ALPHA) == control(**BOTH).dials
    assert run.changes == []
    assert abs(run.control.metrics()["control.alpha"] / law.variance.alpha - 1) > 0.01


def test_dials_when_estimates_are_noise_stay() -> None:
    """sigma^2 known to a factor of 7: the interval of the optimum holds what is set, far from the value it names."""
    run = Synthetic(control(turns_capacity=True, uses=3.0, window=20, hysteresis=0.0), noise=2.0, seed=4)
    start = run.control.dials
    run.play(400, mu=5.28, alpha=0.1, uses=3.0)
    targets = {change.target for change in run.changes}
    assert len(run.changes) <= 6  # of 20 looks; one look in ten is outside a 90 % interval
    assert run.control.dials.capacity == pytest.approx(start.capacity, rel=0.6)
    assert all(change.target.capacity != start.capacity for change in run.changes) and len(targets) <= 6


def test_dials_when_nothing_tells_the_age_stay() -> None:
    run = control(**BOTH)
    for step in range(1, 200):
        fresh = np.zeros(B, np.int64)  # age 0 alone has no slope
        figures = ratios(np.full(B, 50.0), np.full(B, 50.0), np.full(B, 50.0)) if step % 2 else {}
        assert run.act(step, Spent(step, 10 * step, step, B * step), figures, fresh) is None
    assert run.dials == control(**BOTH).dials
    assert "control.alpha" not in run.metrics() and run.metrics()["control.mu"] == pytest.approx(6.0)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(3, 30), st.floats(0.01, 1.0), st.sampled_from("cub"))
def test_dials_whatever_is_measured_are_slow_bounded_and_whole(seed, shards, every, step, kind) -> None:
    """Adversarial figures: each look may name another optimum; the rules hold all the same."""
    rng = np.random.default_rng(seed)
    bounds = Bounds(63 * shards, 63 * shards * 20, shards, 1.0, 9.0)
    turned = {"c": {"turns_capacity": True}, "u": {"turns_uses": True, "capacity": 63 * shards}, "b": BOTH}[kind]
    run = control(**turned, bounds=bounds, every=every, step=step, hysteresis=0.0, window=5)
    previous, last, totals = run.dials, -every, NOTHING_SPENT
    for now in range(1, 160):
        staleness = rng.integers(0, 2 ** rng.integers(1, 12), 30)
        moment = np.maximum(staleness, 1.0) ** rng.uniform(0, 2) * 50
        totals = Spent(*np.add(totals, rng.uniform(0.01, 50, 4)).tolist())
        change = run.act(now, totals, ratios(np.full(30, 50.0), np.full(30, 50.0), moment), staleness)
        assert (change is not None) == (run.dials != previous)
        if change:
            assert now - last >= every and change.before == previous and change.after == run.dials
            before, after = change.before.capacity, change.after.capacity
            assert before / (1 + step) - shards <= after <= before * (1 + step) + shards
            if kind != "c":
                factor = change.after.samples_per_insert / change.before.samples_per_insert
                assert 1 / (1 + step) - 1e-12 <= factor <= 1 + step + 1e-12
            assert change.reason and json.dumps(change.record(), allow_nan=False)
            previous, last = run.dials, now
        assert bounds.least_capacity <= run.dials.capacity <= bounds.most_capacity
        assert run.dials.capacity % shards == 0
        assert kind == "c" or 1 <= run.dials.samples_per_insert <= 9


def test_control_when_stopped_and_restored_goes_on_alike() -> None:
    whole, first = Synthetic(control(**BOTH)), Synthetic(control(**BOTH))
    whole.play(333, mu=2.0, alpha=0.2)
    first.play(150, mu=2.0, alpha=0.2)
    state = json.loads(json.dumps(first.control.state_dict()))
    second = Synthetic(control(**BOTH))
    second.control.load_state_dict(state)
    second.rng, second.totals, second.step = first.rng, first.totals, first.step
    second.play(183, mu=2.0, alpha=0.2)
    assert second.control.state_dict() == whole.control.state_dict()
    assert [change.record() for change in first.changes + second.changes] == [c.record() for c in whole.changes]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"dials": {"capacity": 59, "samples_per_insert": 2.0}}, "capacity=59.*expected values within"),
        ({"dials": {"capacity": 99, "samples_per_insert": None}}, "expected values within"),
        ({"dials": {"capacity": 99, "samples_per_insert": 33.0}}, "expected values within"),
        ({"dials": {"size": 9}}, "cannot be used"),
        ({"totals": [1.0]}, "counters of what was spent cannot be read"),
        ({"window": [[1.0, 2.0]]}, "needs rows of 70 finite numbers"),
        ({"window": [[math.nan] * 70]}, "needs rows of 70 finite numbers"),
    ],
)
def test_control_when_its_state_is_damaged_refuses_it_and_stays(damage, message) -> None:
    run = control(**BOTH)
    before = run.state_dict()
    with pytest.raises(DataError, match=message) as caught:
        run.load_state_dict(before | damage)
    assert "\n" not in str(caught.value) and run.state_dict() == before
    with pytest.raises(DataError, match="lacks 'dials'"):
        run.load_state_dict({})


def test_window_when_worked_by_hand() -> None:
    """Two steps; a third pushes the first out.

    Ages 2, 2, 8: r sums 4 of 4 tokens, 6 of 4, 2 of 2; r^2 sums 8, 12, 8. X = -1, -3, -4.
    sigma^2: age 2: 20/8, age 8: 4. alpha = log(4 / 2.5) / log(4) / 2. ESS: 10^2 / (8 20), 2^2 / (2 8).
    drift = (2 1 + 2 3 + 8 4) / (4 + 4 + 64).
    """
    window = WorkloadWindow(2)
    window.record(Spent(100, 1, 1, 1), {}, np.array([0]))
    window.record(Spent(6, 2, 1, 4), ratios([4, 4], [4, 6], [8, 12], [-1, -3]), np.array([2, 2]))
    window.record(Spent(6, 2, 1, 4), ratios([2], [2], [8], [-4]), np.array([8]))
    found = window.estimates(np.random.default_rng(0))
    assert (found.steps, found.uses, found.drift) == (2, 2.0, 40 / 72)
    assert found.mu.value == pytest.approx(3 / 0.25)
    assert found.alpha.value == pytest.approx(math.log(1.6) / math.log(4) / 2)
    assert found.ess == {"age_2_3": pytest.approx(100 / 160), "age_8_15": pytest.approx(4 / 16)}


def test_ages_when_in_wide_buckets_keep_a_power_law_straight() -> None:
    """Buckets double; the geometric mean age in each leaves an exponent within 2 % of the law's, over ages 1 to 999."""
    window, ages = WorkloadWindow(9), np.arange(1, 1000)
    for alpha in (0.05, 0.2, 0.45):
        moment = ages ** (2 * alpha)
        window.record(Spent(1, 1, 1, 1), ratios(np.ones(999), np.ones(999), moment), ages)
        found = window.estimates(np.random.default_rng(0))
        window = WorkloadWindow(9)
        assert found.alpha.value == pytest.approx(alpha, rel=0.02)
    assert EDGES[:5] == (0, 1, 2, 4, 8)


def test_rho_when_not_set_is_the_one_that_loses_least() -> None:
    """A run cannot tell it; the default is what `ostinato plan` takes over 0 to 1 at the paper's mu and alpha."""
    assert ControlConfig().rho == safest_rho(5.28, PowerLaw(ASSUMED_ALPHA), 1.0)
