"""The seams: small protocols between the loop and whatever generates, scores, stores and trains.

Each has a shipped fake in `backends.toy`. Data classes here are what crosses a seam.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ostinato.rollouts import Rollouts

Weights = Mapping[str, Any]
"""A snapshot of the policy that nobody changes in place: parameter name to array or tensor."""


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt and what its verifier needs.

    `prompt_id` is a stable 63-bit hash of the prompt; `source` names the data set; `details` belongs to the verifier.
    """

    prompt: str
    answer: str
    prompt_id: int
    source: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn. temperature 0 is greedy; top_p 1 and top_k 0 are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 32


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """Ask for `group_size` completions of one task.

    `seed` names the group's own random stream, so its completions do not depend on what is decoded beside it.
    """

    task: Task
    group_id: int
    group_size: int
    seed: tuple[int, ...]
    sampling: Sampling
    birth_step: int = 0


@dataclass(frozen=True, slots=True)
class Draw:
    """A batch drawn from a store, arrays of shape (n,).

    `rollout_ids` int64; `importance_weights` float64 (1 under uniform draws); `staleness` and `residence` int64 in
    train steps at the draw; `uses` int64, how often each was drawn before, repeats inside this batch counted in order;
    `steps_since_last_use` int64, -1 where the rollout is new.
    """

    rollouts: Rollouts
    rollout_ids: NDArray[np.int64]
    importance_weights: NDArray[np.float64]
    staleness: NDArray[np.int64]
    residence: NDArray[np.int64]
    uses: NDArray[np.int64]
    steps_since_last_use: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rollout_ids)


@dataclass(frozen=True, slots=True)
class Trained:
    """What an optimizer step tells.

    `metrics`: numbers of the step. `figures`: per rollout, in the order of the draw, float64 (n,), by the names of
    `ostinato.stats.FIGURES`; empty where a trainer has none. `dropped`: the gradient was computed but not applied, and
    the batch is not to be trained on again.
    """

    metrics: dict[str, float]
    figures: Mapping[str, NDArray[np.float64]]
    dropped: bool = False


class TaskStream(Protocol):
    """Prompts to train on and held-out ones to test on."""

    @property
    def test(self) -> Sequence[Task]:
        """Held-out tasks, fixed."""

    def train(self, index: int) -> Task:
        """The index-th training task: the same for the same index, never a held-out one."""


class Generator(Protocol):
    """Turns prompts into rollouts under the weights it holds."""

    def load(self, weights: Weights, version: int) -> None:
        """Take these weights for everything generated from now on."""

    def stream(self, requests: Sequence[GroupRequest]) -> Iterator[Rollouts]:
        """Yield each finished group, unscored, in the order of `requests`."""


class Timekeeper(Protocol):
    """What a generator or a trainer may also be: one that works elsewhere, and knows how long without the ways there,
    waiting and repeated attempts."""

    def take_busy_s(self) -> float:
        """Seconds of work in `stream` or `step` since the last call."""


@runtime_checkable
class Interruptible(Protocol):
    """What a generator may also be: one that need not be waited for when nobody wants its groups any more."""

    def give_up(self) -> None:
        """Let every `stream` that is open end soon, with `RunError`. Those that follow are answered."""


@runtime_checkable
class Sleeper(Protocol):
    """What a generator may also be: one that gives its memory back while the same hardware trains.

    Asked for by the clock of turns alone, never while a `stream` is open. Both may be called twice in a row and then do
    nothing. After `wake` the weights last loaded may be gone: the loop loads them again before it generates.
    """

    def sleep(self) -> None:
        """Free what training can use. Returns when it is free."""

    def wake(self) -> None:
        """Be ready for `load` and `stream` again."""


class Scorer(Protocol):
    """Gives rewards."""

    def score(self, rollouts: Rollouts, tasks: Sequence[Task]) -> NDArray[np.float64]:
        """One finite reward a rollout, shape (n,); `tasks[i]` belongs to rollout i."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Rewards, float64 (n,), and how many of them are the 0 of a rollout whose scoring had to be ended: it took too
    long (`timeouts`), or its process died (`crashes`)."""

    rewards: NDArray[np.float64]
    timeouts: int = 0
    crashes: int = 0


