"""Multi-step off-policy corrections, for trainers that have a critic.

One trajectory, L steps: r_t the reward, V_t the value of its state, V_{t+1} that of the next (0 at the end of an
episode), ratio_t = pi(a_t) / mu(a_t). All arrays float64 (L,).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError


class Trace(NamedTuple):
    """`targets`: what the values should become. `advantages`: what multiplies grad log pi. Both float64 (L,)."""

    targets: NDArray[np.float64]
    advantages: NDArray[np.float64]


def vtrace(
    ratios_L: NDArray[np.float64],
    rewards_L: NDArray[np.float64],
    values_L: NDArray[np.float64],
    next_values_L: NDArray[np.float64],
    *,
    discount: float = 1.0,
    trace: float = 1.0,
    ratio_bound: float = 1.0,
) -> Trace:
    """V-trace targets and policy-gradient advantages.

        rho_t = min(ratio_bound, ratio_t)      c_t = trace min(1, ratio_t)
        delta_t = rho_t (r_t + discount V_{t+1} - V_t)
        v_t = V_t + delta_t + discount c_t (v_{t+1} - V_{t+1})
        advantage_t = rho_t (r_t + discount v_{t+1} - V_t)

    and v_{t+1} = V_{t+1} after the last step. Raises `DataError` for shapes that differ. Source: arXiv 1802.01561.
    """
    _check(ratios_L, rewards_L, values_L, next_values_L)
    rho_L = np.minimum(ratio_bound, ratios_L)
    delta_L = rho_L * (rewards_L + discount * next_values_L - values_L)
    targets_L = values_L + _accumulated(delta_L, discount * trace * np.minimum(1.0, ratios_L))
    following_L = np.append(targets_L[1:], next_values_L[-1:])
    return Trace(targets_L, rho_L * (rewards_L + discount * following_L - values_L))


def retrace(
    ratios_L: NDArray[np.float64],
    rewards_L: NDArray[np.float64],
    values_L: NDArray[np.float64],
    next_values_L: NDArray[np.float64],
    *,
    discount: float = 1.0,
    trace: float = 1.0,
) -> NDArray[np.float64]:
    """Retrace targets of the action values: float64 (L,).

        delta_t = r_t + discount E_pi Q_{t+1} - Q_t
        target_t = Q_t + delta_t + discount c_{t+1} (target_{t+1} - Q_{t+1}),      c_t = trace min(1, ratio_t)

    `values_L`: Q_t of the action taken; `next_values_L`: E_pi Q_{t+1}. The ratio of a step's own action does not enter
    its target. Raises `DataError` for shapes that differ. Source: arXiv 1606.02647.
    """
    _check(ratios_L, rewards_L, values_L, next_values_L)
    following_L = np.append(discount * trace * np.minimum(1.0, ratios_L[1:]), np.zeros(min(len(ratios_L), 1)))
    return values_L + _accumulated(rewards_L + discount * next_values_L - values_L, following_L)


def _accumulated(delta_L: NDArray[np.float64], factor_L: NDArray[np.float64]) -> NDArray[np.float64]:
    """error_t = delta_t + factor_t error_{t+1}, with 0 after the last step."""
    errors_L, error = np.empty(len(delta_L)), 0.0
    for t in range(len(delta_L) - 1, -1, -1):
        error = float(delta_L[t] + factor_L[t] * error)
        errors_L[t] = error
    return errors_L


def _check(ratios_L: NDArray[np.float64], *others_L: NDArray[np.float64]) -> None:
    shapes = [values.shape for values in (ratios_L, *others_L)]
    if ratios_L.ndim != 1 or len(set(shapes)) > 1:
        raise DataError(f"ratios, rewards, values and next values have shapes {shapes}, expected (L,) each")
