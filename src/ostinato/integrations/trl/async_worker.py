"""Replay for TRL's asynchronous GRPO: a rollout worker around another one, by the protocol that TRL offers for it."""

from __future__ import annotations

import inspect
import queue
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.buffer import (
    Admission,
    FiniteLogprobs,
    Limiter,
    MaxStaleness,
    MaxUses,
    MinSize,
    NeverUsedFirst,
    ReplayBuffer,
    Retention,
    Sampler,
)
from ostinato.errors import ConfigError, RunError
from ostinato.integrations.trl.async_checkpoint import ReplayCheckpoints, load_state, save_state
from ostinato.integrations.trl.async_queue import ReplayQueue
from ostinato.integrations.trl.card import say_on_cards
from ostinato.integrations.trl.config import check_rules
from ostinato.setting_checks import check_whole

ARGUMENTS = (
    "max_staleness",
    "num_generations",
    "weight_sync_steps",
    "heartbeat_stale_after_s",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "world_size",
    "report_to",
)
"""What is read of an `AsyncGRPOConfig`."""

STOP_S, STOP_DEAD_S = 60.0, 5.0
"""How long to wait for a worker to stop: one that lives, which may take 25 s in TRL 1.16, and one that has died."""

MEMBERS = ("rollout_buffer", "metrics_queue", "start", "stop", "update_model_version", "check_health")
"""TRL's `RolloutWorkerProtocol`."""


