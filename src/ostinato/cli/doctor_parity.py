"""Whether two log-probs of the same tokens are of the same policy: numbers, thresholds, verdicts."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ostinato.cli.doctor_finding import FAULT, OK, WARNING
from ostinato.errors import DataError
from ostinato.stats.off_policy import LOG_RATIO_BOUND

SAME_AS_OLD = 0.5
"""A generator that is at least this share of what the policy has moved away from the new one holds the old one."""

ARRIVED = 1e-3
"""At most this share away, it holds the new one, however far a low temperature spreads the rounding of its logits."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far log-probs may be apart, in nats: up to `ok` is rounding, above `fault` is another policy. `by`: which
    number of a `Parity` is judged."""

    precision: str
    by: str
    ok: float
    fault: float


EXACT = Tolerance("float32", "max_abs", ok=1e-4, fault=1e-2)
ROUNDED = Tolerance("bf16", "mean_abs", ok=3e-2, fault=1e-1)
"""A number of bf16 is off by up to 0.4 %, and so are logits of 5 to 10 by hundredths: few tokens may be far off, their
mean may not."""


@dataclass(frozen=True, slots=True)
class Parity:
    """Behavior log-probs against those recomputed, over `tokens`; x = recomputed - behavior, in nats.

    `max_abs`, `mean_abs`: of x. `ratio_mean`, `ratio_max`: of exp(x), what a loss would see in place of 1. `kl`: mean
    of exp(x) - 1 - x, the estimate k3 of KL(generator || trainer), nats a token. `not_finite`: tokens left out of all
    of these, since one of the two log-probs is no number. Source: http://joschu.net/blog/kl-approx.html.
    """

    tokens: int
    max_abs: float
    mean_abs: float
    ratio_mean: float
    ratio_max: float
    kl: float
    not_finite: int

    @classmethod
    def of(cls, behavior: NDArray[np.float32], recomputed: NDArray[np.float32]) -> Parity:
        """Both of shape (tokens,). Raises `DataError` for other shapes, or without a token."""
        if behavior.ndim != 1 or behavior.shape != recomputed.shape or not len(behavior):
            raise DataError(f"expected two log-probs of each token, got shapes {behavior.shape} and {recomputed.shape}")
        finite = np.isfinite(behavior) & np.isfinite(recomputed)
        x = recomputed[finite].astype(np.float64) - behavior[finite].astype(np.float64)
        if not len(x):
            return cls(len(behavior), 0.0, 0.0, 1.0, 1.0, 0.0, len(behavior))
        bounded = x.clip(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        ratio, size = np.exp(bounded), np.abs(x)
        kl = float((np.expm1(bounded) - bounded).mean())
        ratios = float(ratio.mean()), float(ratio.max())
        return cls(len(behavior), float(size.max()), float(size.mean()), *ratios, kl, int((~finite).sum()))

    def judged(self, tolerance: Tolerance) -> float:
        """The number that `tolerance` is about; infinite where there are tokens without one."""
        return math.inf if self.not_finite else float(getattr(self, tolerance.by))

    def level(self, tolerance: Tolerance) -> str:
        """OK, WARNING or FAULT."""
        size = self.judged(tolerance)
        return OK if size <= tolerance.ok else WARNING if size <= tolerance.fault else FAULT

    def shown(self, tolerance: Tolerance) -> str:
        """One line for a person."""
        lost = f", {self.not_finite} of them not finite" if self.not_finite else ""
        return (
            f"{self.tokens} tokens{lost}: log-probs {self.max_abs:.2g} apart at most, {self.mean_abs:.2g} on average; "
            f"ratio {self.ratio_mean:.6g} on average, {self.ratio_max:.4g} at most; KL {self.kl:.2g} nats a token "
            f"({tolerance.precision}: {tolerance.by} OK up to {tolerance.ok:g}, FAULT above {tolerance.fault:g})"
        )

    def figures(self) -> dict[str, float]:
        """Plain values by name."""
        return asdict(self)


def tolerance_of(*, rounded: bool) -> Tolerance:
    """`rounded`: generator or trainer computes in a 16-bit format."""
    return ROUNDED if rounded else EXACT


def cause_of(parity: Parity, raw: Parity, temperature: float, tolerance: Tolerance) -> str:
    """What to change where `parity` is no OK. `raw`: the same tokens recomputed at temperature 1."""
    if parity.not_finite:
        return "look for overflow: the model in float32 (model.bf16 = false, vllm.dtype = 'float32')"
    if temperature != 1 and raw.judged(tolerance) <= max(tolerance.ok, parity.judged(tolerance) / 10):
        return (
            "the generator's log-probs are those of temperature 1, not of sampling.temperature "
            f"{temperature:g}: it must return them after scaling, or set sampling.temperature = 1"
        )
    if parity.level(tolerance) == FAULT:
        return (
            "generator and trainer do not compute the same policy: compare model directory, versions and dtype of both;"
            " the loss would take this gap for staleness"
        )
    return (
        "rounding that a loss sees as off-policy: compute both in float32 (model.bf16 = false, vllm.dtype = 'float32'),"
        " or take a loss that bounds the ratio"
    )


@dataclass(frozen=True, slots=True)
class Transfer:
    """New weights in a generator. `moved`: old rollouts under the new policy; `after`: new rollouts under it;
    `versions`: that new rollouts carry; `version`: that was published."""

    moved: Parity
    after: Parity
    versions: tuple[int, ...]
    version: int

    def verdict(self, before: Parity, tolerance: Tolerance) -> tuple[str, str]:
        """(level, what was found). `before`: parity before the update, without which nothing can be told."""
        if before.level(tolerance) == FAULT:
            return WARNING, "log-probs did not agree before new weights came, so they cannot tell whether these arrived"
        if self.versions != (self.version,):
            return FAULT, f"rollouts carry the policy versions {list(self.versions)} after version {self.version} came"
        apart, moved = self.after.judged(tolerance), self.moved.judged(tolerance)
        level = OK if math.isfinite(apart) and apart <= ARRIVED * moved else self.after.level(tolerance)
        if level == FAULT and apart >= SAME_AS_OLD * moved:
            text = f"the generator still has the old weights: {apart:.2g} from the new policy, which moved {moved:.2g}"
            return FAULT, text
        if level == FAULT:
            return FAULT, f"the generator has neither the old nor the new weights: {apart:.2g} from the new policy"
        if level != before.level(tolerance) == OK:
            return WARNING, "log-probs agree less than before new weights came: some of these may not have arrived"
        if self.moved.level(tolerance) != FAULT:
            return WARNING, "the policy could not be moved far enough to tell old weights from new ones"
        return OK, f"the generator has the new weights and says version {self.version}"
