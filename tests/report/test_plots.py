"""What the figures show, read back from matplotlib's own objects."""

import sys

import numpy as np
import pytest

from ostinato.errors import MissingExtraError
from ostinato.report import accuracy_against_compute, replay_histograms, run_curves

PNG = b"\x89PNG\r\n"


def arm(saving, needed, curves, target=0.5):
    seeds = {str(i): {"curve": {"smoothed_compute": x, "smoothed_accuracy": y}} for i, (x, y) in enumerate(curves)}
    median = {"saving": saving, "compute_to_target": needed, "target_accuracy": target}
    return {"median": median, "reached": 1 if needed is None else 2, "seeds": seeds}


def summary(replay_saving=0.4, needed=60.0):
    x = [0.0, 50.0, 100.0]
    arms = {
        "baseline": arm(0.0, 100.0, [(x, [0.2, 0.3, 0.5]), (x, [0.2, 0.5, 0.6])]),
        "replay": arm(replay_saving, needed, [(x, [0.2, 0.4, 0.8]), ([10.0, 90.0], [0.2, 0.6])]),
    }
    return {"rule": {"baseline": "baseline", "target_fraction": 0.98}, "arms": arms}


def histogram(counts):
    total = sum(counts)
    mean = float(np.arange(len(counts)) @ np.array(counts) / total) if total else None
    return {"counts": counts, "mean": mean}


def statistics(uses, since, new):
    parts = {"staleness": [0, 2, 2], "residence": [4], "uses": uses, "steps_since_last_use": since}
    return {name: histogram(counts) for name, counts in parts.items()} | {"new": new}


def lines_of(ax, width):
    return [line for line in ax.lines if line.get_linewidth() == width]


def test_accuracy_figure_has_a_thin_line_a_seed_and_a_thick_median(tmp_path):
    figure = accuracy_against_compute(summary(), tmp_path / "accuracy.png")
    ax = figure.axes[0]
    assert len(lines_of(ax, 0.8)) == 4
    baseline, replay = lines_of(ax, 2.4)
    assert baseline.get_ydata() == pytest.approx([0.2, 0.4, 0.55])
    # On the stretch both seeds cover: the first at 10, 50, 90 is 0.24, 0.4, 0.72, the second 0.2, 0.4, 0.6.
    assert replay.get_xdata() == pytest.approx([10, 50, 90])
    assert replay.get_ydata() == pytest.approx([0.22, 0.4, 0.66])
    assert (tmp_path / "accuracy.png").read_bytes().startswith(PNG)


def test_accuracy_figure_marks_target_and_saving(tmp_path):
    ax = accuracy_against_compute(summary(), tmp_path / "a.png").axes[0]
    texts = [text.get_text() for text in ax.texts]
    assert "40% less compute" in texts
    assert any("98% of the baseline's final accuracy" in text for text in texts)
    assert [list(line.get_ydata()) for line in lines_of(ax, 1)] == [[0.5, 0.5]]
    arrow = next(text for text in ax.texts if text.arrow_patch is not None)
    assert (arrow.xyann[0], arrow.xy[0]) == (100, 60)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["baseline (2 seeds)", "replay (2 seeds): saves 40%"]


@pytest.mark.parametrize(("saving", "needed"), [(-0.2, 120.0), (0.1, None)])
def test_accuracy_figure_has_no_arrow_when_nothing_was_saved(tmp_path, saving, needed):
    ax = accuracy_against_compute(summary(saving, needed), tmp_path / "a.png").axes[0]
    assert not any(text.arrow_patch is not None for text in ax.texts)


def test_accuracy_figure_says_how_many_seeds_reached_the_target_when_not_all_did(tmp_path):
    ax = accuracy_against_compute(summary(0.1, None), tmp_path / "a.png").axes[0]
    assert ax.get_legend().get_texts()[1].get_text() == "replay (2 seeds, 1 reached the target): saves 10%"


def test_histograms_show_fractions_and_means_one_row_a_run(tmp_path):
    runs = {"replay": statistics([1, 1, 2], [3, 0, 1], 4), "baseline": statistics([0, 4], [], 4)}
    figure = replay_histograms(runs, tmp_path / "replay.png")
    uses, since = figure.axes[1], figure.axes[2]
    assert list(uses.patches[0].get_data().values) == [0.25, 0.25, 0.5]
    assert list(uses.patches[0].get_data().edges) == [-0.5, 0.5, 1.5, 2.5]
    assert uses.lines[0].get_xdata()[0] == 1.25
    assert since.get_title(loc="right") == "mean 0.50, 50% new"
    assert not figure.axes[5].patches
    assert figure.axes[5].get_title(loc="right") == "100% new"
    assert figure.axes[3].get_ylabel() == "baseline\nfraction"


def test_run_curves_smooth_steps_and_leave_gaps_out(tmp_path):
    steps = [
        {"event": "step", "compute": float(i), "reward": float(i), "staleness": None if i < 4 else 2.0}
        for i in range(10)
    ]
    points = [
        {"event": "evaluation", "compute": c, "sampled_accuracy": c / 10, "greedy_accuracy": None} for c in (0, 9)
    ]
    figure = run_curves({"run": [*steps, *points]}, tmp_path / "curves.png")
    reward, accuracy, entropy, *_, staleness = figure.axes
    assert list(reward.lines[0].get_xdata()) == list(reward.lines[0].get_ydata()) == [2, 3, 4, 5, 6, 7]
    assert list(accuracy.lines[0].get_ydata()) == [0, 0.9]
    assert len(accuracy.lines[1].get_ydata()) == 0
    assert list(staleness.lines[0].get_xdata()) == [6, 7]
    assert entropy.get_title(loc="right") == "not recorded"


def test_baseline_is_gray_and_others_keep_their_color_across_figures(tmp_path):
    ax = accuracy_against_compute(summary(), tmp_path / "a.png").axes[0]
    assert [line.get_color() for line in lines_of(ax, 2.4)] == ["#6b6b6b", "#0072B2"]
    runs = {"baseline": statistics([1], [], 1), "replay": statistics([1], [], 1)}
    rows = replay_histograms(runs, tmp_path / "r.png").axes[1::3]
    assert [ax.patches[0].get_facecolor()[:3] for ax in rows] == [
        pytest.approx([int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for c in ("#6b6b6b", "#0072B2")
    ]


def test_a_missing_matplotlib_prints_the_install_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"matplotlib is not installed; run: pip install 'ostinato\[report\]'"):
        run_curves({"run": []}, tmp_path / "curves.png")
    assert list(tmp_path.iterdir()) == []
