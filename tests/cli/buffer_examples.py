"""Rollouts, logs of others, and the commands that show or import them."""

import json
from pathlib import Path

import numpy as np

from ostinato import Rollouts
from ostinato.cli.main import main


def rollouts(n: int = 6, **columns) -> Rollouts:
    """Groups of two; rewards 0, 1, 0, 1 ...; prompts of 2 tokens, completions of 1, 2, 3 ... tokens."""
    columns = {
        "prompt_id": np.arange(n) // 4,
        "group_id": np.arange(n) // 2,
        "reward": np.arange(n) % 2,
        "group_reward_mean": 0.5,
        "group_reward_std": np.where(np.arange(n) < 4, 0.7, 0.0),
        "source": ["math", "math", "math", "code", "code", "math"][:n],
    } | columns
    completions = [[10 + i] * (i + 1) for i in range(n)]
    return Rollouts.from_completions([[1, 2]] * n, completions, [[-0.5] * len(c) for c in completions], **columns)


def tree(path: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in sorted(path.rglob("*")) if p.is_file()}


def inspected(capsys, path, *words) -> dict:
    capsys.readouterr()
    assert main(["buffer", "inspect", str(path), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def logged(path: Path, *records: dict) -> Path:
    base = {"prompt_token_ids": [1, 2], "response_ids": [3], "rollout_logprobs": [-0.5]}
    path.write_text("".join(json.dumps(base | record) + "\n" for record in records))
    return path


def imported(capsys, file: Path, *words: str) -> str:
    capsys.readouterr()
    assert main(["buffer", "import", str(file), "--out", str(file.with_suffix(".ost")), "--force", *words]) == 0
    return capsys.readouterr().err
