"""`ostinato plan`."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from ostinato.cli.backends import open_backend, open_backend_aloud
from ostinato.cli.plan_display import plan_lines
from ostinato.cli.plan_facts import Advice, Facts, Known
from ostinato.cli.plan_measure import measure
from ostinato.cli.plan_numbers import plan_numbers
from ostinato.cli.plan_recipe import refuse_existing, refuse_no_directory, write_recipe
from ostinato.cli.plan_run import facts_of_run
from ostinato.errors import ConfigError, DataError
from ostinato.recipe import load_recipe
from ostinato.theory import (
    Limits,
    MeasuredVariance,
    Plan,
    PowerLaw,
    VarianceLaw,
    Workload,
    make_plan,
    rho_grid,
    safest_rho,
)
from ostinato.theory.variance import ASSUMED_ALPHA

GPUS, BATCH_SIZE, GROUP_SIZE = 8, 60, 16
"""What stands in for numbers that nothing gives."""


def run(arguments: Namespace) -> int:
    """Plan, print and write; returns the exit code."""
    _check(arguments)
    if arguments.write is not None:
        refuse_existing(arguments.write, overwrite=arguments.force)
    refuse_no_directory("--figures", arguments.figures)
    advice = advise(arguments, gather(arguments))
    if arguments.json:
        print(json.dumps(plan_numbers(advice), allow_nan=False))
    else:
        print("\n".join(plan_lines(advice)))
    if arguments.write is not None:
        write_recipe(arguments.write, advice, overwrite=arguments.force)
        if not arguments.json:
            print(f"recipe: {arguments.write}; run it: ostinato train {arguments.write}")
    if arguments.figures is not None:
        from ostinato.report.theory_figures import theory_figures

        for path in theory_figures(advice.plan, arguments.figures):
            if not arguments.json:
                print(path)
    return 0


def gather(arguments: Namespace) -> Facts:
    """What a run or a measurement tells; nothing when there are only numbers."""
    if arguments.measure is not None:
        config = load_recipe(arguments.measure, arguments.overrides)
        return measure(config, open_backend(config) if arguments.json else open_backend_aloud(config))
    if arguments.run_directory is not None:
        return facts_of_run(
            arguments.run_directory,
            want_mu=arguments.mu is None,
            want_variance=arguments.alpha is None and arguments.variance is None,
            want_rho=arguments.rho is None,
        )
    return Facts()


def advise(arguments: Namespace, facts: Facts) -> Advice:
    """Plan for what is given first, measured second, assumed last."""
    loop: Mapping[str, Any] = facts.settings.get("loop", {})
    mu = facts.mu if arguments.mu is None else Known(arguments.mu, "given")
    if mu is None:
        raise ConfigError("plan needs --mu, a run directory, or --measure RECIPE.toml")
    alpha, variance = _variance(arguments, facts)
    gpus = arguments.gpus or (loop["generators"] + loop["trainers"] if loop else GPUS)
    limits = _limits(arguments, loop)

    def planned(rho: float, law: VarianceLaw = variance) -> Plan:
        split = arguments.no_buffer_split
        return make_plan(
            Workload(mu.value, rho, law), limits, gpus=gpus, in_turns=arguments.colocated, without_buffer=split
        )

    over_rho: dict[float, Plan] = {}
    if arguments.rho is not None:
        rho = Known(arguments.rho, "given")
    else:
        highest = 1.0 if facts.rho_limit is None or facts.rho_limit.high is None else facts.rho_limit.high
        rho = Known(safest_rho(mu.value, variance, highest), "not known", 0.0, highest)
        over_rho = {value: planned(value) for value in rho_grid(highest)}
    over_alpha: dict[float, Plan] = {}
    if alpha is not None and alpha.low is not None and alpha.high is not None:
        over_alpha = {a: planned(rho.value, PowerLaw(a)) for a in (alpha.low, alpha.value, alpha.high)}
    return Advice(
        plan=planned(rho.value),
        limits=limits,
        named_split=arguments.no_buffer_split is not None,
        mu=mu,
        alpha=alpha,
        rho=rho,
        over_rho=over_rho,
        over_alpha=over_alpha,
        break_even=_break_even(over_rho, planned),
        facts=facts,
    )


def _break_even(over_rho: Mapping[float, Plan], planned: Callable[[float], Plan]) -> float | None:
    """The first rho at which replay stops paying, by bisection to 1 %; None where it pays everywhere or nowhere."""
    for (low, before), (high, after) in pairwise(over_rho.items()):
        if before.replays and not after.replays:
            while high - low > 0.01 * high:
                middle = (low + high) / 2
                low, high = (middle, high) if planned(middle).replays else (low, middle)
            return low
    return None


def _variance(arguments: Namespace, facts: Facts) -> tuple[Known | None, VarianceLaw]:
    if arguments.variance is not None:
        try:
            return None, MeasuredVariance(*arguments.variance)
        except DataError as error:
            raise ConfigError(f"--variance: {error}") from None
    alpha = facts.alpha or Known(ASSUMED_ALPHA, "assumed")
    alpha = alpha if arguments.alpha is None else Known(arguments.alpha, "given")
    return alpha, PowerLaw(alpha.value)


def _limits(arguments: Namespace, loop: Mapping[str, Any]) -> Limits:
    batch = arguments.batch_size or loop.get("batch_size", BATCH_SIZE)
    group = arguments.group_size or loop.get("group_size", min(GROUP_SIZE, batch))
    if group > batch:
        raise ConfigError(f"groups of {group} never fit in batches of {batch}; change --group-size or --batch-size")
    # In turns there is one trainer, whatever a run had.
    sharded = not arguments.colocated and (arguments.sharded or bool(loop.get("shards", False)))
    return Limits(batch, group, arguments.max_capacity, sharded)


def _check(arguments: Namespace) -> None:
    if arguments.measure is not None and arguments.run_directory is not None:
        raise ConfigError(
            f"give a run or --measure, not both; write settings as --section.key=value, got {arguments.run_directory}"
        )
    if arguments.sharded and arguments.colocated:
        raise ConfigError("--sharded is for T trainers beside generators; with --colocated there is one buffer")
    if arguments.overrides and arguments.measure is None:
        raise ConfigError(f"plan takes settings only with --measure, got {arguments.overrides[0]!r}")
