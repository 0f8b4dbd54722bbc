"""Accuracy on held-out tasks."""

from ostinato.evaluation.evaluate import Evaluation, Example, evaluate
from ostinato.evaluation.held_out import HeldOut, held_out
from ostinato.evaluation.pass_at_k import pass_at_k

__all__ = ["Evaluation", "Example", "HeldOut", "evaluate", "held_out", "pass_at_k"]
