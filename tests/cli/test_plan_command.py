"""`ostinato plan` from numbers and from a measurement: what it says, what it writes, what it refuses."""

import json
import math
from pathlib import Path

import pytest
from plan_runs import make_run

from ostinato.cli.main import main
from ostinato.errors import ConfigError
from ostinato.recipe import load_recipe
from ostinato.telemetry import read_jsonl
from ostinato.theory import Limits, PowerLaw, Workload, make_plan

TOY = str(Path(__file__).parent.parent.parent / "recipes" / "toy.toml")
PAPER = ["--gpus", "8", "--mu", "5.28", "--alpha", ".1", "--rho", ".05"]
KEYS = {
    "gamma", "uses_per_rollout", "staleness_horizon", "generators", "trainers", "capacity", "batch_size",
    "saving_per_update", "saving_to_accuracy",
}  # fmt: skip


def numbers(capsys, *words: str) -> dict:
    assert main(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))


def lines(capsys, *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def test_json_when_the_paper_s_numbers_are_given_has_its_optimum(capsys) -> None:
    plan = numbers(capsys, *PAPER)
    assert plan.keys() >= KEYS
    assert plan["staleness_horizon"] == pytest.approx(21.619435, abs=1e-6)
    assert plan["uses_per_rollout"] == pytest.approx(7.406381, abs=1e-6)
    # sbar2 carries 1 / (2 alpha + 1).
    assert plan["objective"] * 1.2 == pytest.approx(1.027539, abs=1e-6)
    assert plan["saving_to_accuracy"] == pytest.approx(1 - plan["objective"] / plan["objective_without_buffer"])
    w, t = plan["generators"], plan["trainers"]
    assert (w, t, plan["batch_size"], plan["recommendation"]) == (3, 5, 60, "replay")
    assert plan["gamma"] == pytest.approx((1 + w / t) / 6.28)
    assert plan["saving_per_update"] == pytest.approx(1 - plan["gamma"])
    assert plan["design"]["capacity"] == plan["capacity"]
    assert len(plan["runners_up"]) == 6
    assert plan["over_rho"] == [] and plan["over_alpha"] == []


def test_json_when_a_split_is_named_compares_with_it(capsys) -> None:
    split = numbers(capsys, *PAPER, "--no-buffer-split", "4,4")["no_buffer_split"]
    assert (split["generators"], split["trainers"], split["named"]) == (4, 4, True)
    assert split["saving_per_update"] == pytest.approx(1 - 1.6 / (8 * 5.28 / 4))


def test_json_when_age_costs_nothing_has_null_for_infinity(capsys) -> None:
    plan = numbers(capsys, "--mu", "5", "--alpha", "0", "--rho", "0", "--max-capacity", "3000")
    assert plan["staleness_horizon"] is None and plan["uses_per_rollout"] is None
    assert plan["boundary"] == "keep_everything"
    assert plan["capacity"] == 3000
    assert math.isfinite(plan["saving_to_accuracy"])


def test_json_when_replay_does_not_pay_says_no_buffer(capsys) -> None:
    plan = numbers(capsys, "--mu", "5.28", "--alpha", ".6", "--rho", ".05")
    assert plan["recommendation"] == "no buffer"
    assert (plan["generators"], plan["trainers"], plan["capacity"]) == (6, 2, None)
    assert (plan["gamma"], plan["saving_per_update"]) == (1.0, 0.0)
    assert plan["saving_to_accuracy"] < 0


def test_json_when_rho_is_not_given_goes_over_its_range(capsys) -> None:
    plan = numbers(capsys, "--mu", "5.28", "--alpha", ".1")
    assert [row["rho"] for row in plan["over_rho"]] == [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
    pays = {row["rho"]: row["recommendation"] == "replay" for row in plan["over_rho"]}
    assert pays[0.1] and not pays[0.2]
    assert 0.1 < plan["rho_break_even"] < 0.2
    assert numbers(capsys, "--mu", "5.28", "--rho", str(plan["rho_break_even"]))["recommendation"] == "replay"
    assert numbers(capsys, "--mu", "5.28", "--rho", str(plan["rho_break_even"] * 1.02))["recommendation"] == "no buffer"


def test_text_when_printed_names_settings_costs_formula_and_limits(capsys) -> None:
    text = lines(capsys, *PAPER, "--no-buffer-split", "6,2")
    assert "loop.generators 3  loop.trainers 5  buffer.capacity 167  loop.batch_size 60" in text
    assert "the best is 7.406 uses a rollout and a staleness horizon of 21.62 train steps" in text
    assert "gamma = (1 + W/T) / (1 + mu) = 0.255" in text
    assert "77.3 % of GPU time against W, T = 6, 2 without a buffer, the split named" in text
    assert "J0 = sbar2(1) (1 + 1/mu) (1 + rho) = 1.04072" in text
    assert "Do not use replay when" in text
    assert lines(capsys, "--mu", "5", "--alpha", ".6", "--rho", "0").count("No buffer: ") == 1


def test_text_when_rho_is_not_known_says_where_replay_stops_paying(capsys) -> None:
    text = lines(capsys, "--mu", "5.28")
    assert "nothing here tells rho" in text
    assert "replay pays up to rho of about 0.14" in text
    assert "alpha  0.1, assumed" in text
    assert "replay never pays over the whole range" in lines(capsys, "--mu", "5.28", "--alpha", ".6")


def test_plan_when_one_machine_takes_turns_sets_uses(capsys) -> None:
    plan = numbers(capsys, *PAPER, "--colocated")
    assert plan["generators"] is None and plan["trainers"] is None
    assert plan["design"]["uses_per_rollout"] == 7
    assert plan["gamma"] == pytest.approx((1 + 5.28 / 7) / 6.28)
    assert plan["samples_per_insert"] == 7 and numbers(capsys, *PAPER)["samples_per_insert"] is None
    words = lines(capsys, *PAPER, "--colocated")
    assert "Set  loop.clock turns  buffer.samples_per_insert 7  buffer.capacity 178" in words


def test_plan_when_in_turns_has_no_shards(tmp_path, capsys) -> None:
    """Of a run with shards the batch is kept; asked for, they are refused, also from Python."""
    run = make_run(tmp_path / "run")
    settings = json.loads((run / "run.json").read_text())
    settings["settings"]["loop"]["shards"] = True
    (run / "run.json").write_text(json.dumps(settings))
    out = tmp_path / "planned.toml"
    plan = numbers(capsys, str(run), "--rho", "0", "--alpha", ".05", "--colocated", "--write", str(out))
    config = load_recipe(out)
    assert (config.loop.shards, config.loop.trainers, config.loop.batch_size) == (False, 1, 40)
    assert config.buffer.samples_per_insert == plan["samples_per_insert"] >= 1
    assert main(["plan", *PAPER, "--colocated", "--sharded"]) == 2
    assert "with --colocated there is one buffer" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="sharded must be False"):
        make_plan(Workload(5.28, 0.05, PowerLaw(0.1)), Limits(60, 16, None, True), gpus=8, in_turns=True)


def test_plan_when_variance_is_given_by_ages_stays_within_them(capsys) -> None:
    plan = numbers(capsys, "--mu", "5.28", "--rho", ".05", "--variance", "0=1,4=1.1,9=1.2")
    assert plan["boundary"] == "end_of_data" and plan["staleness_horizon"] == pytest.approx(10)
    assert plan["alpha"] is None
    assert plan["design"]["staleness_horizon"] <= 10


@pytest.mark.parametrize("words", [[], ["--colocated"], ["--alpha", ".7"], ["--alpha", ".7", "--colocated"]])
def test_recipe_when_written_from_numbers_trains_on_the_toy(tmp_path, monkeypatch, capsys, words) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *PAPER[:4], "--alpha", ".1", "--rho", ".05", *words, "--write", "planned.toml"]) == 0
    config = load_recipe(Path("planned.toml"))
    assert config.loop.mu == 5.28
    if not words:
        assert (config.loop.generators, config.loop.trainers, config.buffer.capacity) == (3, 5, 167)
    replays = "--alpha" not in words
    assert config.buffer.kind == ("replay" if replays else "queue")
    in_turns = "--colocated" in words
    assert (config.loop.clock == "turns", config.buffer.samples_per_insert == 7) == (in_turns, in_turns and replays)
    # Batches of 60, groups of 16: 60 / 7 new rollouts a step are one group, 60 are three and a rest.
    assert config.loop.groups_per_request == (3 if in_turns and not replays else 1)
    toy = ["--model.backend", "toy", "--task.name", "toy", "--loop.compute_units", "0", "--loop.train_steps", "12"]
    assert main(["train", "planned.toml", "--out", "run", *toy, "--evaluation.every_units", "0"]) == 0
    steps = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert steps[-1]["train_step"] == 12
    if config.buffer.samples_per_insert:
        assert 7 * (steps[-1]["generated"] - 60) - 12 * 60 == pytest.approx(0, abs=7 * 16)
    capsys.readouterr()


