"""`ostinato buffer`: what it prints, writes, refuses, and leaves alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from buffer_examples import inspected, logged, rollouts, tree

from ostinato import ReplayBuffer, Rollouts
from ostinato.buffer.journal import JournaledBuffer
from ostinato.cli.buffer_characters import CharacterReader
from ostinato.cli.main import main
from ostinato.rollout_files import read_rollouts

TOY = str(Path(__file__).parent.parent.parent / "recipes" / "toy.toml")


def buffer_of_six() -> ReplayBuffer:
    buffer = ReplayBuffer(8)
    buffer.add(rollouts(), train_step=2)
    ids = buffer.columns["rollout_id"]
    buffer.update_priorities(ids, np.arange(6.0))
    rng = np.random.default_rng(0)
    for step in range(3, 6):
        buffer.sample(2, train_step=step, rng=rng)
    return buffer


class Fourth:
    repeats = False

    def __call__(self, columns, n, rng):
        return columns.select(np.array([3]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    short = ["--loop.compute_units", "6", "--evaluation.every_units", "0"]
    assert main(["train", TOY, "--out", str(directory / "one"), *short]) == 0
    split = ["--loop.trainers", "2", "--loop.shards", "true"]
    assert main(["train", TOY, "--out", str(directory / "two"), *short, *split]) == 0
    return directory


def test_inspect_when_given_a_snapshot_tells_what_was_put_in(tmp_path, capsys) -> None:
    path = tmp_path / "buffer.ost"
    buffer = buffer_of_six()
    uses = buffer.columns["uses"].copy()
    buffer.save(path)
    before = tree(tmp_path)
    found = inspected(capsys, path)
    assert tree(tmp_path) == before
    assert (found["kind"], found["rollouts"], found["groups"], found["prompts"]) == ("snapshot", 6, 3, 2)
    assert (found["tokens"], found["bytes"], found["train_step"]) == (6 * 2 + 21, buffer.nbytes, 5)
    assert found["bytes_per_token"] == pytest.approx(buffer.nbytes / 33)
    assert found["staleness"] == {"mean": 5, "min": 5, "p10": 5, "median": 5, "p90": 5, "max": 5}
    assert found["residence"]["mean"] == 3
    assert found["uses"]["mean"] == pytest.approx(1) and found["uses"]["max"] == uses.max()
    assert found["uses"]["never_fraction"] == pytest.approx(np.mean(uses == 0))
    assert (found["reward"]["mean"], found["correct_fraction"], found["correct_above"]) == (0.5, 0.5, 0.5)
    assert found["informative_fraction"]["groups"] == pytest.approx(2 / 3)
    assert found["completion_length"] == {"mean": 3.5, "min": 1, "p10": 1.5, "median": 3.5, "p90": 5.5, "max": 6}
    assert found["sources"] == {"math": pytest.approx(4 / 6), "code": pytest.approx(2 / 6)}
    assert found["priority"]["mean"] == 2.5
    assert [row["completion_ids"] for row in found["rows"]] == [[10], [11, 11], [12, 12, 12]]


def test_inspect_when_read_by_a_person_shows_numbers_and_rows(tmp_path, capsys) -> None:
    buffer_of_six().save(tmp_path / "buffer.ost")
    assert main(["buffer", "inspect", str(tmp_path / "buffer.ost"), "--rows", "1", "--correct-above", "1"]) == 0
    shown = capsys.readouterr().out
    assert "6 in 3 groups of 2 prompts" in shown
    assert "0.0 % above 1" in shown and "66.7 % of groups" in shown
    assert "math 66.7 %, code 33.3 %" in shown
    assert shown.splitlines()[-2:] == ["  prompt      1 2", "  completion  10"]


@pytest.mark.parametrize(("sort", "first"), [("reward", 1), ("age", 3), ("uses", 4)])
def test_rows_when_sorted_begin_with_the_highest_oldest_most_used(tmp_path, capsys, sort, first) -> None:
    buffer = ReplayBuffer(8)
    buffer.add(rollouts(policy_version_min=[4, 4, 4, 1, 4, 2], policy_version_max=4), train_step=4)
    buffer.remove(buffer.columns["rollout_id"][[0]])
    buffer.sampler = Fourth()
    buffer.sample(1, train_step=4, rng=np.random.default_rng(0))
    buffer.save(tmp_path / "b")
    rows = inspected(capsys, tmp_path / "b", "--sort", sort, "--rows", "9")["rows"]
    assert len(rows) == 5 and rows[0]["completion_ids"][0] == 10 + first
    if sort == "reward":
        assert [row["reward"] for row in rows] == [1, 1, 1, 0, 0]


def test_inspect_when_given_a_tokenizer_shows_text_and_never_steers_the_terminal(tmp_path, capsys) -> None:
    pytest.importorskip("transformers")
    from ostinato.backends.hf.tokenizer import character_tokenizer

    tokenizer = character_tokenizer()
    prompt, completion = (tokenizer.encode(text, add_special_tokens=False) for text in ("2+2=", "4\n!"))
    buffer = ReplayBuffer(1)
    buffer.add(Rollouts.from_completions([prompt], [completion], [[-0.1] * 3]), train_step=0)
    buffer.save(tmp_path / "b")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    for name in ("characters", str(tmp_path / "tokenizer")):
        row = inspected(capsys, tmp_path / "b", "--tokenizer", name)["rows"][0]
        assert (row["prompt"], row["completion"]) == ("2+2=", "4\n!")
    assert main(["buffer", "inspect", str(tmp_path / "b"), "--tokenizer", "characters"]) == 0
    assert capsys.readouterr().out.endswith("  prompt      2+2=\n  completion  4\\n!\n")
    (tmp_path / "empty").mkdir()
    assert main(["buffer", "inspect", str(tmp_path / "b"), "--tokenizer", str(tmp_path / "empty")]) == 2
    assert "--tokenizer" in capsys.readouterr().err


def test_characters_when_shown_need_no_transformers_and_are_those_of_the_tokenizer(
    tmp_path, monkeypatch, capsys
) -> None:
    tokens = list(range(110))
    try:
        from ostinato.backends.hf.tokenizer import character_tokenizer
    except ImportError:
        pass
    else:
        assert CharacterReader().decode(tokens) == character_tokenizer().decode(tokens, skip_special_tokens=True)
    buffer = ReplayBuffer(1)
    buffer.add(Rollouts.from_completions([[4, 5]], [[13, 1]], [[-0.1] * 2]), train_step=0)
    buffer.save(tmp_path / "b")
    for module in ("transformers", "tokenizers", "torch"):
        monkeypatch.setitem(sys.modules, module, None)
    row = inspected(capsys, tmp_path / "b", "--tokenizer", "characters")["rows"][0]
    assert (row["prompt"], row["completion"]) == ("12", "a")
    assert main(["buffer", "inspect", str(tmp_path / "b"), "--tokenizer", "other"]) == 1
    assert "pip install 'ostinato[hf]'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["one", "two"])
def test_inspect_when_given_a_run_or_a_checkpoint_shows_its_newest_buffer(runs, capsys, name) -> None:
    before = tree(runs)
    newest = sorted((runs / name / "checkpoints").iterdir())[-1]
    of_run, of_checkpoint, of_file = (inspected(capsys, path) for path in (runs / name, newest, newest / "buffer.npz"))
    assert tree(runs) == before
    assert {k: v for k, v in of_run.items() if k != "path"} == {k: v for k, v in of_checkpoint.items() if k != "path"}
    assert of_file["rollouts"] == of_run["rollouts"] > 0
    assert of_run["kind"] == "checkpoint"
    ids = [row["rollout_id"] for row in inspected(capsys, runs / name, "--rows", "1000")["rows"]]
    assert ids == sorted(ids) and len(ids) == of_run["rollouts"]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", ["one", "two"])
def test_export_when_imported_again_gives_the_same_rollouts(runs, tmp_path, capsys, name, ending) -> None:
    file, snapshot = tmp_path / f"a.{ending}", tmp_path / "b.ost"
    held = inspected(capsys, runs / name)
    assert main(["buffer", "export", str(runs / name), "--out", str(file)]) == 0
    assert capsys.readouterr().out == f"{held['rollouts']} rollouts written to {file}\n"
    assert main(["buffer", "import", str(file), "--out", str(snapshot)]) == 0
    again = inspected(capsys, snapshot)
    same = ("rollouts", "groups", "prompts", "tokens", "reward", "advantage", "sources", "completion_length", "extras")
    assert [again[key] for key in same] == [held[key] for key in same]
    buffer = ReplayBuffer(held["rollouts"])
    buffer.load(snapshot)
    assert len(buffer) == held["rollouts"] and buffer.train_step >= buffer.columns["policy_version_max"].max()
    exported = read_rollouts(file)
    drawn = buffer.sample(64, train_step=buffer.train_step, rng=np.random.default_rng(1))
    rows = np.searchsorted(buffer.columns["rollout_id"], drawn.rollout_ids)
    assert np.array_equal(exported.select(rows).behavior_logprobs, drawn.rollouts.behavior_logprobs)


def test_inspect_when_given_a_journal_sees_every_operation_also_while_it_is_written(tmp_path, capsys) -> None:
    with JournaledBuffer(ReplayBuffer(4), tmp_path / "journal") as journal:
        journal.add(rollouts(2), train_step=0)
        journal.add(rollouts(3), train_step=1)
        journal.sample(2, train_step=1, rng=np.random.default_rng(0))
        before = tree(tmp_path)
        living = inspected(capsys, tmp_path / "journal")
        assert tree(tmp_path) == before
        assert (living["kind"], living["rollouts"], living["uses"]["mean"]) == ("journal", 4, 0.5)
        journal.add(rollouts(1), train_step=2)  # the journal goes on
    assert [row["rollout_id"] for row in inspected(capsys, tmp_path / "journal", "--rows", "9")["rows"]] == [2, 3, 4, 5]
    assert main(["buffer", "export", str(tmp_path / "journal"), "--out", str(tmp_path / "a.jsonl")]) == 0
    assert len(read_rollouts(tmp_path / "a.jsonl")) == 4


def test_inspect_when_given_a_file_says_what_it_left_out(tmp_path, capsys) -> None:
    file = logged(tmp_path / "log.jsonl", {}, {"rollout_logprobs": None}, {"reward": "x"}, {"top_p": 0.9, "about": {}})
    assert main(["buffer", "inspect", str(file), "--missing-logprobs", "drop", "--skip-bad", "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["rollouts"], found["uses"], found["residence"], found["priority"]) == (2, None, None, None)
    remarks = shown.err.splitlines()
    assert remarks[0].startswith(f"refused {file}:3: reward is 'x'")
    assert "left out 1 rollouts without log-probs" in remarks
    assert any(line.startswith("2 rollouts have neither reward nor advantage: both are 0") for line in remarks)
    assert any(line.startswith("1 rollouts were sampled with top_p < 1") for line in remarks)
    assert "extra column 'about' left out: an object" in remarks
    assert main(["buffer", "inspect", str(file.with_name("none.jsonl")), "--json"]) == 1


def test_inspect_when_nothing_is_there_says_none(tmp_path, capsys) -> None:
    ReplayBuffer(3).save(tmp_path / "b")
    full = logged(tmp_path / "log.jsonl", {})
    (tmp_path / "empty.jsonl").write_text("")
    found, file = inspected(capsys, tmp_path / "b"), inspected(capsys, tmp_path / "empty.jsonl")
    assert found["rollouts"] == file["rollouts"] == 0 and found["rows"] == [] and found["reward"] is None
    assert found.keys() == file.keys() == inspected(capsys, full).keys()
    assert main(["buffer", "inspect", str(tmp_path / "b")]) == 0
    assert "0 in 0 groups" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["inspect", "absent"], 1, "absent does not exist"),
        (["inspect", "."], 1, "holds neither a checkpoint nor a journal"),
        (["inspect", "junk"], 1, "junk is neither a buffer snapshot nor"),
        (["inspect", "cut.ost"], 1, "cut.ost is truncated"),
        (["inspect", "junk.npz"], 1, "junk.npz cannot be read"),
        (["inspect", "junk.parquet"], 1, "junk.parquet is no whole Parquet file"),
        (["inspect", "log.jsonl", "--sort", "uses"], 2, "does not say how often"),
        (["inspect", "log.jsonl", "--loop.seed", "1"], 2, "takes no settings"),
        (["inspect", "log.jsonl", "--rename", "a=b"], 2, "expected THEIRS=OURS"),
        (["inspect", "log.jsonl", "--extra", "nothing"], 1, "no line has the extra column"),
        (["export", "log.jsonl", "--out", "a.csv"], 2, "expected .jsonl or .parquet"),
        (["export", "log.jsonl", "--out", "log.jsonl"], 2, "--force"),
        (["import", "log.jsonl", "--out", "cut.ost"], 2, "--force"),
        (["import", "log.jsonl", "--out", "b", "--capacity", "0"], 2, "capacity"),
        (["import", "log.jsonl", "--out", "b", "--capacity-bytes", "10"], 1, "bytes"),
        (["import", "log.jsonl", "--out", "b", "--policy-version", "4", "--train-step", "3"], 2, "train step 3"),
        (["import", "log.jsonl", "--out", "b", "--train-step", "9" * 23], 2, "expected below 2^62"),
        (["import", "log.jsonl", "--out", "b", "--policy-version", "9" * 23], 2, "expected below 2^62"),
        (["import", "log.jsonl", "--out", "b", "--temperature", "nan"], 2, "got temperature nan"),
        (["import", "log.jsonl", "--out", "b\0"], 2, "cannot be the name of a file"),
        (["inspect", "log\0.jsonl"], 1, "cannot be the name of a file"),
        (["import", "cut.ost", "--out", "b"], 2, "expected .jsonl or .parquet"),
        (["import", "empty.jsonl", "--out", "b"], 1, "holds no rollouts"),
    ],
)
def test_command_when_it_cannot_be_done_says_why_in_one_line(tmp_path, monkeypatch, capsys, words, code, said) -> None:
    monkeypatch.chdir(tmp_path)
    whole = {"reward": 1, "advantage": 0.5, "temperature": 1, "top_p": 1, "top_k": 0}
    logged(Path("log.jsonl"), whole | ({} if "--policy-version" in words else {"policy_version": 0}))
    buffer_of_six().save("cut.ost")
    Path("cut.ost").write_bytes(Path("cut.ost").read_bytes()[:-20])
    for name in ("junk", "junk.npz", "junk.parquet"):
        Path(name).write_bytes(b"junk")
    Path("empty.jsonl").write_text("")
    before = tree(tmp_path)
    assert main(["buffer", *words]) == code
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1
    assert tree(tmp_path) == before


@pytest.mark.parametrize("action", ["export", "import"])
@pytest.mark.parametrize("link", [None, "symlink_to", "hardlink_to"])
def test_source_when_it_is_the_target_is_never_replaced(tmp_path, capsys, action, link) -> None:
    file = out = logged(tmp_path / "log.jsonl", {"reward": 1}, {"reward": 0})
    if link is not None:
        out = tmp_path / "other.jsonl"
        getattr(out, link)(file)
    before = tree(tmp_path)
    assert main(["buffer", action, str(file), "--out", str(out), "--force"]) == 2
    assert "is what is read" in capsys.readouterr().err
    assert tree(tmp_path) == before


def test_output_when_the_terminal_knows_ascii_only_is_written_out(tmp_path) -> None:
    file = logged(tmp_path / "l\u00f6g.jsonl", {"reward": 1, "source": "\u00fc", "t\u00e4g": 1})
    words = [sys.executable, "-m", "ostinato", "buffer", "inspect", str(file)]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=ascii_only)
    assert done.returncode == 0 and "\\xfc 100.0 %" in done.stdout and "l\\xf6g.jsonl" in done.stdout


def test_command_when_run_from_a_shell_ends_without_a_traceback(tmp_path) -> None:
    file = logged(tmp_path / "log.jsonl", {"reward": 1})
    words = [sys.executable, "-m", "ostinato", "buffer"]
    done = subprocess.run([*words, "inspect", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "1 in 1 groups of 1 prompts" in done.stdout
    done = subprocess.run([*words, "inspect"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "usage:" in done.stderr


def test_parquet_when_pyarrow_is_missing_names_the_extra(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = logged(tmp_path / "log.jsonl", {"reward": 1})
    assert main(["buffer", "export", str(file), "--out", str(tmp_path / "a.parquet")]) == 1
    assert "pip install 'ostinato[parquet]'" in capsys.readouterr().err
    assert not (tmp_path / "a.parquet").exists()
