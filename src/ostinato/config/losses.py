"""The losses that a recipe can name, and what each of them takes: names, ranges and advantage, without torch.

The functions stand in `ostinato.losses`, their meaning in `docs/losses.md`; `ostinato.losses.catalog` joins the two,
and a test holds this table against their signatures. Values that are not given are the function's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ostinato.errors import ConfigError
from ostinato.setting_checks import shown

ADVANTAGES = ("group_std", "group_mean", "shifted", "fixed_baseline")
"""Advantages by name, see `ostinato.loss_advantages`."""

SECTION_KEYS = ("clip_low", "clip_high")
"""Options that have a setting of their own in the recipe's `loss` section."""


SMALLEST, LARGEST = 1e-6, 1e12
"""Bounds of numbers that must be above 0, and of all numbers: beyond them lie typing errors and overflow."""


@dataclass(frozen=True, slots=True)
class Option:
    """What one option may be: a number from `low` to `high`, `count` numbers, or one of `choices`.

    `none`: "none" turns the option off. `required`: the loss has no value of its own.
    """

    low: float = 0.0
    high: float = LARGEST
    choices: tuple[str, ...] = ()
    count: int = 1
    none: bool = False
    required: bool = False

    def checked(self, value: Any, where: str) -> Any:
        """The value as its loss takes it. Raises `ConfigError` for an impossible one."""
        if self.none and value in (None, "none"):
            return None
        if self.choices:
            if value not in self.choices:
                raise ConfigError(f"{where} must be one of {', '.join(self.choices)}, got {shown(value)}")
            return value
        if self.count == 1:
            return self._number(value, where)
        if not isinstance(value, list | tuple) or len(value) != self.count:
            raise ConfigError(f"{where} must be a list of {self.count} numbers, got {shown(value)}")
        return tuple(self._number(item, where) for item in value)

    def _number(self, value: Any, where: str) -> float:
        if type(value) not in (int, float):
            raise ConfigError(f"{where} must be a number{' or none' if self.none else ''}, got {shown(value)}")
        if not self.low <= value <= self.high:
            raise ConfigError(f"{where} must be between {self.low:g} and {self.high:g}, got {shown(value)}")
        return float(value)


