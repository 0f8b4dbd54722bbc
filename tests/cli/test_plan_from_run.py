"""`ostinato plan RUN`: what a run says about itself comes back out of its files."""

import json
from pathlib import Path

import pytest
from plan_runs import ALPHA, MU, make_run

from ostinato.cli.main import main
from ostinato.recipe import load_recipe
from ostinato.telemetry import read_json_object, write_json


def numbers(capsys, *words: str) -> dict:
    assert main(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_when_made_from_a_run_finds_its_mu_and_exponent(tmp_path, capsys) -> None:
    plan = numbers(capsys, str(make_run(tmp_path / "run")))
    for name, truth in (("mu", MU), ("alpha", ALPHA)):
        known = plan[name]
        assert known["low"] <= truth <= known["high"], name
        assert known["high"] - known["low"] < 0.2 * truth, name
    assert [row["age"] for row in plan["variance_by_age"]] == pytest.approx([0, 2, 8, 30])
    assert plan["variance_by_age"][1]["second_moment"] == pytest.approx(2**0.3, rel=0.05)
    # GPUs, batch and group are those of the run.
    assert plan["generators"] is None or plan["generators"] + plan["trainers"] == 8
    assert plan["batch_size"] == 40
    assert [row["alpha"] for row in plan["over_alpha"]] == [plan["alpha"][k] for k in ("low", "value", "high")]


def test_plan_when_a_run_cannot_tell_rho_says_so_and_goes_over_its_range(tmp_path, capsys) -> None:
    run = str(make_run(tmp_path / "run"))
    plan = numbers(capsys, run)
    assert plan["rho_limit"] is None
    assert (plan["rho"]["low"], plan["rho"]["high"], plan["rho"]["origin"]) == (0, 1, "not known")
    assert len(plan["over_rho"]) == 8
    assert main(["plan", run]) == 0
    assert "nothing here tells rho: within [0, 1]" in capsys.readouterr().out


def test_plan_when_a_run_has_gradients_of_both_kinds_bounds_rho_from_above(tmp_path, capsys) -> None:
    run = str(make_run(tmp_path / "run", gradients=True))
    plan = numbers(capsys, run)
    # 16 rollouts a train step times inner products of 0.01 of the squared length.
    assert plan["rho_limit"]["value"] == pytest.approx(0.16)
    assert plan["over_rho"][-1]["rho"] == pytest.approx(0.16)
    assert main(["plan", run]) == 0
    assert "a run bounds rho from above only: 0.16" in capsys.readouterr().out


def test_plan_when_numbers_are_given_beside_a_run_takes_those(tmp_path, capsys) -> None:
    plan = numbers(capsys, str(make_run(tmp_path / "run", ages=False)), "--alpha", ".1", "--rho", ".05", "--mu", "5.28")
    assert plan["staleness_horizon"] == pytest.approx(21.619435, abs=1e-6)
    assert plan["mu"]["origin"] == "given" and plan["over_alpha"] == []


def test_plan_when_there_is_no_histogram_takes_the_middle_of_each_bucket(tmp_path, capsys) -> None:
    run = make_run(tmp_path / "run")
    (run / "statistics.json").unlink()
    ages = [row["age"] for row in numbers(capsys, str(run))["variance_by_age"]]
    assert ages == pytest.approx([0, 3**0.5, 60**0.5, (16 * 63) ** 0.5])


def test_recipe_when_written_from_a_run_keeps_its_model_and_task(tmp_path, capsys) -> None:
    out = tmp_path / "planned.toml"
    plan = numbers(capsys, str(make_run(tmp_path / "run")), "--rho", "0", "--alpha", ".05", "--write", str(out))
    config = load_recipe(out)
    assert config.model.backend == "toy" and config.loop.train_steps == 50
    assert (config.loop.generators, config.buffer.capacity) == (plan["generators"], plan["capacity"])


def _at_one_age(run: Path) -> None:
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().replace('"age_4', '"was_4').replace('"age_16', '"was_16'))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "metrics.jsonl").unlink(), "is no run: it has no metrics.jsonl"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "has 0 train steps, a plan needs at least 2"),
        (lambda run: write_json(run / "summary.json", {}), "holds a comparison; give one of its runs"),
        (lambda run: (run / "metrics.jsonl").write_text("{}\n"), "lacks 'event'"),
        (lambda run: make_run(run, ages=False, steps=3), "has no figures by age"),
        (lambda run: write_json(run / "statistics.json", {}), "lacks 'staleness'"),
        (_at_one_age, "two age buckets above 0, the run has 1; give --alpha, or --variance"),
        (lambda run: (run / "run.json").write_text("[]"), "expected an object"),
    ],
)
def test_plan_when_a_run_is_unusable_answers_in_one_line(tmp_path, capsys, spoil, message) -> None:
    run = make_run(tmp_path / "run", steps=4)
    spoil(run)
    assert main(["plan", str(run)]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_plan_when_it_reads_a_run_changes_nothing(tmp_path, capsys) -> None:
    run = make_run(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    numbers(capsys, str(run))
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert read_json_object(run / "run.json")["settings"]["loop"]["generators"] == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("busy_generate_s", "x"),
        ("generated", 10**400),
        ("age_1_3.chi2_token", [1]),
        ("age_1_3.tokens", True),
        ("age_1_3.chi2_token", 1e300),
        ("grad_cosine", "x"),
    ],
)
def test_plan_when_a_metric_is_no_number_names_it_in_one_line(name, value, tmp_path, capsys) -> None:
    run = make_run(tmp_path / "run", gradients=True)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    damaged = [json.dumps({**json.loads(line), name: value}) for line in lines]
    (run / "metrics.jsonl").write_text("\n".join(damaged) + "\n")
    assert main(["plan", str(run)]) == 1
    error = capsys.readouterr().err
    assert f"metrics.jsonl: {name} must be a number" in error and error.count("\n") == 1


@pytest.mark.parametrize("staleness", [{}, {"counts": ["a"]}, {"counts": [-1, 2]}, {"counts": {"a": 1}}, [1]])
def test_plan_when_the_histogram_is_damaged_says_so(staleness, tmp_path, capsys) -> None:
    run = make_run(tmp_path / "run")
    write_json(run / "statistics.json", {"staleness": staleness})
    assert main(["plan", str(run)]) == 1
    assert "staleness must hold a list of counts" in capsys.readouterr().err


def test_plan_when_the_settings_lack_a_size_says_which(tmp_path, capsys) -> None:
    run = make_run(tmp_path / "run")
    write_json(run / "run.json", {"settings": {"loop": {"generators": 3}}})
    assert main(["plan", str(run)]) == 1
    assert "run.json: loop.trainers must be a whole number of at least 1, got None" in capsys.readouterr().err
