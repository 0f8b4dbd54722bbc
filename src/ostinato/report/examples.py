"""Completions of the same held-out prompts before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SHOWN_CHARACTERS = 600
"""Of a prompt or a completion; the rest stands in metrics.jsonl."""


def before_and_after(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A row a prompt, from the records of each run by its label: `prompt`, `answer`, and `cells`, by "before training"
    (the first run's evaluation at step 0, where it has one) and the label of each run (its last evaluation) the
    completion as `text` and whether it is `correct`. Prompts that not all runs have are left out; empty where no run
    has examples.
    """
    columns: dict[str, dict[str, Mapping[str, Any]]] = {}
    for label, records in runs.items():
        kept = [record for record in records if record.get("examples")]
        if kept and not columns and kept[0]["train_step"] == 0:
            columns["before training"] = _by_prompt(kept.pop(0))
        if kept:
            columns[label] = _by_prompt(kept[-1])
    if not columns:
        return []
    first = next(iter(columns.values()))
    shared = [prompt for prompt in first if all(prompt in column for column in columns.values())]
    return [
        {
            "prompt": _shown(prompt),
            "answer": _shown(first[prompt]["answer"]),
            "cells": {
                label: {"text": _shown(column[prompt]["completion"]), "correct": column[prompt]["correct"]}
                for label, column in columns.items()
            },
        }
        for prompt in shared
    ]


def _by_prompt(record: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {example["prompt"]: example for example in record["examples"]}


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …"
