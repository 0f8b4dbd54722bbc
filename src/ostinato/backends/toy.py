"""The shipped fake: a tabular softmax policy in numpy with real gradients.

A completion of prompt i is `length` tokens, each drawn from its own row of a table of logits
[prompts, length, vocabulary]. Every prompt hides one sequence; the reward is 1 when the completion equals it. The table
cannot generalise, so the toy is tested on the prompts it trains on. Tests and docs run on it, in milliseconds and
without torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ostinato.advantages import shifted_advantages
from ostinato.config import LossConfig, RunConfig, ToyConfig
from ostinato.errors import CheckpointError
from ostinato.protocols import Draw, GroupRequest, Task, Weights
from ostinato.rollouts import Rollouts
from ostinato.telemetry import read_arrays, write_arrays

TABLE_STREAM, TASK_STREAM = 11, 12
"""Second entry of the seeds of the hidden sequences and of the order of prompts."""


class ToyTasks:
    """`prompts` hidden sequences; training visits them in a seeded order, epoch by epoch."""

    def __init__(self, config: ToyConfig, seed: int) -> None:
        self._seed = seed
        hidden = np.random.default_rng([seed, TABLE_STREAM]).integers(
            config.vocabulary, size=(config.prompts, config.length)
        )
        self.test = tuple(
            Task(prompt=str(i), answer=" ".join(map(str, row)), prompt_id=i, source="toy")
            for i, row in enumerate(hidden)
        )

    def train(self, index: int) -> Task:
        """Prompt `index` of an endless sequence of seeded shuffles."""
        epoch, place = divmod(index, len(self.test))
        order = np.random.default_rng([self._seed, TASK_STREAM, epoch]).permutation(len(self.test))
        return self.test[int(order[place])]


class ToyScorer:
    """1 when the completion is the hidden sequence, else 0."""

    def score(self, rollouts: Rollouts, tasks: Sequence[Task]) -> NDArray[np.float64]:
        """Rewards, shape (n,)."""
        texts = (" ".join(map(str, rollouts.completion(i))) for i in range(len(rollouts)))
        return np.array([float(text == task.answer) for text, task in zip(texts, tasks, strict=True)])


class ToyGenerator:
    """Draws completions from the table it was given."""

    def __init__(self, config: ToyConfig) -> None:
        self._table = np.zeros((config.prompts, config.length, config.vocabulary))
        self._version = 0

    def load(self, weights: Weights, version: int) -> None:
        """Take this table."""
        self._table, self._version = np.asarray(weights["table"]), version

    def stream(self, requests: Sequence[GroupRequest]) -> Iterator[Rollouts]:
        """One group a request; each from the request's own random stream."""
        for request in requests:
            yield self._group(request)

    def _group(self, request: GroupRequest) -> Rollouts:
        prompt, n, greedy = request.task.prompt_id, request.group_size, request.sampling.temperature == 0
        logits = self._table[prompt]
        logprobs = log_softmax(logits if greedy else logits / request.sampling.temperature)
        uniforms = np.random.default_rng(request.seed).random((n, len(logits), 1))
        drawn = (np.cumsum(np.exp(logprobs), axis=-1) < uniforms).sum(axis=-1).clip(max=logits.shape[-1] - 1)
        tokens = np.broadcast_to(logits.argmax(axis=-1), drawn.shape) if greedy else drawn
        chosen = np.take_along_axis(logprobs[None], tokens[..., None], axis=-1)[..., 0]
        return Rollouts.from_completions(
            [[prompt]] * n,
            list(tokens),
            list(np.zeros_like(chosen) if greedy else chosen),
            prompt_id=prompt,
            group_id=request.group_id,
            policy_version_min=self._version,
            birth_step=request.birth_step,
            temperature=request.sampling.temperature,
            source="toy",
        )


