"""Parts that can be watched, or that misbehave when told to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.backends.toy import ToyBackend, ToyGenerator, log_softmax
from ostinato.config import RunConfig
from ostinato.protocols import Draw, GroupRequest, Trained, Weights
from ostinato.rollouts import Rollouts


class WatchedTrainer:
    """Checks that the behavior log-probs of every rollout it trains on are those of the version it carries."""

    def __init__(self, trainer: Any, tables: dict[int, Any]) -> None:
        self._trainer, self._tables, self._train_step = trainer, tables, 0
        self.checked = 0

    def step(self, draw: Draw) -> Trained:
        rollouts = draw.rollouts
        prompts = rollouts.tokens[rollouts.offsets[:-1]]
        tables = np.stack([self._tables[int(version)] for version in rollouts.policy_version_min])
        chosen = rollouts.tokens[rollouts.loss_mask].reshape(len(rollouts), -1)
        logprobs = log_softmax(tables[np.arange(len(rollouts)), prompts])
        expected = np.take_along_axis(logprobs, chosen[..., None], axis=-1)[..., 0]
        behavior = rollouts.behavior_logprobs[rollouts.loss_mask].reshape(expected.shape)
        np.testing.assert_allclose(behavior, expected, atol=1e-5)
        self.checked += len(rollouts)
        trained: Trained = self._trainer.step(draw)
        self._train_step += 1
        return trained

    def weights(self) -> Weights:
        weights: Weights = self._trainer.weights()
        self._tables[self._train_step] = np.array(weights["table"])
        return weights

    def save(self, directory: Path) -> None:
        self._trainer.save(directory)

    def load(self, directory: Path) -> None:
        self._trainer.load(directory)
        self._train_step = int(directory.parent.name.removeprefix("step-"))


class WatchedBackend:
    """A backend on Ray whose trainers are watched."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.tables: dict[int, Any] = {}
        self.trainers: list[WatchedTrainer] = []

    def trainer(self) -> WatchedTrainer:
        self.trainers.append(WatchedTrainer(self._backend.trainer(), self.tables))
        return self.trainers[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class Sticky(ToyGenerator):
    """Never answers at the first `times` requests for group `group`; files in `directory` count them."""

    def __init__(self, config: RunConfig, directory: Path, group: int, times: int) -> None:
        super().__init__(config.toy)
        self._directory, self._hangs_at, self._times = directory, group, times

    def stream(self, requests: Sequence[GroupRequest]) -> Iterator[Rollouts]:
        seen = len(list(self._directory.glob("stuck-*")))
        if any(request.group_id == self._hangs_at for request in requests) and seen < self._times:
            (self._directory / f"stuck-{seen}").touch()
            time.sleep(3600)
        return super().stream(requests)


class StickyBackend(ToyBackend):
    """The toy with `Sticky` generators."""

    def __init__(self, config: RunConfig, directory: Path, group: int, times: int) -> None:
        super().__init__(config)
        self._sticky = config, directory, group, times

    def generator(self) -> Sticky:
        return Sticky(*self._sticky)


class SlowBackend(ToyBackend):
    """The toy with generators that take `seconds` for a request."""

    def __init__(self, config: RunConfig, seconds: float) -> None:
        super().__init__(config)
        self._slow = config, seconds

    def generator(self) -> ToyGenerator:
        config, seconds = self._slow

        class Slow(ToyGenerator):
            def stream(self, requests: Sequence[GroupRequest]) -> Iterator[Rollouts]:
                time.sleep(seconds)
                return super().stream(requests)

        return Slow(config.toy)
