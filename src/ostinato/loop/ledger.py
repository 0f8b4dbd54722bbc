"""The counters of a run: what was generated, trained and paid, in rollouts, seconds and compute."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ostinato.theory.accounting import compute_units, measured_mu


@dataclass(slots=True)
class Ledger:
    """Counts since the beginning of the run.

    Rollouts: `generated` (entered the store), `trained` (pushed through backward, repeats counted), `groups`
    (started, the cursor into the task), `score_timeouts` and `score_crashes` (have the reward 0 because their scoring
    had to be ended). Real seconds: `busy_generate_s`, `busy_score_s`, `busy_train_s`, and `switch_s` of the `switches`
    between generating and training on the clock of turns. `train_step`: optimizer steps.
    """

    train_step: int = 0
    groups: int = 0
    generated: int = 0
    trained: int = 0
    busy_generate_s: float = 0.0
    busy_score_s: float = 0.0
    busy_train_s: float = 0.0
    score_timeouts: int = 0
    score_crashes: int = 0
    switches: int = 0
    switch_s: float = 0.0

    def compute(self, *, mu: float, batch_size: int) -> float:
        """Active time of generators and trainers in baseline updates (`theory.compute_units`)."""
        return compute_units(self.generated, self.trained, mu=mu, batch_size=batch_size)

    def mu_measured(self) -> float | None:
        """Cost ratio measured from busy seconds; None before anything was trained."""
        if not min(self.trained, self.generated, self.busy_train_s, self.busy_generate_s) > 0:
            return None
        return measured_mu(self.busy_generate_s, self.generated, self.busy_train_s, self.trained)

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Ledger:
        """Inverse of `state_dict`."""
        return cls(**state)