class ToyTrainer:
    """Plain gradient descent on the table. The loss gives dL/dlogprobs, the softmax chains it to the logits."""

    def __init__(self, config: ToyConfig, loss: LossConfig) -> None:
        self._config, self._loss = config, loss
        self.table = np.zeros((config.prompts, config.length, config.vocabulary))

    def step(self, draw: Draw) -> dict[str, float]:
        """One step; returns ratio, clip and gradient figures."""
        rollouts, length = draw.rollouts, self._config.length
        prompts = rollouts.tokens[rollouts.offsets[:-1]]
        tokens = rollouts.tokens[rollouts.loss_mask].reshape(-1, length)
        behavior = rollouts.behavior_logprobs[rollouts.loss_mask].reshape(-1, length).astype(np.float64)
        scale = 1 / rollouts.temperature.astype(np.float64)[:, None, None]
        logprobs = log_softmax(self.table[prompts] * scale)
        chosen = np.take_along_axis(logprobs, tokens[..., None], axis=-1)[..., 0]
        ratio = np.exp(chosen - behavior)
        slope, clipped = loss_slope(self._loss, rollouts, ratio, draw.importance_weights)
        one_hot = np.arange(self._config.vocabulary) == tokens[..., None]
        gradient = np.zeros_like(self.table)
        np.add.at(gradient, prompts, slope[..., None] * (one_hot - np.exp(logprobs)) * scale)
        # A new array each step: what was published keeps the old one.
        self.table = self.table - self._config.learning_rate * gradient
        return {
            "ratio_mean": float(ratio.mean()),
            "ratio_max": float(ratio.max()),
            "clip_fraction": float(clipped.mean()),
            "grad_norm": float(np.linalg.norm(gradient)),
            "entropy": float(-(np.exp(logprobs) * logprobs).sum(-1).mean()),
        }

    def weights(self) -> Weights:
        """The table."""
        return {"table": self.table}

    def save(self, directory: Path) -> None:
        """Write `table.npz`."""
        directory.mkdir(parents=True)
        write_arrays(directory / "table.npz", {"table": self.table})

    def load(self, directory: Path) -> None:
        """Inverse of `save`. Raises `CheckpointError` when the file is damaged or holds a table of another shape."""
        path = directory / "table.npz"
        try:
            table = read_arrays(path)["table"]
        except Exception as error:  # a damaged file can make its reader raise anything
            raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
        if table.shape != self.table.shape:
            raise CheckpointError(f"{path} holds a table of shape {table.shape}, expected {self.table.shape}")
        self.table = table


class ToyBackend:
    """Toy policy and task of a recipe."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.tasks = ToyTasks(config.toy, config.task.seed)
        self.scorer = ToyScorer()

    def describe(self) -> str:
        """One line about the table."""
        toy = self._config.toy
        return f"a uniform table for {toy.prompts} prompts of {toy.length} tokens out of {toy.vocabulary}"

    def trainer(self) -> ToyTrainer:
        """A trainer at the uniform policy."""
        return ToyTrainer(self._config.toy, self._config.loss)

    def generator(self) -> ToyGenerator:
        """An engine at the uniform policy."""
        return ToyGenerator(self._config.toy)

    def concurrent_generator(self) -> ToyGenerator:
        """The same: its work is too short to be worth a process."""
        return self.generator()


def loss_slope(
    loss: LossConfig, rollouts: Rollouts, ratio_BL: NDArray[np.float64], weights_B: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """dL/dlogprobs in closed form, and where clipping made it zero, both [B, L]; every token trains.

    GRPO: -w A r / tokens inside the clip, 0 outside. AsymRE: -w A / B. `losses` has the general functions; a test
    holds the two together.
    """
    w_B1 = weights_B[:, None]
    if loss.name == "asymre":
        shifted_B = shifted_advantages(rollouts.reward, rollouts.group_reward_mean, shift=loss.shift)
        slope_BL = -w_B1 * shifted_B[:, None] / len(ratio_BL) * np.ones_like(ratio_BL)
        return slope_BL, np.zeros(ratio_BL.shape, np.bool_)
    a_B1 = rollouts.advantage[:, None]
    clipped_BL = ((a_B1 > 0) & (ratio_BL > loss.clip_high)) | ((a_B1 < 0) & (ratio_BL < loss.clip_low))
    return np.where(clipped_BL, 0.0, -w_B1 * a_B1 * ratio_BL / ratio_BL.size), clipped_BL


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural log of the softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
