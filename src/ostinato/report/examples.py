"""Completions of the same held-out prompts before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SHOWN_CHARACTERS = 600
"""Of a prompt or a completion; the rest stands in metrics.jsonl."""


def before_and_after(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A row a prompt, from the records of each run by its label: `prompt`, `answer`, and `cells`, by "before" (the
    first evaluation of the first run) and the label of each run (its last evaluation) the completion as `text` and
    whether it is `correct`. Empty where no run has examples.
    """
    kept = {label: [r["examples"] for r in records if r.get("examples")] for label, records in runs.items()}
    kept = {label: evaluations for label, evaluations in kept.items() if evaluations}
    if not kept:
        return []
    columns = {"before": next(iter(kept.values()))[0]} | {label: evaluations[-1] for label, evaluations in kept.items()}
    return [
        {
            "prompt": _shown(rows[0]["prompt"]),
            "answer": _shown(rows[0]["answer"]),
            "cells": {
                label: {"text": _shown(row["completion"]), "correct": row["correct"]}
                for label, row in zip(columns, rows, strict=True)
            },
        }
        for rows in zip(*columns.values(), strict=False)  # runs may have kept examples of more or fewer prompts
    ]


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …"
