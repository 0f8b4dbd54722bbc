"""What a run asks of its held-out prompts at one point: accuracy, pass@k, and completions to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.config import EvaluationConfig
from ostinato.evaluation.evaluate import Evaluation, evaluate
from ostinato.protocols import Generator, Sampling, Scorer, Task

STREAM = 3
"""Second entry of the seeds of evaluations: the same for every arm."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """`sampled`: at the temperature asked for; `greedy`: where it was asked for."""

    prompts: int
    sampled: Evaluation
    greedy: Evaluation | None

    @property
    def pass_at_k(self) -> dict[int, float]:
        """pass@k of the sampled completions for k = 1, 2, 4, ... up to their number."""
        return {2**i: self.sampled.pass_at(2**i) for i in range(self.sampled.samples.bit_length())}

    def record(self) -> dict[str, Any]:
        """By the names of docs/metrics.md."""
        told = {
            "prompts": self.prompts,
            "samples": self.sampled.samples,
            "sampled_accuracy": self.sampled.accuracy,
            "pass_at_k": self.pass_at_k,
            "greedy_accuracy": self.greedy.accuracy if self.greedy else None,
            "unscored": self.sampled.unscored + (self.greedy.unscored if self.greedy else 0),
        }
        examples = (self.greedy or self.sampled).examples
        return told | ({"examples": [example.record() for example in examples]} if examples else {})


def held_out(
    generator: Generator,
    scorer: Scorer,
    tasks: Sequence[Task],
    config: EvaluationConfig,
    *,
    max_new_tokens: int,
    seed: int,
    point: int,
) -> HeldOut:
    """The evaluation number `point` of a run with this `seed`, under the weights that `generator` holds.

    Raises what `evaluate` raises.
    """
    stream = (seed, STREAM, point)
    draws = [(Sampling(config.temperature, config.top_p, 0, max_new_tokens), config.samples)]
    if config.greedy:
        draws.append((Sampling(0.0, 1.0, 0, max_new_tokens), 1))
    found = []
    for i, (sampling, samples) in enumerate(draws, 1):
        shown = config.examples if i == len(draws) else 0  # the others' are not looked at
        found.append(
            evaluate(generator, scorer, tasks, sampling=sampling, samples=samples, seed=stream, examples=shown)
        )
    return HeldOut(len(tasks), found[0], found[1] if config.greedy else None)