def test_measurement_when_taken_on_the_toy_gives_mu_a_plan_and_its_recipe(tmp_path, capsys) -> None:
    out = tmp_path / "planned.toml"
    words = ["--measure", TOY, "--loop.batch_size=24", "--alpha", ".02", "--rho", "0", "--write", str(out)]
    plan = numbers(capsys, *words)
    mu, measured = plan["mu"], plan["measured"]
    assert mu["low"] <= mu["value"] * (1 + 1e-9) or measured["rounds"] % 2 == 0
    assert mu["value"] == pytest.approx(
        measured["generate_s_per_rollout"]["median"] / measured["train_s_per_rollout"]["median"]
    )
    # Two tokens a completion, one more of the prompt in training.
    assert measured["generate_s_per_token"]["median"] == pytest.approx(measured["generate_s_per_rollout"]["median"] / 2)
    assert measured["train_s_per_token"]["median"] == pytest.approx(measured["train_s_per_rollout"]["median"] / 3)
    assert plan["batch_size"] == 24
    config = load_recipe(out)
    assert config.toy.prompts == 8 and config.loop.batch_size == 24 and config.loop.mu == pytest.approx(mu["value"])


def test_recipe_when_one_is_there_is_kept(tmp_path, capsys) -> None:
    out = tmp_path / "planned.toml"
    out.write_text("mine")
    assert main(["plan", *PAPER, "--write", str(out)]) == 2
    assert "exists; add --force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["plan", *PAPER, "--write", str(out), "--force"]) == 0
    assert "Written by `ostinato plan`" in out.read_text()