class ReplayRolloutWorker:
    """A rollout worker whose queue samples from a replay buffer that `worker` fills.

    `worker`: TRL's `AsyncRolloutWorker` or anything else that satisfies `RolloutWorkerProtocol`. `args`: the
    `AsyncGRPOConfig` that the trainer gets. Give the result to `AsyncGRPOTrainer(rollout_worker=...)` and
    `callback()` to its `callbacks`, or let `add_replay` do both.

    Generation runs free, as in the paper (arXiv 2604.08706): what arrives enters, beyond `capacity` rollouts (and
    `capacity_bytes`) the oldest leave. A rollout is drawn at most `uses` times, and leaves when its weights are more
    than `max_staleness` model versions old (age k stays, k + 1 goes; left out: the trainer's own bound, which is never
    met then). Draws are of one optimizer step's rollouts, none twice in a draw, and wait for `min_size` of them (left
    out: two steps' worth, so that a rollout's uses are spread over steps). `sampler` (left out: never used ones first),
    `limiter` (instead of `min_size`), `retention` and `admission` are those of `ReplayBuffer`. A rollout with
    a log-prob that is not finite is refused and counted.

    Raises `ConfigError` for settings that cannot work.
    """

    def __init__(
        self,
        worker: Any,
        args: Any,
        *,
        capacity: int = 2048,
        uses: int = 3,
        max_staleness: int | None = None,
        min_size: int | None = None,
        capacity_bytes: int | None = None,
        sampler: Sampler | None = None,
        limiter: Limiter | None = None,
        retention: Sequence[Retention] = (),
        admission: Sequence[Admission] = (),
        seed: int = 0,
    ) -> None:
        _check_worker(worker)
        check_rules(retention, admission)
        bounds = _bounds(args, capacity=capacity, uses=uses, max_staleness=max_staleness, min_size=min_size)
        if limiter is not None and min_size is not None:
            raise ConfigError(
                "give min_size or a limiter, not both: MinSize(min_size) is the limiter when none is given"
            )
        self.worker = worker
        self.max_staleness = bounds.max_staleness
        self.buffer = ReplayBuffer(
            capacity,
            capacity_bytes=capacity_bytes,
            sampler=NeverUsedFirst() if sampler is None else sampler,
            limiter=MinSize(bounds.min_size) if limiter is None else limiter,
            retention=[MaxUses(uses), MaxStaleness(bounds.max_staleness), *retention],
            admission=[FiniteLogprobs(), *admission],
        )
        self._stale_after_s, self._dead = float(args.heartbeat_stale_after_s), False
        self.rollout_buffer = ReplayQueue(
            worker.rollout_buffer,
            self.buffer,
            batch_size=bounds.batch_size,
            max_staleness=bounds.max_staleness,
            group_size=args.num_generations,
            keep_messages="trackio" in args.report_to,
            rng=np.random.default_rng(check_whole("seed", seed, least=0)),
            check=lambda: self.check_health(self._stale_after_s),
        )
        self.metrics_queue = _Metrics(self.rollout_buffer.metrics, worker.metrics_queue)

    # ---------------------------------------------------------------- the protocol

    def start(self) -> None:
        """Start the worker inside."""
        self.worker.start()

    def stop(self) -> None:
        """Stop the worker inside; what is held stays.

        Waits within bounds: the `stop` of TRL's worker sets an event that its process waits for, and never comes back
        when that process has died.
        """
        wait_s = STOP_DEAD_S if self._dead else STOP_S
        thread = threading.Thread(target=self.worker.stop, name="stop-rollout-worker", daemon=True)
        thread.start()
        thread.join(wait_s)
        if thread.is_alive():
            warnings.warn(f"the rollout worker did not stop within {wait_s:g} s: it is left alone", stacklevel=2)

    def update_model_version(self, model_version: int) -> None:
        """Tell the worker inside, and let go of what is too old now."""
        self.worker.update_model_version(model_version)
        self.rollout_buffer.set_version(model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise `RunError` when the worker inside says that it has died or hangs. Asked before every draw as well.

        Without new rollouts training would go on with old ones for a while, and then wait.
        """
        try:
            self.worker.check_health(stale_after_s)
        except Exception as error:
            self._dead = True
            cause = error.__cause__ or error
            raise RunError(
                f"the rollout worker brings no more rollouts: {' '.join(str(cause).split())}; {len(self.buffer)} are "
                "held. Resume from the last checkpoint once it runs again"
            ) from error

    # ---------------------------------------------------------------- checkpoints

    def callback(self) -> ReplayCheckpoints:
        """A `TrainerCallback` that saves and restores what is held with the trainer's checkpoints."""
        return ReplayCheckpoints(self)

    def save(self, directory: str | Path, *, weights_ahead: bool = False) -> None:
        """Write everything to `directory`, whole or not at all. `weights_ahead`: of those published."""
        save_state(self.rollout_buffer, Path(directory), self.worker, weights_ahead=weights_ahead)

    def load(self, directory: str | Path) -> None:
        """Inverse of `save`, before training starts. Raises `CheckpointError`, and changes nothing, when damaged."""
        load_state(self.rollout_buffer, Path(directory), self.worker)


def add_replay(trainer: Any, **settings: Any) -> ReplayRolloutWorker | None:
    """Put a replay buffer between an `AsyncGRPOTrainer` and its rollout worker; before `train()`, on every rank.

    `settings`: those of `ReplayRolloutWorker`. Returns the new worker, None on ranks other than the first, which have
    none. Raises `ConfigError` for settings that cannot work and for a trainer that already replays.
    """
    if not hasattr(trainer, "rollout_worker") or not hasattr(trainer, "rollout_queue"):
        raise ConfigError(
            f"add_replay takes TRL's AsyncGRPOTrainer, got {type(trainer).__name__}; for GRPOTrainer there is "
            "ReplayGRPOTrainer"
        )
    inner = trainer.rollout_worker
    if inner is None:
        return None
    if isinstance(inner, ReplayRolloutWorker):
        raise ConfigError("this trainer already has a replay buffer: call add_replay once")
    worker = ReplayRolloutWorker(inner, trainer.args, **settings)
    trainer.rollout_worker, trainer.rollout_queue = worker, worker.rollout_buffer
    given = inspect.signature(ReplayRolloutWorker).bind(inner, trainer.args, **settings)
    given.apply_defaults()
    say_on_cards(trainer, dict(list(given.arguments.items())[2:]))
    # Before TRL's own callback, which publishes the weights and starts the worker as training begins.
    trainer.callback_handler.callbacks.insert(0, worker.callback())
    return worker


class _Metrics(queue.Queue[Any]):
    """The metrics of the replay queue, then those of the worker inside: what `get_nowait` of either gives."""

    def __init__(self, own: queue.Queue[Any], inner: Any) -> None:
        super().__init__()
        self._own, self._inner = own, inner

    def get_nowait(self) -> Any:
        try:
            return self._own.get_nowait()
        except queue.Empty:
            return self._inner.get_nowait()


@dataclass(frozen=True, slots=True)
class _Bounds:
    batch_size: int
    max_staleness: int
    min_size: int


def _check_worker(worker: Any) -> None:
    missing = [name for name in MEMBERS if not hasattr(worker, name)]
    if missing:
        raise ConfigError(
            f"{type(worker).__name__} has no {missing[0]}: expected a rollout worker as TRL's AsyncRolloutWorker is one"
        )
    if isinstance(worker, ReplayRolloutWorker):
        raise ConfigError("the worker already replays: give ReplayRolloutWorker the one inside")


def _bounds(args: Any, *, capacity: Any, uses: Any, max_staleness: Any, min_size: Any) -> _Bounds:
    for name in ARGUMENTS:
        if not hasattr(args, name):
            raise ConfigError(f"args must be the trainer's AsyncGRPOConfig, {type(args).__name__} has no {name}")
    allowed = args.max_staleness
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    capacity, uses = check_whole("capacity", capacity, least=1), check_whole("uses", uses, least=1)
    bound = allowed if max_staleness is None else check_whole("max_staleness", max_staleness, least=0)
    if bound > allowed:
        raise ConfigError(
            f"max_staleness {bound} is above the trainer's {allowed}: it would drop what is drawn and draw again "
            f"without end; set AsyncGRPOConfig(max_staleness={bound})"
        )
    if capacity < batch:
        raise ConfigError(
            f"capacity {capacity} is below the {batch} rollouts of an optimizer step "
            "(per_device_train_batch_size * gradient_accumulation_steps * processes): no batch would ever be there"
        )
    reach = (bound + 1) * args.weight_sync_steps
    if uses > reach:
        raise ConfigError(
            f"uses {uses} is never reached: within max_staleness {bound} there are {reach} optimizer steps; "
            f"raise max_staleness to {-(-uses // args.weight_sync_steps) - 1}, or lower uses"
        )
    least = min(2 * batch, capacity) if min_size is None else check_whole("min_size", min_size, least=0)
    return _Bounds(batch, bound, least)
