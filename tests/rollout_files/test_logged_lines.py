"""Lines that others logged: their names, what they leave out, and what is refused."""

import json

import numpy as np
import pytest
from rollout_examples import ANYTHING, line

from ostinato import ConfigError, DataError
from ostinato.ragged import Ragged
from ostinato.rollout_files import ReadRules, open_rollouts, read_rollouts, renaming
from ostinato.rollout_files.names import FIELD_OF

FRAMEWORKS = {
    "TRL": {"prompt_ids": [1], "completion_ids": [2, 3], "logprobs": [-1.0, -2.0], "tool_mask": [1, 0]},
    "TRL inputs": {
        "prompt_ids": [1], "completion_ids": [2, 3], "sampling_per_token_logps": [-1.0, -2.0], "tool_mask": [1, 0],
        "completion_mask": [1, 1],
    },
    "vLLM": {
        "prompt_token_ids": [1], "token_ids": [2, 3], "loss_mask": [1, 0],
        "logprobs": [{"2": {"logprob": -1.0, "rank": 2}, "9": {"logprob": -0.1}}, {"3": {"logprob": -2.0}}],
    },
    "OpenAI": {
        "prompt_token_ids": [1], "completion_token_ids": [2, 3], "loss_mask": [1, 0],
        "logprobs": {"content": [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}]},
    },
    "OpenAI completions": {
        "prompt_token_ids": [1], "completion_token_ids": [2, 3], "loss_mask": [1, 0],
        "logprobs": {"token_logprobs": [-1.0, -2.0]},
    },
    "verl": {"prompt_ids": [1], "response_ids": [2, 3], "response_logprobs": [-1.0, -2.0], "response_mask": [1, 0]},
    "SkyRL": {
        "prompt_token_ids": [1], "response_ids": [2, 3], "rollout_logprobs": [-1.0, -2.0], "loss_masks": [1, 0],
        "rewards": [0.5, 0.25], "stop_reasons": "length",
    },
    "OpenRLHF": {"prompt_ids": [1], "completion_ids": [2, 3], "rollout_log_probs": [-1.0, -2.0], "action_mask": [1, 0]},
    "AReaL": {
        "input_ids": [1, 2, 3], "prompt_len": 1, "logprobs": [0.0, -1.0, -2.0], "loss_mask": [0, 1, 0],
        "versions": [-1, 4, 6],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_line_when_logged_by_a_framework_is_understood(lines, name) -> None:
    read = read_rollouts(lines(FRAMEWORKS[name]))
    assert read.tokens.tolist() == [1, 2, 3] and read.prompt_length.tolist() == [1]
    assert read.behavior_logprobs.tolist() == [0.0, -1.0, -2.0]
    assert read.loss_mask.tolist() == [False, True, False]
    if name == "SkyRL":
        assert read.reward.tolist() == [0.75] and read.truncated.tolist() == [True]
    if name == "AReaL":
        assert (read.policy_version_min.item(), read.policy_version_max.item(), read.birth_step.item()) == (4, 6, 6)
        assert read.extras["token_versions"].values.tolist() == [-1, 4, 6]


def test_logprobs_when_missing_are_an_error_or_dropped(lines) -> None:
    bare = {"prompt_ids": [1], "completion_ids": [2]}
    path = lines(line(), bare, {**bare, "logprobs": None})
    with pytest.raises(DataError, match=r"logged\.jsonl:2: no log-probs.*cannot be recomputed.*drop"):
        open_rollouts(path)
    with pytest.raises(DataError, match="cannot be recomputed"):
        open_rollouts(path, ReadRules(skip_bad=True))
    kept = open_rollouts(path, ReadRules(missing_logprobs="drop"))
    assert (len(kept), kept.report.without_logprobs, kept.report.refused) == (1, 2, 0)


@pytest.mark.parametrize("bad", ["NaN", "null", "-Infinity", "Infinity", "0.9", "-1e300", '"x"', "true", "[]"])
def test_logprob_when_no_finite_log_of_a_probability_is_refused_by_line(lines, bad) -> None:
    path = lines(line(), tail=json.dumps(line()).replace("-0.5, -0.5", f"-0.5, {bad}") + "\n" + json.dumps(line()))
    with pytest.raises(DataError, match=r"logged\.jsonl:2: (the log-prob of token 1|a log-prob is a)"):
        open_rollouts(path)
    kept = open_rollouts(path, ReadRules(skip_bad=True))
    assert (len(kept), kept.report.refused) == (2, 1)
    assert ":2: " in kept.report.complaints[0]


def test_logprob_when_the_policy_did_not_produce_the_token_may_be_null(lines) -> None:
    read = read_rollouts(lines(line(logprobs=[None, -0.5], tool_mask=[0, 1])))
    assert read.behavior_logprobs.tolist() == [0, 0, 0, -0.5]


def test_logprobs_when_of_another_number_are_refused(lines) -> None:
    for wrong in ([-1.0], [-1.0] * 3, [], "-1", 3.5):
        with pytest.raises(DataError, match="log-probs for 2 completion tokens"):
            open_rollouts(lines(line(logprobs=wrong)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt_ids": "text"}, "prompt_ids is 'text', expected a list of token ids"),
        ({"prompt_ids": [1.5]}, "expected a list of token ids"),
        ({"prompt_ids": [[1], [2, 3]]}, "expected a list of token ids"),
        ({"prompt_ids": [-1, 4]}, "holds -1 to 4"),
        ({"prompt_ids": [2**31]}, "holds 2147483648"),
        ({"prompt_ids": [2**80]}, "expected a list of token ids"),
        ({"completion_ids": None}, "text alone cannot be replayed"),
        ({"loss_mask": [1]}, "expected 2 flags"),
        ({"loss_mask": [1, 2]}, "expected 0 and 1"),
        ({"reward": float("nan")}, "reward is nan, expected a finite number"),
        ({"reward": "high"}, "reward is 'high'"),
        ({"reward": [1, None]}, "reward is None"),
        ({"advantage": float("inf")}, "advantage is inf"),
        ({"policy_version": 1.5}, "policy_version is 1.5, expected a whole number"),
        ({"policy_version": [-1, -1]}, "without a version"),
        ({"policy_version_min": 4, "policy_version_max": 3}, "min 4 is above"),
        ({"temperature": -1}, "temperature -1"),
        ({"top_p": 1.5}, "top_p 1.5"),
        ({"truncated": "yes"}, "truncated is 'yes'"),
        ({"group_id": 1.5}, "group_id is 1.5"),
        ({"extras": 3}, "'extras' is 3"),
        ({"reward": []}, "reward is [], expected a number, or 2 of them"),
        ({"reward": [1, 0, 1]}, "reward is [1, 0, 1], expected a number, or 2 of them"),
        ({"policy_version": [1]}, "policy_version is [1], expected a number, or 2 of them"),
        ({"group_reward_std": -1}, "group_reward_std is -1, expected at least 0"),
        ({"top_k": -2}, "top_k is -2, expected -1 (off)"),
        ({"source": ["a"]}, "source is ['a'], expected a name"),
        ({"response_ids": [5, 7]}, "'completion_ids' and 'response_ids' both name the completion_ids and differ"),
    ],
)
def test_line_when_wrong_is_refused_by_number(lines, change, said) -> None:
    with pytest.raises(DataError, match=r"logged\.jsonl:2: ") as caught:
        open_rollouts(lines(line(), line() | change))
    assert said in str(caught.value)


def test_file_when_its_last_line_is_torn_says_so(lines) -> None:
    path = lines(line(), line(), tail='{"prompt_ids": [1, 2], "comple')
    with pytest.raises(DataError, match=r"logged\.jsonl:3: the last line is torn"):
        open_rollouts(path)
    kept = open_rollouts(path, ReadRules(skip_bad=True))
    assert len(kept) == 2 and "torn" in kept.report.complaints[0]
    whole = lines(line(), tail=json.dumps(line()))  # all of it but the line feed
    assert len(open_rollouts(whole)) == 2


@pytest.mark.parametrize("tail", ["nonsense\n", "[1]\n", "3\n", "[" * 100_000 + "\n", "\x00\x01\n"])
def test_line_when_no_object_is_refused(lines, tail) -> None:
    with pytest.raises(DataError, match=r"logged\.jsonl:2: expected (one|a) JSON object") as caught:
        open_rollouts(lines(line(), tail=tail))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_file_when_it_grows_meanwhile_hands_out_what_was_looked_at(lines) -> None:
    path = lines(line(), line())
    opened = open_rollouts(path)
    with open(path, "a") as file:
        file.write(json.dumps(line(reward="bad")) + "\n")
    assert sum(len(part) for part in opened.parts()) == 2


def test_advantages_when_left_out_come_from_the_group_wherever_its_members_stand(lines) -> None:
    rewards, groups = [1, 5, 0, 1, 7, 0], ["a", "b", "a", "a", "b", "a"]
    path = lines(*[line(reward=r, group_id=g) for r, g in zip(rewards, groups, strict=True)])
    read = read_rollouts(path, ReadRules(chunk_rollouts=2))
    std = (1 / 3) ** 0.5
    assert read.group_reward_mean.tolist() == [0.5, 6, 0.5, 0.5, 6, 0.5]
    assert read.group_reward_std == pytest.approx([std, 2**0.5, std, std, 2**0.5, std])
    high = 0.5 / (std + 1e-4)
    assert read.advantage == pytest.approx([high, -1 / (2**0.5 + 1e-4), -high, high, 1 / (2**0.5 + 1e-4), -high])
    assert len(set(read.group_id.tolist())) == 2


def test_groups_when_of_one_prompt_stay_apart(lines) -> None:
    path = lines(*[line(reward=r, group_id=g) for r, g in ((1, 1), (1, 1), (0, 2), (0, 2))])
    read = read_rollouts(path)
    assert len(set(read.prompt_id.tolist())) == 1
    assert read.group_reward_std.tolist() == [0] * 4 and read.advantage.tolist() == [0] * 4


def test_group_when_left_out_is_the_line_or_the_prompt_if_asked(lines) -> None:
    path = lines(line(reward=1), line(reward=0), line(prompt_ids=[3], reward=1), line(reward=1, group_id=1))
    alone = read_rollouts(path)
    assert len(set(alone.group_id.tolist())) == 4 and alone.group_id[3] == 1
    assert alone.group_reward_std.tolist() == [0] * 4
    grouped = read_rollouts(path, ReadRules(group_by="prompt"))
    assert grouped.group_id[0] == grouped.group_id[1] != grouped.group_id[2]
    assert grouped.group_reward_std == pytest.approx([0.5**0.5, 0.5**0.5, 0, 0])


def test_advantage_when_given_is_kept(lines) -> None:
    read = read_rollouts(lines(line(reward=1, group_id=1, advantage=0.25), line(reward=0, group_id=1)))
    assert read.advantage == pytest.approx([0.25, -0.5 / (0.5**0.5 + 1e-4)])
    assert read.group_reward_mean.tolist() == [0.5, 0.5]


def test_statistics_when_given_are_kept_and_make_the_advantage(lines) -> None:
    read = read_rollouts(lines(line(reward=1, group_id=1, group_reward_mean=0.5, group_reward_std=0.25)))
    assert read.advantage == pytest.approx([0.5 / 0.2501])


def test_report_when_lines_leave_things_out_counts_them(lines) -> None:
    path = lines(
        line(), line(advantage=1), line(reward=1, top_p=0.9), line(reward=1, top_k=20), line(reward=1, top_k=-1)
    )
    opened = open_rollouts(path)
    assert (opened.report.without_reward, opened.report.truncated_sampling) == (1, 2)
    assert next(opened.parts()).top_k.tolist() == [0, 0, 0, 20, 0]


def test_defaults_when_given_stand_for_what_lines_leave_out(lines) -> None:
    rules = ReadRules(temperature=0.7, top_p=0.9, top_k=5, policy_version=12, source="logs")
    read = read_rollouts(lines(line(), line(temperature=1, top_p=1, top_k=0, policy_version=3, data_source="x")), rules)
    assert read.temperature.tolist() == [np.float32(0.7), 1] and read.top_k.tolist() == [5, 0]
    assert read.policy_version_min.tolist() == read.birth_step.tolist() == [12, 3]
    assert read.source.tolist() == ["logs", "x"] and read.top_p.tolist() == [np.float32(0.9), 1]


def test_names_when_renamed_are_looked_up_first(lines) -> None:
    record = {"p": [1], "c": [2], "old_log_probs": [-1.0], "score": 3, "uid": 1}
    path = lines(record)
    with pytest.raises(DataError, match="no token ids of the completion"):
        open_rollouts(path)
    rename = renaming(["p=prompt_ids", "c=completion_ids", "old_log_probs=logprobs", "uid=prompt_id"])
    read = read_rollouts(path, ReadRules(rename=rename))
    assert (read.prompt_id.item(), read.reward.item()) == (1, 3)
    assert renaming(["answers=outputs"]) == {"answers": "outputs"}
    for pair in ("p", "=prompt_ids", "p=nothing"):
        with pytest.raises(ConfigError, match="expected THEIRS=OURS"):
            renaming([pair])


def test_extras_when_they_can_be_columns_are_kept_and_others_named(lines) -> None:
    rows = [
        {"turns": 1, "score_b": 0.5, "ok": True, "tag": "x", "mask": [], "image": [[1, 2]], "mixed": 1},
        {"turns": 2, "score_b": 1, "ok": False, "tag": "yy", "mask": [1, 0], "image": [[3, 4], [5, 6]], "mixed": "a"},
    ]
    odd = {"text": "long " * 50, "about": {"a": 1}, "words": ["a", 1], "none": None, "huge": 2**70}
    opened = open_rollouts(
        lines(line(**rows[0], **odd, sometimes=1), line(**rows[1], **odd)), ReadRules(chunk_rollouts=1)
    )
    first, second = opened.parts()
    assert set(first.extras) == {"turns", "score_b", "ok", "tag", "mask", "image"}
    assert opened.report.left_out["sometimes"] == "on 1 of 2 lines"
    assert set(opened.report.left_out) == {*odd, "sometimes", "mixed"}
    assert first.extras["score_b"].dtype == np.float64 and second.extras["score_b"].tolist() == [1.0]
    assert first.extras["ok"].dtype == np.bool_ and second.extras["tag"].tolist() == ["yy"]
    assert isinstance(second.extras["image"], Ragged)
    assert second.extras["image"].row(0).tolist() == [[3, 4], [5, 6]]
    assert first.extras["mask"].values.dtype == second.extras["mask"].values.dtype == np.int64


def test_extras_when_asked_for_are_these_or_an_error(lines) -> None:
    path = lines(line(turns=1, text="x" * 300, other=2))
    assert set(read_rollouts(path, ReadRules(extras=("turns",))).extras) == {"turns"}
    assert read_rollouts(path, ReadRules(extras=())).extras == {}
    with pytest.raises(DataError, match="'text' cannot be an extra column: a text of more than 200 characters"):
        open_rollouts(path, ReadRules(extras=("text",)))
    with pytest.raises(DataError, match="no line has the extra column 'nothing'"):
        open_rollouts(path, ReadRules(extras=("nothing",)))


@pytest.mark.parametrize("field", [*FIELD_OF, "more"])
def test_line_when_a_field_is_anything_at_all_is_used_or_refused(lines, field) -> None:
    path = lines(*[line(reward=1) | {field: value} for value in ANYTHING])
    opened = open_rollouts(path, ReadRules(skip_bad=True, missing_logprobs="drop"))
    report, parts = opened.report, list(opened.parts())
    assert sum(map(len, parts)) == report.rollouts == len(ANYTHING) - report.refused - report.without_logprobs
    for part in parts:
        assert np.isfinite(part.behavior_logprobs).all() and np.isfinite(part.reward).all()


@pytest.mark.parametrize("value", ANYTHING, ids=range(len(ANYTHING)))
def test_extra_when_anything_at_all_is_a_column_left_out_or_refused(lines, value) -> None:
    opened = open_rollouts(lines(*[line(extras={"x": value})] * 2), ReadRules(skip_bad=True))
    read = list(opened.parts())
    assert opened.report.refused == 2 or ("x" in read[0].extras) != ("x" in opened.report.left_out)


def test_whole_numbers_when_a_table_made_them_floats_are_taken(lines) -> None:
    read = read_rollouts(lines(line(policy_version=3.0, group_id=7.0, top_k=5.0)))
    assert (read.policy_version_min.item(), read.group_id.item(), read.top_k.item()) == (3, 7, 5)


def test_rules_when_impossible_are_refused() -> None:
    for wrong in ({"missing_logprobs": "zero"}, {"group_by": "reward"}, {"chunk_rollouts": 0}):
        with pytest.raises(ConfigError, match="expected"):
            ReadRules(**wrong)


def test_file_when_empty_holds_nothing(lines) -> None:
    opened = open_rollouts(lines())
    assert len(opened) == 0 and list(opened.parts()) == []
    assert len(read_rollouts(opened.path)) == 0
