"""Prompts with a verifier: built-in tasks, reasoning-gym data sets, JSONL files; and the scorer."""

from ostinato.tasks.create import create
from ostinato.tasks.task_set import TaskSet, prompt_id
from ostinato.tasks.text_scorer import TextScorer

__all__ = ["TaskSet", "TextScorer", "create", "prompt_id"]
