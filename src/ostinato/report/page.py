"""`report.html`: one self-contained page for a run directory or for a comparison of several."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ostinato.errors import DataError, MissingExtraError, OstinatoError
from ostinato.loop.faults import FAULTS_FILE, fault_counts
from ostinato.report.control import changes_of, control_curves, is_controlled
from ostinato.report.examples import before_and_after
from ostinato.report.plots import HISTOGRAMS, accuracy_against_compute, replay_histograms, run_curves
from ostinato.telemetry import read_json_object, read_jsonl, write_atomic
from ostinato.theory import measured_mu


def write_report(run_dir: Path) -> Path:
    """Write `report.html` and its PNGs into `run_dir`; returns the path of the page.

    A directory with `summary.json` is a comparison whose runs stand in `<arm>-seed<k>/`; one with `run.json` is a run.
    Figures whose files are not there yet are left out. Raises `DataError` when it is neither or a file is broken,
    `MissingExtraError` without matplotlib or jinja2.
    """
    try:
        html = _render(_content(run_dir))
    except (OstinatoError, OSError):
        raise
    except Exception as error:  # JSON of another shape can make its reader raise anything
        what = f"{type(error).__name__}: {error}"
        raise DataError(f"files in {run_dir} are not what a run or a comparison writes: {what}") from error
    page = run_dir / "report.html"
    write_atomic(page, html)
    return page


def _content(run_dir: Path) -> dict[str, Any]:
    if (run_dir / "summary.json").is_file():
        return _comparison(run_dir)
    if (run_dir / "run.json").is_file():
        return _single_run(run_dir)
    raise DataError(f"{run_dir} is not a run directory: it has neither summary.json nor run.json")


def _comparison(run_dir: Path) -> dict[str, Any]:
    summary = read_json_object(run_dir / "summary.json", required=("arms", "rule"))
    accuracy_against_compute(summary, run_dir / "accuracy.png")
    # One seed an arm in the detailed figures: the first of each.
    first = {name: run_dir / f"{name}-seed{next(iter(arm['seeds']))}" for name, arm in summary["arms"].items()}
    runs = {name: path for name, path in first.items() if (path / "run.json").is_file()}
    about = read_json_object(next(iter(runs.values())) / "run.json") if runs else {}
    return {
        "title": run_dir.resolve().name,
        "summary": summary,
        "figures": [_figure(run_dir / "accuracy.png", ""), *_run_figures(run_dir, runs)],
        "examples": before_and_after({name: _metrics(path) for name, path in runs.items()}),
        **_about(about),
    }


def _single_run(run_dir: Path) -> dict[str, Any]:
    about = read_json_object(run_dir / "run.json")
    return {
        "title": run_dir.resolve().name,
        "facts": _facts(_metrics(run_dir)),
        "throughput": _throughput(run_dir),
        "faults": fault_counts(run_dir / FAULTS_FILE),
        "changes": changes_of(_metrics(run_dir)),
        "examples": before_and_after({"after": _metrics(run_dir)}),
        "figures": _run_figures(run_dir, {"run": run_dir}),
        **_about(about),
    }


def _about(run: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, and whatever else `run.json` tells of the machine and its versions."""
    return {"settings": run.get("settings", {}), "environment": {k: v for k, v in run.items() if k != "settings"}}


def _run_figures(run_dir: Path, runs: Mapping[str, Path]) -> list[dict[str, str]]:
    seed = "" if len(runs) < 2 else ", first seed of each arm"
    figures = []
    metrics = {label: records for label, path in runs.items() if (records := _metrics(path))}
    if metrics:
        run_curves(metrics, run_dir / "curves.png")
        figures.append(_figure(run_dir / "curves.png", f"The run step by step{seed}. Greedy accuracy is dashed."))
    controlled = {label: records for label, records in metrics.items() if is_controlled(records)}
    if controlled:
        control_curves(controlled, run_dir / "control.png")
        caption = f"What was kept at its optimum{seed}, and the estimates behind it. Gray: where the optimum was."
        figures.append(_figure(run_dir / "control.png", caption))
    statistics = {k: kept for k, path in runs.items() if (kept := _statistics(path))}
    if statistics:
        replay_histograms(statistics, run_dir / "replay.png")
        figures.append(_figure(run_dir / "replay.png", f"How rollouts were used, over the whole run{seed}."))
    return figures


def _facts(records: list[dict[str, Any]]) -> dict[str, float]:
    """The last value of what matters, by name; what was not recorded is left out."""
    last: dict[str, Any] = {}
    for record in records:
        last |= {key: value for key, value in record.items() if value is not None}
    names = ("train_step", "compute", "generated", "trained", "sampled_accuracy", "greedy_accuracy", "reward")
    facts = {name.replace("_", " "): last[name] for name in names if name in last}
    for name in ("score_timeouts", "score_crashes"):
        if last.get(name):
            facts[name.replace("_", " ")] = last[name]
    spent = [last.get(name, 0) for name in ("busy_generate_s", "generated", "busy_train_s", "trained")]
    return facts | ({"measured mu": measured_mu(*spent)} if min(spent) > 0 else {})


def _throughput(run_dir: Path) -> dict[str, Any]:
    """Rates of each worker by its name, and the run's other numbers; empty for a run on the virtual clock."""
    path = run_dir / "throughput.json"
    if not path.is_file():
        return {}
    found = read_json_object(path, required=("generators", "trainer", "runtime", "mu_measured", "gamma_measured"))
    workers = {f"generator {i}": rates for i, rates in enumerate(found["generators"])} | {"trainer": found["trainer"]}
    rest = {"measured mu": found["mu_measured"], "measured gamma": found["gamma_measured"], **found["runtime"]}
    return {"workers": workers, "rest": rest}


def _figure(path: Path, caption: str) -> dict[str, str]:
    return {"name": path.stem, "caption": caption, "base64": base64.b64encode(path.read_bytes()).decode()}


def _metrics(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "metrics.jsonl"
    return read_jsonl(path) if path.is_file() else []


def _statistics(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "statistics.json"
    return read_json_object(path, required=(*HISTOGRAMS, "new")) if path.is_file() else {}


def _render(content: Mapping[str, Any]) -> str:
    try:
        import jinja2
    except ImportError:
        raise MissingExtraError("jinja2", "report") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ostinato.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"percent": _percent, "number": _number}
    return environment.get_template("page.html.j2").render(content)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %".replace("-", "−")


def _number(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.4g}".replace("-", "−") if isinstance(value, float) else str(value)
