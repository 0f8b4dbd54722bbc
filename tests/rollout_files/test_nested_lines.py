"""Lines that hold several completions of one prompt, as vLLM and OpenAI's protocol hand them out."""

import numpy as np
import pytest
from rollout_examples import ANYTHING, line

from ostinato import DataError
from ostinato.rollout_files import ReadRules, open_rollouts, read_rollouts, renaming
from ostinato.rollout_files.names import FIELD_OF

VLLM = {
    "request_id": "0",
    "prompt": "2+2=",
    "prompt_token_ids": [1, 2],
    "prompt_logprobs": None,
    "outputs": [
        {"index": 0, "token_ids": [7, 8], "logprobs": [-0.5, -1.0], "finish_reason": "stop", "stop_reason": None},
        {
            "index": 1, "token_ids": [9], "finish_reason": "length",
            "logprobs": [{"9": {"logprob": -2.0, "rank": 2}, "4": {"logprob": -0.1, "rank": 1}}],
        },
    ],
}  # fmt: skip

OPENAI = {
    "object": "text_completion",
    "prompt_token_ids": None,
    "choices": [
        {"prompt_token_ids": [1, 2], "token_ids": [7, 8], "logprobs": {"token_logprobs": [-0.5, -1.0]}, "text": "ab"},
        {
            "prompt_token_ids": [1, 2], "token_ids": None, "text": "c", "finish_reason": "length",
            "logprobs": {"token_logprobs": [-2.0], "tokens": ["token_id:9"]},
        },
    ],
}  # fmt: skip

CHAT = {
    "prompt_token_ids": [1, 2],
    "choices": [
        {"message": {"content": "ab"}, "token_ids": [7, 8], "logprobs": {"content": [
            {"token": "a", "logprob": -0.5, "top_logprobs": []}, {"token": "b", "logprob": -1.0, "top_logprobs": []},
        ]}},
        {"message": {"content": "c"}, "finish_reason": "length", "logprobs": {"content": [
            {"token": "token_id:9", "logprob": -2.0},
        ]}},
    ],
}  # fmt: skip


@pytest.mark.parametrize("record", [VLLM, OPENAI, CHAT], ids=["vLLM", "completions", "chat"])
def test_record_when_nested_is_a_group_of_its_completions(lines, record) -> None:
    read = read_rollouts(lines(record, record | {"rewards": [1, 0]}))
    assert len(read) == 4
    assert [read.prompt(i).tolist() for i in range(4)] == [[1, 2]] * 4
    assert [read.completion(i).tolist() for i in range(4)] == [[7, 8], [9]] * 2
    assert read.behavior_logprobs.tolist() == [0, 0, -0.5, -1, 0, 0, -2] * 2
    assert read.truncated.tolist() == [False, True] * 2
    assert read.group_id[0] == read.group_id[1] != read.group_id[2] == read.group_id[3]
    assert read.reward.tolist() == [0, 0, 1, 0]
    high = 0.5 / (0.5**0.5 + 1e-4)
    assert read.advantage == pytest.approx([0, 0, high, -high])


def answers(*completions, **beside) -> dict:
    outputs = [{"token_ids": [5], "logprobs": [-0.5], **own} for own in completions]
    return {"prompt_token_ids": [1], "outputs": outputs, **beside}


def test_fields_when_beside_the_outputs_hold_for_all_unless_one_says_otherwise(lines) -> None:
    read = read_rollouts(
        lines(answers({}, {"temperature": 0.5, "source": None}, temperature=0.75, source="x", policy_version=[3, 4]))
    )
    assert read.temperature.tolist() == [0.75, 0.5] and read.source.tolist() == ["x", "x"]
    assert read.policy_version_min.tolist() == [3, 4]


def test_group_when_nested_is_the_given_one_or_the_prompt_if_asked(lines) -> None:
    given = read_rollouts(lines(answers({}, {}, uid=4), answers({}, uid=4)))
    assert given.group_id.tolist() == [4, 4, 4]
    path = lines(answers({}, {}), answers({}))
    assert len(set(read_rollouts(path).group_id.tolist())) == 2
    assert len(set(read_rollouts(path, ReadRules(group_by="prompt")).group_id.tolist())) == 1


def test_outputs_when_beside_a_completion_are_a_column_like_any_other(lines) -> None:
    opened = open_rollouts(lines(line(outputs=[{"token_ids": [5]}])))
    assert len(opened) == 1 and "outputs" in opened.report.left_out


def test_outputs_when_named_otherwise_are_renamed(lines) -> None:
    record = answers({}, {})
    record["answers"] = record.pop("outputs")
    assert len(read_rollouts(lines(record), ReadRules(rename=renaming(["answers=outputs"])))) == 2


