"""A plan for a person: what to set, why, what it costs, what else there is, when not to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ostinato.cli.plan_facts import Advice, Known
from ostinato.cli.plan_numbers import chosen
from ostinato.theory import Design, Plan

RUNNERS_UP = 7

BOUNDARIES = {
    "": "",
    "on_policy": " The best is the edge x = 1: age costs so much that nothing should be kept.",
    "whole_buffer": " The best is the edge x = y: a batch as large as the buffer.",
    "keep_everything": " Age costs nothing under this variance, so the best is to keep everything that fits.",
    "end_of_data": " The best is the oldest age that was measured: older ones may be better still.",
}

ASSUMPTIONS = (
    "the cost is active GPU time, a task split over K GPUs costs nothing extra, no side waits",
    "draws are uniform from the newest N rollouts; the learning rate suits the batch, its own best for every design",
    "compute is large, so that variance decides; the bias of old rollouts, evaluation and scoring are left out",
    "the workload stays as it is: mu, variance and correlation move in a real run",
)
AGAINST = (
    "J >= J0: age costs too much (a large alpha), rollouts are too alike (rho) or generating is cheap (mu)",
    "waiting time is what you pay and the generators cannot feed the trainers with enough different prompts",
    "the run is so short that N rollouts are hardly generated in it",
)


def plan_lines(advice: Advice) -> Iterator[str]:
    """All lines of `ostinato plan`."""
    plan, limits = advice.plan, advice.limits
    turns = "the same GPUs in turns" if plan.in_turns else f"{plan.gpus} GPU{'s' * (plan.gpus > 1)}"
    yield f"Plan for {turns}, batches of {limits.batch_size}, groups of {limits.group_size}"
    yield from _workload(advice)
    yield ""
    yield from _settings(plan)
    yield ""
    yield from _reasons(plan)
    yield ""
    yield from _costs(advice)
    yield ""
    yield from _table(plan.designs[: RUNNERS_UP + 1])
    for name, plans in (("rho", advice.over_rho), ("alpha", advice.over_alpha)):
        if plans:
            yield ""
            yield from _over(name, plans)
    yield ""
    yield "Assumed"
    yield from _bullets([*ASSUMPTIONS, *advice.facts.notes])
    yield "Do not use replay when"
    yield from _bullets(AGAINST)


def _workload(advice: Advice) -> Iterator[str]:
    yield _known_line("mu", advice.mu)
    if advice.alpha is not None:
        yield _known_line("alpha", advice.alpha)
    else:
        yield f"  alpha  none: variance given by ages, up to {advice.plan.workload.variance.longest - 1:g} train steps"
    yield _known_line("rho", advice.rho)
    if advice.over_rho:
        if advice.facts.rho_limit is None:
            yield "         nothing here tells rho: within [0, 1]; taken is the value whose plan loses least"
        else:
            yield f"         a run bounds rho from above only: {_shown(advice.facts.rho_limit)}"
        yield f"         {_turning(advice)}"
    for name, spread in advice.facts.measured.items():
        if isinstance(spread, dict):
            yield f"  {name}  {spread['median']:.3g} ({spread['low']:.3g} to {spread['high']:.3g})"
    if advice.facts.ages:
        yield "  second moment by age: " + ", ".join(f"{r.age:.3g}: {r.second_moment:.4g}" for r in advice.facts.ages)
        oldest = advice.facts.ages[-1].age
        if advice.plan.design.staleness_horizon > oldest + 1:
            yield f"  the plan goes beyond the ages of this run (about {oldest:.3g}): the power law is extended there"


def _turning(advice: Advice) -> str:
    if advice.break_even is not None:
        return f"replay pays up to rho of about {advice.break_even:.2g}, beyond it costs more than no buffer"
    pays = [plan.replays for plan in advice.over_rho.values()]
    return f"replay {'pays' if all(pays) else 'never pays'} over the whole range" if len(set(pays)) == 1 else ""


def _settings(plan: Plan) -> Iterator[str]:
    setting = chosen(plan)
    if not plan.replays:
        yield "No buffer: the best design with one costs more than none, J >= J0."
        if plan.in_turns:
            yield "Set  loop.clock turns  buffer.kind queue"
        else:
            split = f"loop.generators {setting['generators']}  loop.trainers {setting['trainers']}"
            yield f"Set  {split}  buffer.kind queue"
        return
    split = (
        f"loop.clock turns  buffer.samples_per_insert {plan.design.uses_per_rollout:g}"
        if plan.in_turns
        else f"loop.generators {setting['generators']}  loop.trainers {setting['trainers']}"
    )
    yield f"Set  {split}  buffer.capacity {setting['capacity']}  loop.batch_size {plan.design.batch_size}"


def _reasons(plan: Plan) -> Iterator[str]:
    best, design = plan.optimum, plan.design
    yield (
        f"Why  the best is {best.uses_per_rollout:.4g} uses a rollout and a staleness horizon of"
        f" {best.staleness_horizon:.4g} train steps." + BOUNDARIES[best.boundary]
    )
    yield (
        f"     The nearest that can be built has {design.uses_per_rollout:.4g} uses and"
        f" {design.staleness_horizon:.4g} steps."
    )


def _costs(advice: Advice) -> Iterator[str]:
    plan = advice.plan
    work, best = plan.workload, plan.optimum
    if plan.replays:
        ratio = "(1 + mu / uses)" if plan.in_turns else "(1 + W/T)"
        yield f"Cost an update        gamma = {ratio} / (1 + mu) = {plan.design.gamma:.3f}"
        yield f"Saving an update      {_percent(plan.design.saving_per_update)} against the best without a buffer"
        if advice.named_split or not plan.in_turns:
            generators, trainers = plan.without_buffer
            whose = "the split named" if advice.named_split else "the best of these GPUs"
            yield (
                f"                      {_percent(plan.saving_against_split)} of GPU time against W, T ="
                f" {generators}, {trainers} without a buffer, {whose}, waiting included"
            )
    yield (
        f"Saving to accuracy    1 - J/J0 = {_percent(plan.ideal_saving_to_accuracy)} at the best,"
        f" {_percent(plan.design.saving_to_accuracy)} by this design"
    )
    yield "                      J(x, y) = sbar2(x) (1 + y/mu) (1/y + 1/x + rho), x = N/R, y = B/R"
    yield (
        f"                      J = {best.objective:.6g}, J0 = sbar2(1) (1 + 1/mu) (1 + rho)"
        f" = {work.objective_without_buffer():.6g}"
    )


def _table(designs: Sequence[Design]) -> Iterator[str]:
    yield "Designs      W    T        N    uses  horizon  gamma  an update  to accuracy  cost"
    for rank, design in enumerate(designs):
        w, t = (design.generators or "-", design.trainers or "-")
        yield (
            f"  {'best' if rank == 0 else f'no. {rank + 1}':<7} {w:>4} {t:>4} {design.capacity:>8}"
            f" {design.uses_per_rollout:>7.2f} {design.staleness_horizon:>8.1f} {design.gamma:>6.3f}"
            f" {_percent(design.saving_per_update):>10} {_percent(design.saving_to_accuracy):>12}"
            f"  {design.objective / designs[0].objective - 1:+.1%}"
        )


def _over(name: str, plans: Mapping[float, Plan]) -> Iterator[str]:
    yield f"Over {name:<5}   best uses  horizon     W    T        N  to accuracy"
    for value, plan in plans.items():
        best, setting = plan.optimum, chosen(plan)
        numbers = f"  {value:<9.3g} {best.uses_per_rollout:>10.2f} {best.staleness_horizon:>8.1f}"
        if not plan.replays:
            yield f"{numbers}     no buffer"
            continue
        w, t = setting["generators"] or "-", setting["trainers"] or "-"
        yield f"{numbers}  {w:>4} {t:>4} {setting['capacity']:>8} {_percent(plan.design.saving_to_accuracy):>12}"


def _known_line(name: str, known: Known) -> str:
    return f"  {name:<5}  {_shown(known)}"


def _shown(known: Known) -> str:
    interval = "" if known.low is None or known.high is None else f" ({known.low:.4g} to {known.high:.4g})"
    return f"{known.value:.4g}{interval}, {known.origin}"


def _bullets(lines: Sequence[str]) -> Iterator[str]:
    yield from (f"  - {line}" for line in lines)


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")