@dataclass(frozen=True, slots=True)
class LossSettings:
    """What a loss takes.

    `advantage`: the one it is meant for. `ordered`: pairs of options of which the first must not exceed the second;
    `own`: the loss's own values of such options. A dual clip must exceed the clip.
    """

    options: Mapping[str, Option]
    advantage: str = "group_std"
    ordered: tuple[tuple[str, str], ...] = ()
    own: Mapping[str, float] = field(default_factory=dict)

    def checked(self, loss: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options as the loss takes them. Raises `ConfigError` for one that is unknown, impossible or missing."""
        checked = {}
        for name, value in options.items():
            if name not in self.options:
                takes = ", ".join(self.options) or "no options"
                raise ConfigError(f"{_place(name)}: unknown option {shown(name)} of loss {loss!r}, which takes {takes}")
            checked[name] = self.options[name].checked(value, f"{_place(name)} of loss {loss!r}")
        for name, option in self.options.items():
            if option.required and name not in checked:
                raise ConfigError(f"{_place(name)} must be set: loss {loss!r} has no value of its own for it")
        for lower, upper in self.ordered:
            self._check_order(loss, lower, upper, {**self.own, **checked})
        return checked

    def _check_order(self, loss: str, lower: str, upper: str, values: Mapping[str, Any]) -> None:
        one, other = values.get(lower), values.get(upper)
        if one is None or other is None:
            return
        if one > other or (upper == "dual_clip" and one == other):
            relation = "above" if upper == "dual_clip" else "at least"
            raise ConfigError(f"loss {loss!r}: {upper} must be {relation} {lower} {one:g}, got {other:g}")


def loss_settings(name: str) -> LossSettings:
    """The row of a loss. Raises `ConfigError` for another name."""
    if name not in LOSSES:
        raise ConfigError(f"loss.name must be one of {', '.join(LOSSES)}, got {shown(name)}")
    return LOSSES[name]


def _place(option: str) -> str:
    return f"loss.{option}" if option in SECTION_KEYS else f"loss.options.{option}"


ABOVE_0 = Option(low=SMALLEST)
_REDUCTION = {"aggregation": Option(choices=("token_mean", "sequence_mean", "sequence_sum", "constant"))}
_CLIP = {"clip_low": Option(high=1), "clip_high": Option(low=1)}
_DUAL = {"dual_clip": Option(low=1, none=True)}
_LEVEL = {"level": Option(choices=("token", "sequence", "geometric"))}
_BOUND = {"low": Option(), "high": Option(), "bound": Option(choices=("cap", "mask"))}
_SURROGATE = {
    **_CLIP,
    **_LEVEL,
    **_DUAL,
    "sequence_mask_delta": Option(low=SMALLEST, none=True),
    **_REDUCTION,
}
_DUAL_ABOVE_CLIP = (("clip_high", "dual_clip"),)
_CAPPED = {"clip_low": Option(), "clip_high": ABOVE_0, **_REDUCTION}
_CAP_ORDER = (("clip_low", "clip_high"),)


def _surrogate(clip_high: float, *, dual_clip: float | None = None, advantage: str = "group_std") -> LossSettings:
    own = {"clip_high": clip_high} if dual_clip is None else {"clip_high": clip_high, "dual_clip": dual_clip}
    return LossSettings(_SURROGATE, advantage, _DUAL_ABOVE_CLIP, own)


LOSSES: Mapping[str, LossSettings] = {
    "grpo": LossSettings(_CLIP, own={"clip_low": 0.8, "clip_high": 1.2}),
    "asymre": LossSettings({}, "shifted"),
    "grpo_paper": _surrogate(1.2),
    "dapo": _surrogate(1.28),
    "dr_grpo": _surrogate(1.2, advantage="group_mean"),
    "gspo": _surrogate(1 + 4e-4),
    "deepseek_v32": _surrogate(1.2),
    "advantage_prioritized": _surrogate(1.28, dual_clip=10.0),
    "clipped_surrogate": _surrogate(1.2),
    "decoupled_ppo": LossSettings(
        {**_CLIP, **_DUAL, **_BOUND, **_LEVEL, **_REDUCTION},
        ordered=(*_DUAL_ABOVE_CLIP, ("low", "high")),
        own={"clip_high": 1.2, "low": 0.0, "high": math.inf},
    ),
    "centered_clip": LossSettings(
        {**_CLIP, **_DUAL, **_REDUCTION}, ordered=_DUAL_ABOVE_CLIP, own={"clip_high": 1.28, "dual_clip": 10.0}
    ),
    "sat": LossSettings(
        {
            **_CLIP,
            "kernel": Option(choices=("hill", "continuous_hill", "inverse_square")),
            "quantile": Option(high=1),
            **_LEVEL,
            **_REDUCTION,
        }
    ),
    "m2po": LossSettings(
        {"threshold": ABOVE_0, "variant": Option(choices=("mask", "cap", "released_cap")), **_REDUCTION}
    ),
    "sapo": LossSettings({"positive_temperature": ABOVE_0, "negative_temperature": ABOVE_0, **_REDUCTION}),
    "gipo": LossSettings({"sigma": Option(low=SMALLEST, required=True), **_REDUCTION}),
    "shaped_importance": LossSettings({"offset": ABOVE_0, **_REDUCTION}),
    "reinforce": LossSettings(_REDUCTION, "group_mean"),
    "truncated_importance": LossSettings(
        {**_BOUND, "high": Option(required=True), **_LEVEL, **_REDUCTION}, ordered=(("low", "high"),), own={"low": 0.0}
    ),
    "cispo": LossSettings(
        _CAPPED | {"clip_high": Option(low=SMALLEST, required=True)}, ordered=_CAP_ORDER, own={"clip_low": 0.0}
    ),
    "cispo_minimax": LossSettings(_CAPPED, ordered=_CAP_ORDER, own={"clip_low": 0.0, "clip_high": 1.2}),
    "cispo_scalerl": LossSettings(_CAPPED, ordered=_CAP_ORDER, own={"clip_low": 0.0, "clip_high": 5.0}),
    "topr": LossSettings({**_LEVEL, "negative_high": Option(), **_REDUCTION}, "group_mean"),
    "vespo": LossSettings({"positive": Option(count=2), "negative": Option(count=2), **_REDUCTION}),
    "kimi": LossSettings({"tau": ABOVE_0, **_LEVEL, **_REDUCTION}, "group_mean"),
    "trajectory_balance": LossSettings({"beta": Option(low=SMALLEST, required=True)}, "fixed_baseline"),
}
"""Every loss that a trainer can run by name."""