def test_outputs_when_some_cannot_be_used_are_refused_one_by_one(lines) -> None:
    path = lines(answers({"reward": 1}, {"logprobs": None}, {"reward": "x"}, {"reward": 0}))
    with pytest.raises(DataError, match=r"logged\.jsonl:1: outputs\[1\]: no log-probs"):
        open_rollouts(path, ReadRules(skip_bad=True))
    opened = open_rollouts(path, ReadRules(skip_bad=True, missing_logprobs="drop", chunk_rollouts=1))
    assert (opened.report.rollouts, opened.report.without_logprobs, opened.report.refused) == (2, 1, 1)
    assert "logged.jsonl:1: outputs[2]: reward is 'x'" in opened.report.complaints[0]
    assert np.concatenate([part.group_reward_mean for part in opened.parts()]).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({"rewards": [1, 0, 1]}, "'rewards' has 3 entries beside 2 outputs, expected one value or one each"),
        ({"logprobs": [-0.5]}, "'logprobs' stands beside 'outputs', expected it in each object of 'outputs'"),
        ({"loss_mask": [1]}, "'loss_mask' stands beside 'outputs'"),
        ({"choices": [{}]}, "'outputs' and 'choices' both hold completions"),
        ({"prompt_ids": [2]}, "both name the prompt_ids and differ"),
    ],
)
def test_fields_when_beside_the_outputs_they_cannot_be_shared_are_refused(lines, beside, said) -> None:
    with pytest.raises(DataError, match=r"logged\.jsonl:1: ") as caught:
        open_rollouts(lines(answers({}, {}, **beside)))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("record", "found", "field"),
    [
        ({"prompt": "a", "choices": [{"text": "b"}]}, "'prompt', 'text'", "completion_ids"),
        ({"prompt_ids": [1], "outputs": ["b"]}, "'prompt_ids', 'outputs'", "completion_ids"),
        ({"prompt": "a", "outputs": []}, "'prompt', 'outputs'", "completion_ids"),
        ({"text": "a", "token_ids": [1], "note": None}, "'text', 'token_ids'", "prompt_ids"),
        ({"input_ids": [1, 2]}, "'input_ids'", "prompt_length"),
        ({"prompt_ids": [1], "token_ids": [2], "old_log_probs": [-1]}, "'token_ids', 'old_log_probs'", "logprobs"),
        ({}, "nothing", "completion_ids"),
    ],
)
def test_field_when_not_found_is_named_with_those_found_and_the_way_out(lines, record, found, field) -> None:
    with pytest.raises(DataError) as caught:
        open_rollouts(lines(record))
    said = str(caught.value)
    assert found in said and f"expected one of {field}, " in said and f"--rename THEIRS={field}" in said
    assert "\n" not in said


def test_fields_when_very_many_and_long_are_named_in_part(lines) -> None:
    with pytest.raises(DataError, match="and 84 more") as caught:
        open_rollouts(lines({f"{i} {'x' * 999}": 1 for i in range(100)}))
    assert len(str(caught.value)) < 1500


def test_parquet_when_nested_is_read_as_lines_are(tmp_path, lines) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    records = [answers({"reward": 1.0}, {"reward": 0.0}), answers({"reward": 0.5, "finish_reason": "length"})]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    table, logged = read_rollouts(tmp_path / "a.parquet"), read_rollouts(lines(*records))
    assert table.tokens.tolist() == logged.tokens.tolist() and table.advantage.tolist() == logged.advantage.tolist()
    assert len(set(table.group_id.tolist())) == 2


@pytest.mark.parametrize("field", [*FIELD_OF, "choices", "more"])
def test_fields_when_anything_at_all_stands_beside_the_outputs_are_used_or_refused(lines, field) -> None:
    path = lines(*[answers({}, {}) | {field: value} for value in ANYTHING])
    opened = open_rollouts(path, ReadRules(skip_bad=True, missing_logprobs="drop"))
    assert sum(map(len, opened.parts())) == len(opened)
    # A record is refused as a whole, or each of its outputs is.
    assert 2 * len(ANYTHING) >= len(opened) + opened.report.without_logprobs + opened.report.refused >= len(ANYTHING)


@pytest.mark.parametrize("value", ANYTHING, ids=range(len(ANYTHING)))
def test_outputs_when_anything_at_all_are_refused(lines, value) -> None:
    opened = open_rollouts(lines({"prompt_ids": [1], "outputs": value}), ReadRules(skip_bad=True))
    assert len(opened) == 0 and opened.report.refused == 1
