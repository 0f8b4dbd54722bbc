"""The shipped fake: a tabular softmax policy in numpy with real gradients.

A completion of prompt i is `length` tokens, each drawn from its own row of a table of logits
[prompts, length, vocabulary]. Every prompt hides one sequence; the reward is 1 when the completion equals it. The table
cannot generalise, so the toy is tested on the prompts it trains on. Tests and docs run on it, in milliseconds and
without torch: the losses `CLOSED_FORMS` then, any loss with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ostinato.config import LossConfig, RunConfig, ToyConfig
from ostinato.config.losses import loss_settings
from ostinato.errors import CheckpointError, MissingExtraError
from ostinato.governors import StepGovernor, step_governor
from ostinato.loss_advantages import loss_advantages
from ostinato.protocols import Draw, GroupRequest, Task, Trained, Weights
from ostinato.rollouts import Rollouts
from ostinato.stats import gradient_figures, rollout_figures
from ostinato.telemetry import read_arrays, read_json_object, write_arrays, write_json

TABLE_STREAM, TASK_STREAM = 11, 12
"""Second entry of the seeds of the hidden sequences and of the order of prompts."""


CLOSED_FORMS = ("grpo", "asymre")
"""Losses that the toy trains without torch."""

Floats = NDArray[np.float64]
Slope = Callable[[Draw, Floats, Floats, Floats], tuple[Floats, Floats]]
"""(draw, log-probs, behavior log-probs, reference log-probs, all [B, L]) -> dL/dlogprobs [B, L], and how many tokens of
each rollout a clip acts on [B]."""


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
    """Plain gradient descent on the table. The loss gives dL/dlogprobs, the softmax chains it to the logits.

    The reference of a loss that has one is the uniform policy, where every run starts. Raises `MissingExtraError` when
    the loss needs torch and that is not installed. `governor`: what rules on each step; the table is the output layer.
    """

    def __init__(self, config: ToyConfig, loss: LossConfig, *, governor: StepGovernor | None = None) -> None:
        self._config, self._slope = config, slope_of(loss, config.length)
        self._governor = governor or StepGovernor()
        self.table = np.zeros((config.prompts, config.length, config.vocabulary))

    def step(self, draw: Draw) -> Trained:
        """One step, unless the governor drops it. Metrics: `grad_norm`, those of `stats.gradient_figures` in steps that
        the governor wants split, and of `StepGovernor.decide`. Figures: of each rollout before the step."""
        rollouts, length = draw.rollouts, self._config.length
        prompts = rollouts.tokens[rollouts.offsets[:-1]]
        tokens, logprobs, scale = self._policy(rollouts)
        behavior = rollouts.behavior_logprobs[rollouts.loss_mask].reshape(-1, length).astype(np.float64)
        chosen = np.take_along_axis(logprobs, tokens[..., None], axis=-1)[..., 0]
        uniform = np.full_like(chosen, -np.log(self._config.vocabulary))
        slope, clipped = self._slope(draw, chosen, behavior, uniform)
        per_token = self._per_token(tokens, slope, np.exp(logprobs), scale)
        gradient = self._gathered(prompts, per_token)
        entropy = -(np.exp(logprobs) * logprobs).sum(-1)
        every_token = np.ones(chosen.shape, np.bool_)
        figures = rollout_figures(chosen - behavior, entropy, every_token, ~every_token) | {"clipped": clipped}
        metrics = {"grad_norm": float(np.linalg.norm(gradient))}
        if self._governor.splits:
            metrics |= self._halves(prompts, per_token, draw.uses == 0)
        decision = self._governor.decide(figures, uses=draw.uses, energy=float(np.square(gradient).sum()))
        if not decision.dropped:
            # A new array each step: what was published keeps the old one.
            self.table = self.table - self._config.learning_rate * decision.learning_rate_scale * gradient
        return Trained({**metrics, **decision.metrics}, figures, decision.dropped)

    def logprobs(self, draw: Draw) -> NDArray[np.float32]:
        """See `protocols.Recomputer`."""
        tokens, logprobs, _ = self._policy(draw.rollouts)
        return np.take_along_axis(logprobs, tokens[..., None], axis=-1).ravel().astype(np.float32)

    def _policy(self, rollouts: Rollouts) -> tuple[NDArray[np.int32], Floats, Floats]:
        """Tokens [B, L], log-probs of the whole vocabulary [B, L, V], 1 / temperature [B, 1, 1]."""
        tokens = rollouts.tokens[rollouts.loss_mask].reshape(-1, self._config.length)
        scale = 1 / rollouts.temperature.astype(np.float64)[:, None, None]
        return tokens, log_softmax(self.table[rollouts.tokens[rollouts.offsets[:-1]]] * scale), scale

    def _per_token(self, tokens: NDArray[np.int32], slope: Floats, policy: Floats, scale: Floats) -> Floats:
        """dL/dlogits of each token: slope [B, L] of the chosen tokens, policy [B, L, V], scale 1 / temperature."""
        one_hot = np.arange(self._config.vocabulary) == tokens[..., None]
        return np.asarray(slope[..., None] * (one_hot - policy) * scale)

    def _gathered(self, prompts: NDArray[np.int32], per_token: Floats) -> Floats:
        """dL/dlogits of the table."""
        gradient = np.zeros_like(self.table)
        np.add.at(gradient, prompts, per_token)
        return gradient

    def _halves(self, prompts: NDArray[np.int32], per_token: Floats, fresh: NDArray[np.bool_]) -> dict[str, float]:
        one, other = (self._gathered(prompts[rows], per_token[rows]) for rows in (fresh, ~fresh))
        squares = {"fresh_square": np.square(one).sum(), "replayed_square": np.square(other).sum()}
        figures = gradient_figures(**{k: float(v) for k, v in squares.items()}, dot=float((one * other).sum()))
        del figures["grad_norm"]  # known, of the sum
        return figures

    def weights(self) -> Weights:
        """The table."""
        return {"table": self.table}

    def save(self, directory: Path) -> None:
        """Write `table.npz` and `governor.json`."""
        directory.mkdir(parents=True)
        write_arrays(directory / "table.npz", {"table": self.table})
        write_json(directory / "governor.json", self._governor.state_dict())

    def load(self, directory: Path) -> None:
        """Inverse of `save`. Raises `CheckpointError` when a file is damaged or holds a table of another shape."""
        path = directory / "table.npz"
        try:
            table = read_arrays(path)["table"]
        except Exception as error:  # a damaged file can make its reader raise anything
            raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
        if table.shape != self.table.shape:
            raise CheckpointError(f"{path} holds a table of shape {table.shape}, expected {self.table.shape}")
        self._governor.load_state_dict(read_json_object(directory / "governor.json"))
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
        return ToyTrainer(self._config.toy, self._config.loss, governor=step_governor(self._config))

    def generator(self) -> ToyGenerator:
        """An engine at the uniform policy."""
        return ToyGenerator(self._config.toy)

    def concurrent_generator(self) -> ToyGenerator:
        """The same: its work is too short to be worth a process."""
        return self.generator()


def slope_of(loss: LossConfig, length: int) -> Slope:
    """The derivative of the loss for completions of `length` tokens. Raises `MissingExtraError` without torch."""
    if loss.name in CLOSED_FORMS and loss.kl_coefficient == 0:
        return closed_form(loss)
    try:
        from ostinato.backends.toy_autograd import AutogradSlope
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", "hf") from error
    return AutogradSlope(loss, length)


def closed_form(loss: LossConfig) -> Slope:
    """GRPO: -w A r / tokens inside the clip, 0 outside. AsymRE: -w A / B. Every token trains.

    `losses` has the general functions; a test holds the two together.
    """
    bounds = {**loss_settings("grpo").own, **loss.arguments()}

    def slope(draw: Draw, logprobs_BL: Floats, behavior_BL: Floats, ref_BL: Floats) -> tuple[Floats, Floats]:
        w_B1 = draw.importance_weights[:, None]
        a_B1 = loss_advantages(draw.rollouts, loss.advantage_kind, **loss.advantage_options)[:, None]
        if loss.name == "asymre":
            return -w_B1 * a_B1 / len(draw) * np.ones_like(logprobs_BL), np.zeros(len(draw))
        ratio_BL = np.exp(logprobs_BL - behavior_BL)
        clipped_BL = ((a_B1 > 0) & (ratio_BL > bounds["clip_high"])) | ((a_B1 < 0) & (ratio_BL < bounds["clip_low"]))
        slope_BL = np.where(clipped_BL, 0.0, -w_B1 * a_B1 * ratio_BL / ratio_BL.size)
        return slope_BL, clipped_BL.sum(1, dtype=np.float64)

    return slope


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural log of the softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
