"""The saving rule on synthetic runs whose saving is known."""

import json

import numpy as np
import pytest

from ostinato.errors import DataError
from ostinato.stats import ArmRun, summarize

B, MU = 60, 5.0
POINTS = np.arange(0, 245, 5.0)


def run(arm, seed=0, *, stretch=1.0, uses=1.0, generate_s=5.0, noise=None, points=POINTS, greedy=True, **settings):
    """Accuracy 0.2 + 0.3 compute / (240 stretch); `uses` draws a generated rollout; noise: an rng of 512 prompts."""
    accuracy = 0.2 + 0.3 * points / (240 * stretch)
    if noise is not None:
        accuracy = noise.binomial(512, np.minimum(accuracy, 1)) / 512
    generated = points * B * (1 + MU) / (MU + uses)
    evaluations = [
        {
            "compute": c,
            "generated": g,
            "trained": uses * g,
            "busy_generate_s": generate_s * g,
            "busy_train_s": uses * g,
            "sampled_accuracy": a,
            "greedy_accuracy": a + 0.1 if greedy else None,
        }
        for c, g, a in zip(points, generated, accuracy, strict=True)
    ]
    return ArmRun(arm, seed, settings, B, MU, evaluations)


def seed_row(runs, arm="replay", seed=0, **options):
    return summarize(runs, **options)["arms"][arm]["seeds"][str(seed)]


def test_saving_is_exact_when_the_arm_needs_six_tenths_of_the_compute():
    row = seed_row([run("baseline"), run("replay", stretch=0.6)])
    assert row["saving"] == pytest.approx(0.4)
    # The baseline's curve ends at compute 230, the middle of its last five points.
    target = 0.98 * (0.2 + 0.3 * 230 / 240)
    assert row["target_accuracy"] == pytest.approx(target)
    assert row["compute_to_target"] == pytest.approx((target - 0.2) / 0.3 * 240 * 0.6)
    assert row["reached"] is True


def test_saving_is_exactly_zero_when_the_baseline_meets_itself():
    row = seed_row([run("baseline", noise=np.random.default_rng(0))], arm="baseline")
    assert [row[k] for k in ("saving", "saving_at_measured_mu", "saving_wall_time")] == [0, 0, 0]


def test_saving_is_near_zero_when_two_arms_are_identical_but_for_noise():
    rng = np.random.default_rng(1)
    runs = [run(arm, seed, noise=rng) for seed in range(200) for arm in ("baseline", "replay")]
    savings = [row["saving"] for row in summarize(runs)["arms"]["replay"]["seeds"].values()]
    assert abs(np.median(savings)) < 0.01
    assert abs(np.mean(savings)) < 0.015
    assert np.mean(np.abs(savings) < 0.15) > 0.95


def test_saving_is_not_overstated_when_curves_are_noisy():
    rng = np.random.default_rng(2)
    runs = [run(a, s, stretch=x, noise=rng) for s in range(200) for a, x in (("baseline", 1), ("replay", 0.6))]
    median = summarize(runs)["arms"]["replay"]["median"]["saving"]
    assert 0.36 < median < 0.405


def test_saving_is_zero_when_the_target_is_never_reached():
    summary = summarize([run("baseline"), run("slow", stretch=2)])
    row = summary["arms"]["slow"]["seeds"]["0"]
    assert (row["saving"], row["saving_wall_time"], row["reached"]) == (0, 0, False)
    assert row["compute_to_target"] is None
    assert summary["arms"]["slow"]["reached"] == 0


def test_saving_is_negative_when_the_target_is_reached_late():
    longer = np.arange(0, 305, 5.0)
    assert seed_row([run("baseline"), run("replay", stretch=1.2, points=longer)])["saving"] == pytest.approx(-0.2)


def test_saving_at_measured_mu_when_generation_costs_twice_what_was_assumed():
    # 10 s a generated, 1 s a trained rollout: mu 10. Replay draws each rollout 3 times, so a generated rollout costs
    # 13 where the assumed axis says 8; the baseline 11 where it says 6.
    runs = [run("baseline", generate_s=10), run("replay", stretch=0.6, uses=3, generate_s=10)]
    row = seed_row(runs)
    assert row["measured_mu"] == pytest.approx(10)
    assert row["saving"] == pytest.approx(0.4)
    expected = 1 - 0.6 * (13 / 8) / (11 / 6)
    assert row["saving_at_measured_mu"] == pytest.approx(expected)
    assert row["saving_wall_time"] == pytest.approx(expected)


def test_saving_at_measured_mu_uses_the_baselines_mu_when_the_arms_own_differs():
    runs = [run("baseline", generate_s=10), run("replay", stretch=0.6, uses=3, generate_s=20)]
    assert seed_row(runs)["saving_at_measured_mu"] == pytest.approx(1 - 0.6 * (13 / 8) / (11 / 6))
    assert seed_row(runs)["saving_wall_time"] == pytest.approx(1 - 0.6 * (23 / 8) / (11 / 6))


