"""Figures of the theory, read back from matplotlib's own objects."""

import numpy as np
import pytest

from ostinato.report.theory_figures import (
    gamma_table,
    k_of_x,
    optimum_against_mu,
    saving_map,
    savings_of,
    stationary_point,
)
from ostinato.theory import Limits, MeasuredVariance, PowerLaw, Workload, make_plan, optimum

PLAN = make_plan(Workload(5.28, 0.05, PowerLaw(0.1)), Limits(60, 16), gpus=8)


def test_optimum_figure_has_x_above_y_for_every_alpha_and_rho(tmp_path) -> None:
    figure = optimum_against_mu(PLAN, [tmp_path / "a.svg"])
    assert len(figure.axes) == 8
    # alpha 0.1 is the second column, rho 0.05 its second line.
    for ax, name in ((figure.axes[1], "staleness_horizon"), (figure.axes[5], "uses_per_rollout")):
        line = ax.lines[1]
        mu = float(line.get_xdata()[60])
        assert line.get_ydata()[60] == getattr(optimum(Workload(mu, 0.05, PowerLaw(0.1))), name)
        assert ax.lines[4].get_xdata() == [5.28, 5.28]


def test_k_figure_marks_the_minimizers(tmp_path) -> None:
    ax = k_of_x(PLAN, [tmp_path / "k.svg"]).axes[0]
    curves = [line for line in ax.lines if len(line.get_xdata()) > 2]
    marks = [float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "o"]
    assert len(curves) == 7 and len(marks) == 5
    assert marks[1] == pytest.approx(21.619435, abs=1e-6)
    for curve, mark in zip(curves[1:6], marks, strict=True):
        x, y = curve.get_xdata(), curve.get_ydata()
        assert x[np.argmin(y)] == pytest.approx(mark, rel=0.03)


def test_stationary_point_when_a_batch_would_not_fit_is_still_the_minimum_of_k() -> None:
    x = stationary_point(0.4, 5.28, 0.05)
    around = np.array([0.99, 1.0, 1.01]) * x
    assert np.argmin(around**0.4 * (5.28**-0.5 + np.sqrt(0.05 + 1 / around))) == 1


def test_gamma_figure_prints_the_formula_s_values(tmp_path) -> None:
    texts = [text.get_text() for text in gamma_table(PLAN, [tmp_path / "g.png"]).axes[0].texts]
    assert texts[:4] == ["1.274", "0.637", "0.425", "0.318"]
    assert texts[7:10] == ["1.020", "0.510", "0.340"]


def test_map_when_drawn_agrees_with_the_designs_and_marks_the_best(tmp_path) -> None:
    for design in PLAN.designs:
        found = savings_of(PLAN, design.generators, design.trainers, np.array([float(design.capacity)]))
        assert found[0] == pytest.approx(design.saving_to_accuracy)
    ax = saving_map(PLAN, [tmp_path / "m.png"]).axes[0]
    assert [text.get_text() for text in ax.texts] == ["17%"]
    assert list(ax.lines[0].get_ydata()) == [167]


def test_map_when_a_buffer_is_smaller_than_a_step_brings_is_empty_there() -> None:
    # Seven generators beside one trainer bring 60 / 0.754 = 79.5 rollouts in a train step.
    assert np.isnan(savings_of(PLAN, 7, 1, np.array([79.0, 80.0]))).tolist() == [True, False]


def test_figures_when_replay_never_pays_are_still_drawn(tmp_path) -> None:
    plan = make_plan(Workload(0.5, 1.0, PowerLaw(0.6)), Limits(32, 8), gpus=20)
    assert len(saving_map(plan, [tmp_path / "m.svg"]).axes[0].get_xticks()) == 15
    assert len(gamma_table(plan, [tmp_path / "g.svg"]).axes[0].texts) == 3 * 15
    assert (tmp_path / "m.svg").read_bytes().startswith(b"<?xml")


def test_map_when_variance_was_measured_ends_where_the_ages_do() -> None:
    law = MeasuredVariance([0, 5], [1.0, 1.2])
    plan = make_plan(Workload(4.0, 0.0, law), Limits(60, 16), gpus=8)
    # Four and four: a rollout is used four times, so 90 rollouts stay six train steps.
    assert np.isnan(savings_of(plan, 4, 4, np.array([90.0, 91.0]))).tolist() == [False, True]
