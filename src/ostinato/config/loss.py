"""The section `loss` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ostinato.config.losses import ADVANTAGES, LOSSES, SECTION_KEYS, loss_settings
from ostinato.config.setting import described, setting
from ostinato.errors import ConfigError

DEFAULT_SHIFT = -0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig:
    """The objective. "none" leaves a value to the loss; one that the loss does not use is refused."""

    name: str = setting("grpo", f"one of {', '.join(LOSSES)}", choices=tuple(LOSSES))
    advantage: str = setting(
        "default", f"the loss's own, or one of {', '.join(ADVANTAGES)}", choices=("default", *ADVANTAGES)
    )
    clip_low: float | None = setting(
        None, "losses with a clip: lower bound on the ratio, absolute (grpo: 0.8)", low=0, high=1
    )
    clip_high: float | None = setting(None, "losses with a clip: upper bound on the ratio, absolute (grpo: 1.2)", low=0)
    shift: float | None = setting(
        None, "advantage shifted (asymre): added to the group mean; -0.05 times the reward range (-0.05)", high=1e9
    )
    baseline: float | None = setting(
        None, "advantage fixed_baseline: subtracted from the reward (0)", low=-1e9, high=1e9
    )
    kl_coefficient: float = setting(0.0, "weight of the KL to the policy that the run started from; 0: none", low=0)
    kl_estimator: str | None = setting(
        None, "kl_coefficient above 0: k1, k2 or k3 (k3), each times the ratio", choices=("k1", "k2", "k3")
    )
    options: dict[str, Any] = field(
        default_factory=dict, metadata=described("further options of the loss, e.g. dual_clip = 3.0")
    )

    def __post_init__(self) -> None:
        self.arguments()
        for name, value, user in (
            ("shift", self.shift, "shifted"),
            ("baseline", self.baseline, "fixed_baseline"),
        ):
            if value is not None and self.advantage_kind != user:
                raise ConfigError(f"loss.{name} is for advantage {user}, loss {self.name!r} uses {self.advantage_kind}")
        if not self.kl_coefficient >= 0:
            raise ConfigError(f"loss.kl_coefficient must be at least 0, got {self.kl_coefficient}")
        if self.kl_estimator is not None and self.kl_coefficient == 0:
            raise ConfigError(f"loss.kl_estimator {self.kl_estimator} needs loss.kl_coefficient above 0")

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of the loss that are set here, `clip_low` and `clip_high` among them.

        Raises `ConfigError` for one that is unknown, impossible or missing.
        """
        double = [name for name in SECTION_KEYS if name in self.options]
        if double:
            raise ConfigError(f"loss.options: set loss.{double[0]} instead of loss.options.{double[0]}")
        given = {name: value for name in SECTION_KEYS if (value := getattr(self, name)) is not None}
        return loss_settings(self.name).checked(self.name, given | self.options)

    @property
    def advantage_kind(self) -> str:
        """The advantage by name, the loss's own where none is chosen; see `ostinato.loss_advantages`."""
        return loss_settings(self.name).advantage if self.advantage == "default" else self.advantage

    @property
    def advantage_options(self) -> dict[str, float]:
        """`shift` and `baseline` as numbers."""
        return {
            "shift": DEFAULT_SHIFT if self.shift is None else self.shift,
            "baseline": 0.0 if self.baseline is None else self.baseline,
        }
