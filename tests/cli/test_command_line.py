"""`ostinato` as people call it: subprocesses, exit codes, one-line errors, nothing half-written."""

import errno
import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ostinato.cli.compare import plan_jobs
from ostinato.cli.main import explained, main
from ostinato.recipe import load_recipe, recipe_tree
from ostinato.telemetry import read_jsonl

RECIPES = Path(__file__).parent.parent.parent / "recipes"
TOY = str(RECIPES / "toy.toml")


def ostinato(*words: str, cwd: Path, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "ostinato", *words], cwd=cwd, capture_output=True, text=True, timeout=300, **options
    )


def test_train_when_run_on_the_toy_learns_and_leaves_a_whole_directory(tmp_path) -> None:
    done = ostinato("train", TOY, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "sampled accuracy 0.0" in done.stdout
    run = tmp_path / "run"
    assert {path.name for path in run.iterdir()} == {
        "run.json", "metrics.jsonl", "statistics.json", "checkpoints", "finished.json", ".lock",
    }  # fmt: skip
    evaluations = [r for r in read_jsonl(run / "metrics.jsonl") if r["event"] == "evaluation"]
    assert [r["point"] for r in evaluations] == list(range(13))
    assert all(0 <= r["compute"] - 5 * r["point"] < 2 for r in evaluations)
    assert evaluations[-1]["sampled_accuracy"] > 0.8
    assert evaluations[-1]["pass_at_k"]["32"] >= evaluations[-1]["sampled_accuracy"]
    shown = ostinato("eval", "run", "--json", "--evaluation.samples", "4", cwd=tmp_path)
    figures = json.loads(shown.stdout)
    assert figures["greedy_accuracy"] == evaluations[-1]["greedy_accuracy"]
    assert figures["sampled_accuracy"] == pytest.approx(evaluations[-1]["sampled_accuracy"], abs=0.1)


def test_train_when_interrupted_can_be_resumed_with_the_same_result(tmp_path) -> None:
    words = ["--loop.compute_units", "800", "--evaluation.every_units", "200"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ostinato", "train", TOY, "--out", "cut", *words],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    metrics = tmp_path / "cut" / "metrics.jsonl"
    while not metrics.exists() or metrics.stat().st_size < 10_000:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"go on with: ostinato train {TOY} --out cut {' '.join(words)} --resume" in stderr
    assert "Traceback" not in stderr
    assert ostinato("train", TOY, "--out", "cut", "--resume", *words, cwd=tmp_path).returncode == 0
    assert ostinato("train", TOY, "--out", "whole", *words, cwd=tmp_path).returncode == 0
    cut, whole = (read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("cut", "whole"))
    assert [(r["compute"], r.get("sampled_accuracy"), r.get("grad_norm")) for r in cut] == [
        (r["compute"], r.get("sampled_accuracy"), r.get("grad_norm")) for r in whole
    ]


def test_train_when_the_terminal_is_real_shows_a_live_table(tmp_path) -> None:
    reader, writer = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ostinato", "train", TOY, "--out", "run", "--loop.compute_units", "20"],
        cwd=tmp_path, stdout=writer, stderr=writer, env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(writer)
    shown = b""
    try:
        while chunk := os.read(reader, 65536):
            shown += chunk
    except OSError:
        pass  # the terminal closes with the process
    os.close(reader)
    assert process.wait(timeout=60) == 0
    for word in ("step", "compute", "reward", "accuracy", "buffer", "staleness", "uses", "ETA"):
        assert word in shown.decode(), word


def test_compare_when_arms_are_identical_shows_no_saving_and_is_cached(tmp_path) -> None:
    recipe = tmp_path / "same.toml"
    recipe.write_text(
        Path(TOY).read_text().replace("compute_units = 60.0", "compute_units = 100.0")
        + '\n[buffer]\nkind = "queue"\ncapacity = 180\n[arms.twin]\n'
    )
    words = ["compare", "same.toml", "--seeds", "2", "--arms", "baseline,twin", "--out", "cmp"]
    done = ostinato(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "cmp" / "summary.json").read_text())
    assert summary["arms"]["twin"]["median"]["saving"] == 0.0
    assert (tmp_path / "cmp" / "report.html").exists()
    again = ostinato(*words, cwd=tmp_path)
    assert "4 of them finished before" in again.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train", TOY, "--loop.genrators", "3"], 2, "did you mean 'loop.generators'?"),
        (["train", TOY, "--loop.mu", "x"], 2, "loop.mu expects float, got str 'x'"),
        (["train", TOY, "--buffer.capacity", "10"], 2, "batch_size 60 > buffer.capacity 10"),
        (["train", "none.toml"], 2, "none.toml does not exist"),
        (["train", TOY, "--model.backend", "hf"], 2, "go together"),
        (["compare", TOY, "--arms", "baseline,bse"], 2, "unknown arm 'bse'"),
        (["compare", TOY, "--loop.compute_units", "10"], 2, "at least 5 times evaluation.every_units"),
        (["eval", "nothing"], 2, "not a run directory"),
        (["report", "nothing"], 1, "nothing"),
    ],
)
def test_command_when_misused_says_so_in_one_line_and_writes_nothing(tmp_path, words, code, message) -> None:
    done = ostinato(*words, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_command_when_argparse_refuses_exits_with_two(tmp_path) -> None:
    assert ostinato("train", cwd=tmp_path).returncode == 2
    assert ostinato("dance", cwd=tmp_path).returncode == 2
    assert ostinato("compare", TOY, "--seeds", "0", cwd=tmp_path).returncode == 2


def test_error_when_debugged_shows_its_traceback(tmp_path) -> None:
    done = ostinato("train", TOY, "--debug", "--loop.mu", "x", cwd=tmp_path)
    assert "Traceback" in done.stderr


def test_help_when_asked_lists_every_setting(tmp_path) -> None:
    done = ostinato("train", "--help", cwd=tmp_path)
    assert "--loop.max_staleness none" in done.stdout
    assert "--optimizer.learning_rate 3e-05" in done.stdout


def test_run_when_the_disk_is_full_fails_in_one_line_and_keeps_the_checkpoint(tmp_path) -> None:
    # RLIMIT_FSIZE makes a write fail as a full disk does, at a size reached in the middle of the run.
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (250000, 250000));"
        "from ostinato.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["train", TOY, "--out", "run", "--checkpoint_every", "20", "--buffer.capacity", "60"]
    done = subprocess.run([sys.executable, "-c", limited, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "File too large" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    kept = list((tmp_path / "run" / "checkpoints").iterdir())
    assert kept and all(path.name.startswith("step-") for path in kept)
    assert ostinato(*words, "--resume", cwd=tmp_path).returncode == 0


def test_compare_when_one_run_fails_says_which_and_keeps_the_others(tmp_path) -> None:
    words = ["compare", TOY, "--seeds", "1", "--arms", "baseline,replay", "--out", "cmp", "--loop.compute_units", "30"]
    blocked = tmp_path / "cmp" / "replay-seed0" / "checkpoints" / "step-00000001"
    blocked.mkdir(parents=True)
    done = ostinato(*words, cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "failed  replay-seed0: checkpoint" in done.stderr
    assert "1 of 2 runs failed" in done.stderr
    assert (tmp_path / "cmp" / "baseline-seed0" / "finished.json").exists()
    blocked.rmdir()
    again = ostinato(*words, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "1 of them finished before" in again.stdout


LONG = ["--loop.compute_units", "3000", "--evaluation.every_units", "100", "--evaluation.samples", "2"]


def started_comparison(cwd: Path) -> tuple[subprocess.Popen, list[int]]:
    """A long comparison whose two runs are under way, and the numbers of their processes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ostinato", "compare", TOY, "--seeds", "1", "--out", "cmp", "--jobs", "2", *LONG],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    runs = [cwd / "cmp" / f"{arm}-seed0" / "metrics.jsonl" for arm in ("baseline", "replay")]
    while not all(path.exists() and path.stat().st_size > 5000 for path in runs):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return process, [int(child) for child in children]


def wait_until_gone(numbers: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{number}").exists() for number in numbers):
        assert time.monotonic() < deadline, "processes were left running"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_compare_when_ended_by_a_signal_leaves_checkpoints_and_no_processes(tmp_path, number) -> None:
    process, children = started_comparison(tmp_path)
    assert len(children) >= 2
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    wait_until_gone(children)
    assert process.returncode == (-signal.SIGKILL if number is signal.SIGKILL else 130)
    assert "Traceback" not in stderr
    for arm in ("baseline", "replay"):
        assert list((tmp_path / "cmp" / f"{arm}-seed0" / "checkpoints").glob("step-*")), arm
        assert not (tmp_path / "cmp" / f"{arm}-seed0" / "finished.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arms", "replay"], "baseline among them, got replay"),
        (["--arms", "baseline,baseline"], "expects different arms"),
        (["--loop.train_steps", "3"], "set loop.train_steps = 0 in arm baseline"),
        (["--arms.baseline", "3"], "each must be a table"),
        (["--arms.replay.loop.muu", "3"], "arm replay: unknown setting 'loop.muu'"),
    ],
)
def test_compare_when_its_plan_cannot_work_is_refused_before_anything_runs(tmp_path, words, message) -> None:
    done = ostinato("compare", TOY, "--out", "cmp", *words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "cmp").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--buffer.capacity", "auto", "--buffer.samples_per_insert", "auto", "--loop.shards", "true"],
        ["--buffer.samples_per_insert", "4", "--buffer.error_buffer", "90", "--loop.clock", "turns"],
        ["--buffer.journal", "true", "--loop.clock", "wall"],
    ],
)
def test_arms_without_a_buffer_drop_what_a_buffer_alone_has(words, tmp_path) -> None:
    overrides = ["--loop.generators", "1", *words]
    arms = ["baseline", "replay", "epochs"]
    tree = recipe_tree(Path(TOY), overrides)
    jobs = {job.arm: job.config for job in plan_jobs(tree, arms=arms, seeds=[0], directory=tmp_path, where=TOY)}
    whole = load_recipe(Path(TOY), overrides)
    assert jobs["replay"] == whole
    queue = {"kind": "queue", "capacity": 180, "samples_per_insert": None, "error_buffer": None, "journal": False}
    for arm, epochs in (("baseline", 1), ("epochs", 3)):
        assert jobs[arm].buffer == replace(whole.buffer, **queue)
        assert jobs[arm].loop == replace(whole.loop, shards=False, epochs=epochs)


def test_train_when_replay_has_a_staleness_bound_runs_and_keeps_it(tmp_path) -> None:
    words = ["--loop.max_staleness", "2", "--loop.compute_units", "30"]
    done = ostinato("train", TOY, "--out", "run", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    counts = json.loads((tmp_path / "run" / "statistics.json").read_text())["staleness"]["counts"]
    assert len(counts) <= 3


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("finished")
    done = ostinato("train", TOY, "--out", "run", "--loop.compute_units", "10", cwd=where)
    assert done.returncode == 0, done.stderr
    return where / "run"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", '{"settings": 3}', '{"settings": {"loop": 3}}'])
def test_eval_when_run_json_is_damaged_names_it_in_one_line(finished_run, tmp_path, capsys, content) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(content)
    assert main(["eval", str(tmp_path / "run")]) in (1, 2)
    stderr = capsys.readouterr().err
    assert "run.json" in stderr and "internal error" not in stderr and len(stderr.strip().splitlines()) == 1


def test_eval_when_the_newest_checkpoint_is_damaged_names_it_in_one_line(finished_run, tmp_path, capsys) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").rglob("table.npz"):
        path.write_bytes(b"PK\x03\x04" + bytes(60))
    assert main(["eval", str(tmp_path / "run")]) == 1
    stderr = capsys.readouterr().err
    assert "table.npz cannot be read" in stderr and "internal error" not in stderr


def test_train_when_another_run_is_going_on_is_refused(finished_run, tmp_path, capsys) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    with open(tmp_path / "run" / ".lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["train", TOY, "--out", str(tmp_path / "run"), "--resume"]) == 1
    assert "another run is going on in" in capsys.readouterr().err


def test_train_when_run_json_is_gone_does_not_take_up_a_foreign_checkpoint(finished_run, tmp_path, capsys) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    words = ["train", TOY, "--out", str(tmp_path / "run"), "--toy.prompts", "4"]
    assert main(words) == 2
    assert main([*words, "--resume"]) == 1
    assert "internal error" not in capsys.readouterr().err
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "quota is used up"), (errno.EFBIG, "File too large")],
)
def test_error_when_there_is_no_room_says_what_to_do(number, words) -> None:
    said = explained(OSError(number, os.strerror(number), "run/x"), "train")
    assert words in said and "while writing run/x; make room" in said


def test_directory_when_it_holds_the_other_kind_is_refused(tmp_path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "run.json").write_text("{}")
    done = ostinato("compare", TOY, "--out", "one", cwd=tmp_path)
    assert (done.returncode, "one holds a single run" in done.stderr) == (2, True)
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "summary.json").write_text("{}")
    done = ostinato("train", TOY, "--out", "many", cwd=tmp_path)
    assert (done.returncode, "many holds a comparison" in done.stderr) == (2, True)
