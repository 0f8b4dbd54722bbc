"""What a user says about replay: `ReplayConfig`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ostinato.buffer import Admission, Limiter, MaxUses, Oldest, ReplayBuffer, Retention, Sampler, Uniform
from ostinato.config import LossConfig
from ostinato.config.losses import ADVANTAGES, LOSSES
from ostinato.errors import ConfigError
from ostinato.loop.priorities import COLUMNS, SUMS
from ostinato.losses.catalog import Objective, objective
from ostinato.setting_checks import check_choice, check_finite, check_whole, shown

SETTINGS = tuple(f.name for f in fields(LossConfig) if f.name not in ("name", "options"))
"""Keys of `loss_options` that say which advantage or KL a loss gets, beside its own options."""

MOST_USES = 1_000_000
"""Bound of `uses`: TRL's data loader counts its micro-batches in machine integers."""


def check_rules(retention: Any, admission: Any) -> None:
    """Raise `ConfigError` unless both are lists; what stands in them the buffer checks."""
    for name, rules, example in (
        ("retention", retention, "MaxStaleness(100)"),
        ("admission", admission, "Informative()"),
    ):
        if not isinstance(rules, Sequence):
            raise ConfigError(f"{name} is {shown(rules)}, expected a list of rules: [{example}]")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayConfig:
    """How a TRL trainer replays.

    `capacity`: rollouts held at most, over all processes. `uses`: how often each rollout is trained on, on average; TRL
    then generates `uses` times less often. Capacity 0, or uses 1, is no replay: the trainer is TRL's, bit for bit.

    `sampler`, `retention`, `limiter`, `admission`, `capacity_bytes` (over all processes): as of `ReplayBuffer`; None
    and empty leave them to `buffer`, a function of the capacity such as a preset of `ostinato.buffer`; without either,
    draws are uniform, no rollout twice in a batch. Parts are copied: one configuration serves many trainers.
    `FreshAnchored()` trains on every new rollout first and replays the rest: with `steps_per_generation` half of
    `gradient_accumulation_steps` and 2 uses, half of each batch is new. `Groups()` draws whole groups.

    `priority`: written back by rollout id at each optimizer step for the rollouts of its batch, by the names of
    `ostinato.loop.priorities`; for `Prioritized()`. `loss`: a name of `ostinato.config.losses.LOSSES` in place of TRL's
    `loss_type`; `loss_options`: its options, and `advantage`, `shift`, `baseline`, `kl_estimator`. The weight of the KL
    to the reference is TRL's `beta`, which is also the temperature of `trajectory_balance`. With vLLM the policy that
    generated, in a loss of ours, is the engine's, so that no other correction is applied.

    Raises `ConfigError` for what no trainer could use; what contradicts the `GRPOConfig` is refused by the trainer.
    """

    capacity: int
    uses: int = 3
    sampler: Sampler | None = None
    retention: Sequence[Retention] = ()
    limiter: Limiter | None = None
    admission: Sequence[Admission] = ()
    capacity_bytes: int | None = None
    buffer: Callable[..., ReplayBuffer] = ReplayBuffer
    priority: str | None = None
    loss: str | None = None
    loss_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_whole("capacity", self.capacity, least=0)
        check_whole("uses", self.uses, least=1, most=MOST_USES)
        if self.capacity_bytes is not None:
            check_whole("capacity_bytes", self.capacity_bytes, least=1)
        check_choice("priority", self.priority, (None, *COLUMNS, *SUMS))
        check_rules(self.retention, self.admission)
        self._check_loss()
        if not callable(self.buffer):
            raise ConfigError(f"buffer is {shown(self.buffer)}, expected a function of the capacity such as paper_fifo")
        if self.capacity:
            made = self.make_buffer(processes=1, rank=0)
            if self.priority is not None and self.replays and isinstance(made.sampler, Uniform):
                raise ConfigError(
                    f"priority {self.priority!r} would be written and never read: draws are uniform; "
                    "set sampler=Prioritized(), or leave priority out"
                )

    def _check_loss(self) -> None:
        check_choice("loss", self.loss, (None, *LOSSES))
        if not isinstance(self.loss_options, Mapping):
            raise ConfigError(f"loss_options is {shown(self.loss_options)}, expected a dict of options by name")
        if self.loss is None and self.loss_options:
            raise ConfigError(f"loss_options {shown(dict(self.loss_options))} belong to no loss: give loss='...' too")
        if "kl_coefficient" in self.loss_options:
            raise ConfigError("loss_options: the weight of the KL to the reference is GRPOConfig(beta=...)")
        for name, choices in (("advantage", ("default", *ADVANTAGES)), ("kl_estimator", ("k1", "k2", "k3"))):
            if name in self.loss_options:
                check_choice(f"loss_options: {name}", self.loss_options[name], choices)
        for name in ("shift", "baseline"):
            if name in self.loss_options:
                check_finite(f"loss_options: {name}", self.loss_options[name])

    @property
    def replays(self) -> bool:
        """Whether any rollout is trained on more than once."""
        return self.capacity > 0 and self.uses > 1

    @property
    def draws(self) -> bool:
        """Whether batches come from a buffer: with replay, and without it where a loss of ours reads the rewards."""
        return self.replays or self.loss is not None

    @property
    def generation_uses(self) -> int:
        """How often TRL goes through the data loader's batch before it generates again: its `num_iterations`."""
        return self.uses if self.replays else 1

    def make_buffer(self, *, processes: int, rank: int, generation_rows: int = 1) -> ReplayBuffer:
        """The buffer of one process: its share of the capacity; rollout ids are unique over all of them.

        Without replay a queue of one generation, `generation_rows`, each used once in the order it came.
        """
        numbering: dict[str, Any] = {"first_id": rank, "id_stride": processes}
        if not self.replays:
            return ReplayBuffer(generation_rows, sampler=Oldest(), retention=[MaxUses(1)], **numbering)
        sampler = Uniform(replacement=False) if self.sampler is None and self.buffer is ReplayBuffer else self.sampler
        given: dict[str, Any] = {"sampler": sampler, "limiter": self.limiter}
        given |= {"retention": tuple(self.retention), "admission": tuple(self.admission)}
        parts = {name: copy.deepcopy(part) for name, part in given.items() if part is not None and part != ()}
        if self.capacity_bytes is not None:
            parts["capacity_bytes"] = max(self.capacity_bytes // processes, 1)
        try:
            made = self.buffer(max(self.capacity // processes, 1), **parts, **numbering)
        except TypeError as error:  # a preset that has the part already
            raise ConfigError(f"buffer: {error}") from None
        if not isinstance(made, ReplayBuffer):
            raise ConfigError(f"buffer gave {shown(made)}, expected a ReplayBuffer")
        return made

    def make_objective(self, beta: float) -> Objective | None:
        """The chosen loss with TRL's `beta`; None: TRL's own. Raises `ConfigError`."""
        if self.loss is None:
            return None
        options = {name: value for name, value in self.loss_options.items() if name not in SETTINGS}
        settings = {name: value for name, value in self.loss_options.items() if name in SETTINGS}
        if self.loss == "trajectory_balance":
            if "beta" in options:
                raise ConfigError("loss_options: beta of trajectory_balance is GRPOConfig(beta=...)")
            if not beta:
                raise ConfigError("loss 'trajectory_balance' needs a reference: set GRPOConfig(beta=...) above 0")
            return objective(self.loss, options | {"beta": beta}, **settings)
        return objective(self.loss, options, kl_coefficient=beta, **settings)
