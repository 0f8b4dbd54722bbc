"""`ostinato buffer import`: what it makes of logs, and what it says of them."""

import json

import pytest
from buffer_examples import imported, inspected, logged

from ostinato import ReplayBuffer, Rollouts
from ostinato.cli.main import main


def test_import_when_logged_elsewhere_computes_groups_and_keeps_the_newest(tmp_path, capsys) -> None:
    file = logged(tmp_path / "log.jsonl", *[{"reward": i % 2, "uid": "ab"[i // 2], "step": i} for i in range(4)])
    words = ["buffer", "import", str(file), "--out", str(tmp_path / "b.ost")]
    assert main([*words, "--capacity", "3", "--policy-version", "5", "--source", "prod", "--train-step", "9"]) == 0
    assert (
        capsys.readouterr().out
        == f"3 rollouts at train step 9 saved to {tmp_path / 'b.ost'}; 1 older ones did not fit\n"
    )
    buffer = ReplayBuffer(3)
    buffer.load(tmp_path / "b.ost")
    assert buffer.columns["reward"].tolist() == [1, 0, 1] and buffer.columns.sources == ("prod",)
    high = 0.5 / (0.5**0.5 + 1e-4)
    assert buffer.columns["advantage"] == pytest.approx([high, -high, high])
    assert inspected(capsys, tmp_path / "b.ost")["staleness"]["max"] == 4


def test_import_when_no_group_teaches_says_so_and_the_remedy(tmp_path, capsys) -> None:
    file = logged(tmp_path / "log.jsonl", *[{"reward": i % 2} for i in range(4)])
    said = imported(capsys, file)
    assert (
        "every group has one rollout: all advantages are 0; give group ids (group_id, uid), or --group-by prompt"
        in said
    )
    assert "advantage" not in imported(capsys, file, "--group-by", "prompt")
    file = logged(file, {"reward": 1, "uid": 1}, {"reward": 1, "uid": 1}, {"reward": 0})
    assert "no group has rewards that differ: all advantages are 0" in imported(capsys, file)
    file = logged(file, {"reward": 1, "uid": 1}, {"reward": 0, "uid": 1}, {"reward": 0})
    assert "1 rollouts are alone in their groups: their advantages are 0" in imported(capsys, file)
    file = logged(file, {"reward": 1, "advantage": 1})
    assert "advantages" not in imported(capsys, file)


def test_import_when_lines_do_not_say_how_they_came_about_names_what_is_taken(tmp_path, capsys) -> None:
    file = logged(tmp_path / "log.jsonl", {"reward": 1, "policy_version": 2, "top_k": 0}, {"reward": 0})
    said = imported(capsys, file)
    assert "1 rollouts do not say their policy version: 0 is taken" in said and "--policy-version N" in said
    assert "2 rollouts do not say how they were sampled: temperature 1, top_p 1, top_k 0 is taken" in said
    said = imported(capsys, file, "--policy-version", "0", "--temperature", "0.7")
    assert "policy version" not in said and "top_p 1, top_k 0 is taken (--top-p, --top-k)" in said


def test_import_when_it_keeps_extra_columns_names_them_and_how_to_leave_them_out(tmp_path, capsys) -> None:
    file = logged(tmp_path / "log.jsonl", *[{"request_id": str(i), "text": "a", "reward": i} for i in range(2)])
    assert "kept the extra columns 'request_id', 'text': " in imported(capsys, file)
    assert "kept the extra columns 'text': " in imported(capsys, file, "--extra", "text")
    assert "kept" not in imported(capsys, file, "--no-extras")
    buffer = ReplayBuffer(9)
    buffer.load(file.with_suffix(".ost"))
    buffer.add(Rollouts.from_completions([[1]], [[2]], [[-0.5]]), train_step=0)
    assert len(buffer) == 3


def test_import_when_lines_are_nested_makes_each_output_a_rollout_of_one_group(tmp_path, capsys) -> None:
    outputs = [{"token_ids": [3], "logprobs": [-0.5], "reward": i} for i in range(3)]
    file = tmp_path / "vllm.jsonl"
    file.write_text(json.dumps({"prompt_token_ids": [1], "outputs": outputs}) + "\n")
    assert "advantages" not in imported(capsys, file)
    found = inspected(capsys, file.with_suffix(".ost"))
    assert (found["rollouts"], found["groups"], found["informative_fraction"]["groups"]) == (3, 1, 1)


def test_import_when_bounded_in_bytes_keeps_the_bound(tmp_path, capsys) -> None:
    file = logged(tmp_path / "log.jsonl", *[{"reward": 0}] * 500)
    assert main(["buffer", "import", str(file), "--out", str(tmp_path / "b"), "--capacity-bytes", "20000"]) == 0
    found = inspected(capsys, tmp_path / "b")
    assert 0 < found["rollouts"] < 500 and found["bytes"] <= 20000