class CountingScorer(Scorer, Protocol):
    """What a scorer may also be: one that gives some rollouts up and says how many."""

    def score_counted(self, rollouts: Rollouts, tasks: Sequence[Task]) -> Scores:
        """As `score`."""


@runtime_checkable
class Reader(Protocol):
    """What a scorer may also be: one that knows what completions say."""

    def texts(self, rollouts: Rollouts) -> list[str]:
        """The text of each completion, without special tokens."""


def scores_of(scorer: Scorer, rollouts: Rollouts, tasks: Sequence[Task]) -> Scores:
    """What any scorer says of these rollouts."""
    if hasattr(scorer, "score_counted"):  # every group asks, and `isinstance` of a protocol is slow
        counted: Scores = scorer.score_counted(rollouts, tasks)
        return counted
    return Scores(scorer.score(rollouts, tasks))


class Trainer(Protocol):
    """Holds the policy and its optimizer."""

    def step(self, draw: Draw) -> Trained:
        """One optimizer step on the batch."""

    def weights(self) -> Weights:
        """A snapshot of the current policy."""

    def save(self, directory: Path) -> None:
        """Write policy and optimizer below `directory`."""

    def load(self, directory: Path) -> None:
        """Inverse of `save`, bit for bit."""


@runtime_checkable
class Lender(Protocol):
    """What a trainer may also be: one whose policy can be read without a copy, by somebody who copies it at once."""

    def lent(self) -> Weights:
        """What `Trainer.weights` gives, which holds only until the trainer is asked for anything else."""


@runtime_checkable
class Recomputer(Protocol):
    """What a trainer may also be: one that tells how likely rollouts are under the policy it holds now."""

    def logprobs(self, draw: Draw) -> NDArray[np.float32]:
        """Of every token under the loss mask, at its rollout's temperature, in nats: float32, in the order of
        `rollouts.behavior_logprobs[rollouts.loss_mask]`, computed as `step` computes them. Nothing changes."""


class Store(Protocol):
    """What the loop asks of a replay buffer, of T shards, or of an actor that holds one."""

    def add(self, rollouts: Rollouts, *, train_step: int) -> NDArray[np.int64]:
        """Insert; returns the new rollout ids."""

    def can_add(self, n: int) -> bool:
        """Whether the limiter lets n rollouts in now."""

    def can_sample(self, n: int) -> bool:
        """Whether a batch of n can be drawn now."""

    def sample(self, n: int, *, train_step: int, rng: np.random.Generator) -> Draw:
        """Draw a batch."""

    def retain(self, *, train_step: int) -> None:
        """Let the retention rules remove what they no longer want at this train step."""

    def remove(self, rollout_ids: NDArray[np.int64]) -> int:
        """Remove rollouts by id; returns how many were there."""

    def update_priorities(self, rollout_ids: NDArray[np.int64], priorities: NDArray[np.float64]) -> int:
        """Write priorities back by id, the last where an id comes twice; returns how many landed."""

    def metrics(self) -> dict[str, float]:
        """Numbers about what is held; `correct_fraction` among them."""

    def departures(self) -> NDArray[np.int64]:
        """How often each rollout had been drawn that left since the last call."""

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything held, as plain arrays for `numpy.savez`."""

    def load_state_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `state_arrays`."""

    def __len__(self) -> int: ...


class WeightChannel(Protocol):
    """Carries weights from the trainer to the generators."""

    def publish(self, weights: Weights, version: int) -> None:
        """Offer new weights."""

    def latest(self) -> tuple[Weights, int]:
        """The newest weights offered and their version."""


class Backend(Protocol):
    """A policy on a task: makes the parts of a run."""

    @property
    def tasks(self) -> TaskStream:
        """Training and held-out prompts."""

    @property
    def scorer(self) -> Scorer:
        """The verifier."""

    def describe(self) -> str:
        """One line about the initial policy, for people."""

    def trainer(self) -> Trainer:
        """A trainer at the initial weights."""

    def generator(self) -> Generator:
        """A new engine with its own copy of the policy, in this process."""

    def concurrent_generator(self) -> Generator:
        """A new engine that can work while the trainer does."""
