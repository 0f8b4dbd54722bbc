"""Prompts with a verifier: built-in tasks, reasoning-gym data sets, JSONL files; and the scorer."""

from ostinato.tasks.create import create, create_scorer
from ostinato.tasks.score_pool import ScorePool
from ostinato.tasks.task_set import TaskSet, prompt_id
from ostinato.tasks.text_scorer import TextScorer
from ostinato.tasks.user_scorer import load_scorer

__all__ = ["ScorePool", "TaskSet", "TextScorer", "create", "create_scorer", "load_scorer", "prompt_id"]
