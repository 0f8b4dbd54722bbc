"""The table of names in the documents is the one the code has."""

import json
import re
import textwrap
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from ostinato.cli.main import build_parser
from ostinato.rollout_files import open_rollouts
from ostinato.rollout_files.names import FIELD_OF, NAMES

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "buffer-files.md"


def test_names_when_documented_are_those_understood() -> None:
    section = DOCUMENT.read_text(encoding="utf-8").partition("## What a line may be called")[2].partition("\n* ")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE)
    assert {field: tuple(re.findall(r"`(\w+)`", names)) for field, names in rows} == NAMES


def test_names_when_listed_are_each_of_one_field() -> None:
    assert len(FIELD_OF) == sum(1 + len(names) for names in NAMES.values())


def test_commands_when_documented_parse() -> None:
    found = re.findall(r"^    ostinato (buffer .*)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == 5
    for line in found:
        _, left = build_parser().parse_known_args(line.split())
        assert left == []


def test_vllm_loop_when_documented_logs_what_can_be_read(tmp_path, monkeypatch) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    [block] = re.findall(r"^    asked = .*?\n(?=\n\S)", text, re.MULTILINE | re.DOTALL)

    def output(*token_ids):
        logprobs = [{9: SimpleNamespace(logprob=-0.1), token: SimpleNamespace(logprob=-0.25)} for token in token_ids]
        return SimpleNamespace(
            token_ids=token_ids, logprobs=logprobs, finish_reason="length", text="!" * len(token_ids)
        )

    def generate(prompts, asked):
        return [SimpleNamespace(prompt=p, prompt_token_ids=[1, 2], outputs=[output(3), output(4, 5)]) for p in prompts]

    monkeypatch.chdir(tmp_path)
    around = {
        "SamplingParams": partial(SimpleNamespace, top_p=1.0, top_k=0), "llm": SimpleNamespace(generate=generate),
        "prompts": ["a", "b"], "reward_of": lambda prompt, text: float(len(text)), "train_step": 12, "json": json,
    }  # fmt: skip
    exec(textwrap.dedent(block), around)
    opened = open_rollouts(Path("vllm.jsonl"))
    [read] = opened.parts()
    assert read.tokens.tolist() == [1, 2, 3, 1, 2, 4, 5] * 2 and read.reward.tolist() == [1, 2] * 2
    assert set(read.behavior_logprobs.tolist()) == {0, -0.25} and set(read.policy_version_min.tolist()) == {12}
    assert read.group_id[0] == read.group_id[1] != read.group_id[2] and np.all(read.advantage != 0)
    assert opened.report.unsaid == {} and read.extras == {} and read.truncated.all()