def test_figures_when_asked_for_are_written_as_svg_and_png_always_the_same(tmp_path, capsys) -> None:
    pytest.importorskip("matplotlib")
    from ostinato.report.theory_figures import theory_figures

    printed = lines(capsys, *PAPER, "--figures", str(tmp_path / "first"))
    plan = make_plan(Workload(5.28, 0.05, PowerLaw(0.1)), Limits(60, 16), gpus=8)
    again = theory_figures(plan, tmp_path / "again")
    names = ("optimum_against_mu", "k_of_x", "gamma_table", "saving_map")
    assert [path.name for path in again] == [f"{name}.{ending}" for name in names for ending in ("svg", "png")]
    for path in again:
        first = tmp_path / "first" / path.name
        assert first.read_bytes() == path.read_bytes(), path.name
        assert first.read_bytes()[:5] == (b"<?xml" if path.suffix == ".svg" else b"\x89PNG\r")
        assert str(first) in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mu", "0"], "mu must be above 0, got 0.0"),
        (["--mu", "nan"], "mu must be a finite number, got nan"),
        (["--mu", "5", "--rho", "1.5"], "rho must lie between 0 and 1, got 1.5"),
        (["--mu", "5", "--alpha", "-1"], "variance cannot fall with age"),
        (["--mu", "5", "--variance", "0=2,4=1"], "variance must not fall with age: 2 at age 0, 1 at 4"),
        (["--mu", ".01", "--max-capacity", "60"], "a buffer of 60 rollouts is smaller than what generators make"),
        (["--mu", "5", "--max-capacity", "59"], "max_capacity must hold a batch of 60"),
        (["--mu", "5", "--gpus", "1"], "at least 2 GPUs, got 1"),
        (["--mu", "1", "--gpus", "2", "--batch-size", "60", "--variance", "0=1", "--rho", "0"], ""),
        ([], "plan needs --mu, a run directory, or --measure"),
        (["--mu", "5", "--gpu", "3"], "plan takes settings only with --measure, got '--gpu'"),
        (["--measure", "nothing.toml"], "recipe nothing.toml does not exist"),
        (["--measure", TOY, "--loop.batch_size", "20"], "write settings as --section.key=value, got 20"),
        (["--mu", "5", "--write", "nowhere/planned.toml"], "nowhere is no directory"),
    ],
)
def test_plan_when_asked_for_the_impossible_answers_in_one_line(tmp_path, monkeypatch, capsys, words, message) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(["plan", *words])
    error = capsys.readouterr().err
    if not message:
        assert code == 0 and error == ""
        return
    assert code in (1, 2)
    assert message in error and error.count("\n") == 1 and error.startswith("ostinato: error: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--mu 5 --variance 5=1,4=2", "--variance: ages must be finite"),
        ("--mu 5 --variance 0=1e308,5=1.7e308", "--variance: second moments must be within"),
        ("--mu 5 --batch-size 8 --group-size 16", "groups of 16 never fit in batches of 8"),
        ("--mu 5 --figures here/figures", "--figures: here is no directory"),
        ("--mu 1e300", "mu must be within 1e-09 and 1e+12"),
        ("--mu 5 --gpus 100000", "at most 4096 GPUs"),
    ],
)
def test_plan_when_a_number_leads_nowhere_says_so_in_one_line(words, message, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").write_text("")
    assert main(["plan", *words.split()]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_plan_when_only_a_small_batch_is_given_takes_a_group_that_fits(capsys) -> None:
    assert main(["plan", "--mu", "5", "--rho", "0.05", "--batch-size", "8"]) == 0
    assert "batches of 8, groups of 8" in capsys.readouterr().out


def test_plan_when_the_split_to_compare_with_is_no_pair_says_what_was_expected(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--mu", "5", "--no-buffer-split", "3"])
    assert "expected W,T, two whole numbers of at least 1, got '3'" in capsys.readouterr().err
