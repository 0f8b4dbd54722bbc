"""Accuracy on held-out tasks."""

from ostinato.evaluation.evaluate import Evaluation, evaluate
from ostinato.evaluation.pass_at_k import pass_at_k

__all__ = ["Evaluation", "evaluate", "pass_at_k"]
