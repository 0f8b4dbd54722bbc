"""The page of a run that kept its buffer at an optimum: what it did and why, as a table and a figure."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.governors import Change, Dials, Estimates
from ostinato.report import write_report
from ostinato.report.control import changes_of, control_curves, is_controlled
from ostinato.telemetry import JsonlWriter, read_jsonl, write_json
from ostinato.theory import Estimate

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

SEEN = Estimates(
    steps=40,
    mu=Estimate(5.28, 5.0, 5.5),
    alpha=Estimate(0.12, 0.1, 0.14),
    uses=3.17,
    drift=-0.002,
    ess={"age_1": 0.97, "age_2_3": 0.91, "age_4_7": 0.8, "age_8_15": 0.61},
)
CHANGE = Change(20, Dials(147), Dials(183), Dials(400), "capacity 147 to 183, the optimum is 400; 25% at once", SEEN)


def step(number, **metrics):
    return {"event": "step", "compute": float(number), "train_step": number, "reward": 0.5, **metrics}


def make_run(directory, *, controlled=True):
    write_json(directory / "run.json", {"settings": {"control": {"rho": 0.2}}})
    writer = JsonlWriter(directory / "metrics.jsonl")
    for number in range(1, 41):
        told = {"buffer_capacity": 147.0 if number < 20 else 183.0, "control.target_capacity": 400.0}
        told |= {"control.mu": 5.28, "control.alpha": 0.12} if number > 19 else {}
        writer.write(step(number, **told if controlled else {}))
        if controlled and number == 20:
            writer.write({"event": "control", "compute": 20.0, "time_s": 9.0, **CHANGE.record()})
    writer.close()
    return read_jsonl(directory / "metrics.jsonl")


def test_table_when_a_run_has_changes_names_what_why_and_the_estimates(tmp_path) -> None:
    (row,) = changes_of(make_run(tmp_path))
    assert row == {
        "train step": "20",
        "what and why": "capacity 147 to 183, the optimum is 400; 25% at once",
        "μ": "5.28 (5 to 5.5)",
        "α": "0.12 (0.1 to 0.14)",
        "uses": "3.17",
        "drift": "−0.002",
        "ESS by age": "1: 0.97, 4–7: 0.80, 8–15: 0.61",
    }


def test_figure_when_drawn_holds_dial_and_optimum(tmp_path) -> None:
    figure = control_curves({"run": make_run(tmp_path)}, tmp_path / "control.png")
    capacity, uses, mu = figure.axes[0], figure.axes[1], figure.axes[2]
    optimum, dial = (np.asarray(line.get_ydata()) for line in capacity.lines)
    assert optimum.tolist() == [400.0] * 40 and dial.tolist() == [147.0] * 19 + [183.0] * 21
    assert uses.lines == [] or len(uses.lines) == 0
    assert len(mu.lines[0].get_xdata()) == 21
    assert (tmp_path / "control.png").read_bytes().startswith(b"\x89PNG")


def test_page_when_written_has_both_and_otherwise_neither(tmp_path) -> None:
    make_run(tmp_path / "auto")
    page = write_report(tmp_path / "auto").read_text()
    assert "Changes of the buffer" in page and 'alt="control"' in page
    assert "capacity 147 to 183, the optimum is 400; 25% at once" in page
    assert not is_controlled(make_run(tmp_path / "fixed", controlled=False))
    page = write_report(tmp_path / "fixed").read_text()
    assert "Changes of the buffer" not in page and 'alt="control"' not in page


def test_estimates_when_nothing_is_known_are_shown_as_dashes(tmp_path) -> None:
    nothing = Estimates(steps=2, mu=None, alpha=None, uses=None, drift=None, ess={})
    change = Change(5, Dials(60, 2.0), Dials(60, 2.5), Dials(60, 4.0), "why", nothing)
    (row,) = changes_of([{"event": "control", **change.record()}])
    assert [row[name] for name in ("μ", "α", "uses", "drift", "ESS by age")] == ["–"] * 5