def test_measured_savings_are_null_when_seconds_were_not_measured():
    silent = [
        ArmRun(r.arm, 0, {}, B, MU, [e | {"busy_generate_s": 0.0, "busy_train_s": 0.0} for e in r.evaluations])
        for r in (run("baseline"), run("replay", stretch=0.6))
    ]
    row = seed_row(silent)
    assert row["saving"] == pytest.approx(0.4)
    assert [row[k] for k in ("saving_at_measured_mu", "saving_wall_time", "measured_mu")] == [None, None, None]


def test_final_peak_and_equal_compute_are_read_off_the_smoothed_curve():
    short = np.arange(0, 105, 5.0)
    row = seed_row([run("baseline", points=short), run("replay", stretch=0.5)])
    assert row["equal_compute"] == 90
    assert row["accuracy_at_equal_compute"] == pytest.approx(0.2 + 0.3 * 90 / 120)
    assert row["final_sampled_accuracy"] == row["peak_sampled_accuracy"] == pytest.approx(0.2 + 0.3 * 230 / 120)
    assert row["final_greedy_accuracy"] == pytest.approx(0.3 + 0.3 * 230 / 120)
    assert row["curve"]["smoothed_compute"][0] == 10


def test_peak_is_above_final_when_the_curve_declines():
    falling = run("baseline")
    for i, record in enumerate(falling.evaluations):
        record["sampled_accuracy"] = 0.5 - 0.01 * abs(i - 30)
    row = seed_row([falling], arm="baseline")
    assert row["peak_sampled_accuracy"] == pytest.approx(0.5 - 0.012)
    assert row["final_sampled_accuracy"] == pytest.approx(0.5 - 0.16)


def test_greedy_is_null_when_it_was_not_evaluated():
    row = seed_row([run("baseline", greedy=False)], arm="baseline")
    assert row["final_greedy_accuracy"] is row["peak_greedy_accuracy"] is row["curve"]["greedy_accuracy"] is None


def test_median_and_quartiles_over_seeds():
    stretches = [0.5, 0.6, 0.7, 0.9]
    runs = [run(a, s, stretch=x) for s, y in enumerate(stretches) for a, x in (("baseline", 1), ("replay", y))]
    arm = summarize(runs)["arms"]["replay"]
    assert arm["median"]["saving"] == pytest.approx(0.35)
    assert arm["quartiles"]["lower"]["saving"] == pytest.approx(np.quantile([0.5, 0.4, 0.3, 0.1], 0.25))
    assert arm["quartiles"]["upper"]["saving"] == pytest.approx(np.quantile([0.5, 0.4, 0.3, 0.1], 0.75))
    assert "quartiles" not in summarize(runs[:6])["arms"]["replay"]


def test_median_counts_a_seed_that_never_arrives_as_no_saving():
    runs = [run(a, s, stretch=x) for s, y in enumerate([0.5, 2]) for a, x in (("baseline", 1), ("replay", y))]
    arm = summarize(runs)["arms"]["replay"]
    assert arm["median"]["saving"] == pytest.approx(0.25)
    assert arm["median"]["compute_to_target"] is None
    assert arm["reached"] == 1


def test_settings_are_those_that_differ_between_arms():
    runs = [
        run("baseline", loop={"epochs": 1, "mu": 5}, buffer={"kind": "queue"}, seed_note=None),
        run("epochs", loop={"epochs": 3, "mu": 5}, buffer={"kind": "queue"}, seed_note=None),
    ]
    arms = summarize(runs)["arms"]
    assert (arms["baseline"]["settings"], arms["epochs"]["settings"]) == ({"loop.epochs": 1}, {"loop.epochs": 3})


def test_same_points_is_false_when_an_arm_is_evaluated_elsewhere():
    assert summarize([run("baseline"), run("replay", points=POINTS[:20])])["rule"]["same_points"] is True
    assert summarize([run("baseline"), run("replay", points=POINTS + 2)])["rule"]["same_points"] is True
    assert summarize([run("baseline"), run("replay", points=POINTS + 3)])["rule"]["same_points"] is False
    assert summarize([run("baseline"), run("replay", points=POINTS * 2)])["rule"]["same_points"] is False


def test_summary_survives_json():
    summary = summarize([run("baseline"), run("replay", stretch=0.6)])
    assert json.loads(json.dumps(summary)) == summary


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([run("replay")], r"seed 0 has no run of the arm 'baseline', got \['replay'\]"),
        ([run("baseline"), run("baseline")], "arm 'baseline' has two runs with seed 0"),
        ([run("baseline", 3, points=POINTS[:4])], "arm 'baseline' with seed 3 has 4 evaluations, expected at least 5"),
    ],
)
def test_summarize_is_an_error_when_runs_do_not_fit_the_rule(runs, message):
    with pytest.raises(DataError, match=message):
        summarize(runs)
