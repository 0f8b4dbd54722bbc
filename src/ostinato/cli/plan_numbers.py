"""A plan as one JSON object; docs/plan.md lists the keys."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from ostinato.cli.plan_facts import Advice, Known
from ostinato.theory import Design, Plan, Workload, best_split_without_buffer, optimum


def plan_numbers(advice: Advice) -> dict[str, Any]:
    """Every number of the plan; one that is infinite is None."""
    plan = advice.plan
    numbers = {
        **chosen(plan),
        "batch_size": advice.limits.batch_size,
        "uses_per_rollout": plan.optimum.uses_per_rollout,
        "staleness_horizon": plan.optimum.staleness_horizon,
        "saving_to_accuracy": plan.ideal_saving_to_accuracy,
        "boundary": plan.optimum.boundary,
        "objective": plan.optimum.objective,
        "objective_without_buffer": plan.workload.objective_without_buffer(),
        "no_buffer_split": {
            "generators": plan.without_buffer[0],
            "trainers": plan.without_buffer[1],
            "named": advice.named_split,
            "saving_per_update": plan.saving_against_split if plan.replays else None,
        },
        "design": _design(plan.design),
        "runners_up": [_design(design) for design in plan.designs[1:]],
        "mu": _known(advice.mu),
        "alpha": None if advice.alpha is None else _known(advice.alpha),
        "rho": _known(advice.rho),
        "rho_limit": None if advice.facts.rho_limit is None else _known(advice.facts.rho_limit),
        "rho_break_even": advice.break_even,
        "over_rho": [{"rho": rho, **_other(plan)} for rho, plan in advice.over_rho.items()],
        "over_alpha": [{"alpha": alpha, **_other(plan)} for alpha, plan in advice.over_alpha.items()],
        "variance_by_age": [asdict(row) for row in advice.facts.ages],
        "measured_law": _measured_law(advice),
        "measured": advice.facts.measured,
        "notes": list(advice.facts.notes),
    }
    return {key: finite(value) for key, value in numbers.items()}


def chosen(plan: Plan) -> dict[str, Any]:
    """What to set: the best design, or none where no buffer is better."""
    design = plan.design
    if plan.replays:
        return {
            "recommendation": "replay",
            "generators": design.generators or None,
            "trainers": design.trainers or None,
            "capacity": design.capacity,
            "samples_per_insert": None if design.generators else design.uses_per_rollout,
            "gamma": design.gamma,
            "saving_per_update": design.saving_per_update,
        }
    generators, trainers = best_split_without_buffer(plan.workload.mu, plan.gpus)
    return {
        "recommendation": "no buffer",
        "generators": None if plan.in_turns else generators,
        "trainers": None if plan.in_turns else trainers,
        "capacity": None,
        "samples_per_insert": None,
        "gamma": 1.0,
        "saving_per_update": 0.0,
    }


def _design(design: Design) -> dict[str, Any]:
    return asdict(design) | {"saving_per_update": design.saving_per_update}


def _other(plan: Plan) -> dict[str, Any]:
    return {
        "uses_per_rollout": plan.optimum.uses_per_rollout,
        "staleness_horizon": plan.optimum.staleness_horizon,
        **chosen(plan),
        "saving_to_accuracy": plan.design.saving_to_accuracy,
    }


def _known(known: Known) -> dict[str, Any]:
    return asdict(known)


def _measured_law(advice: Advice) -> dict[str, Any] | None:
    """The optimum under the measured ages themselves, beside that of the fitted power law."""
    if advice.facts.variance is None or advice.plan.workload.variance is advice.facts.variance:
        return None
    best = optimum(Workload(advice.mu.value, advice.rho.value, advice.facts.variance))
    return asdict(best)


def finite(value: Any) -> Any:
    """Infinity and NaN, which JSON lacks, as None."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
