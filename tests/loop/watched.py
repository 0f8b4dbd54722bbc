"""A toy run whose train steps are seen from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ostinato.backends.toy import ToyBackend, ToyTrainer
from ostinato.config import RunConfig
from ostinato.loop import Session
from ostinato.protocols import Draw, Trained
from ostinato.telemetry import read_jsonl


@dataclass(frozen=True)
class Seen:
    """One train step: the batch, the table before and after it, what the trainer told."""

    draw: Draw
    before: np.ndarray
    after: np.ndarray
    trained: Trained


class WatchedBackend(ToyBackend):
    """Keeps every train step in `seen`; `alter(number, draw)` may hand the trainer another batch."""

    def __init__(self, config: RunConfig, alter: Any = None) -> None:
        super().__init__(config)
        self.seen: list[Seen] = []
        self._alter = alter or (lambda number, draw: draw)

    def trainer(self) -> ToyTrainer:
        trainer = super().trainer()
        step = trainer.step

        def watched(draw: Draw) -> Trained:
            before = trainer.table
            trained = step(self._alter(len(self.seen), draw))
            self.seen.append(Seen(draw, before, trainer.table, trained))
            return trained

        trainer.step = watched  # type: ignore[method-assign]
        return trainer


def watch(config: RunConfig, directory: Any, alter: Any = None) -> tuple[list[Seen], list[dict[str, Any]], Session]:
    """Run to the end: the train steps, their lines of metrics.jsonl, the session."""
    backend = WatchedBackend(config, alter)
    session = Session(config, backend, directory)
    session.run()
    lines = [line for line in read_jsonl(directory / "metrics.jsonl") if line["event"] == "step"]
    return backend.seen, lines, session


def told(draw: Draw, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-ratios of each token to the policy that generated it, (n, length), and the policy's entropies there."""
    rollouts = draw.rollouts
    length = table.shape[1]
    prompts = rollouts.tokens[rollouts.offsets[:-1]]
    tokens = rollouts.tokens[rollouts.loss_mask].reshape(-1, length)
    policy = np.exp(table[prompts]) / np.exp(table[prompts]).sum(-1, keepdims=True)
    chosen = np.take_along_axis(policy, tokens[..., None], -1)[..., 0]
    behavior = rollouts.behavior_logprobs[rollouts.loss_mask].reshape(-1, length)
    return np.log(chosen) - behavior, -(policy * np.log(policy)).sum(-1)
