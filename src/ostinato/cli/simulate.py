"""`ostinato simulate`."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from ostinato.cli.plan_recipe import refuse_no_directory
from ostinato.config import BufferConfig, RunConfig
from ostinato.errors import ConfigError, DataError
from ostinato.loop.run_directory import newest_checkpoint
from ostinato.recipe import apply_overrides, config_from_dict, merge, recipe_tree
from ostinato.rollout_files import open_stored
from ostinato.simulation import Empirical, Fixed, Lengths, LogNormal, Service, Simulation, simulate

LOOP = (
    "generators",
    "trainers",
    "batch_size",
    "group_size",
    "groups_per_request",
    "mu",
    "publish_every",
    "max_staleness",
    "epochs",
)
BUFFER = ("capacity", "min_size", "positive_bias", "order", "sampler")
"""Options that are settings of a recipe's section, under the same name."""

SECTIONS = ("loop", "buffer", "seed")
"""What is taken of a recipe; settings of anything else would change nothing."""

WITHOUT_A_MODEL: dict[str, Any] = {"model": {"backend": "toy"}, "task": {"name": "toy"}}
GROUP_SIZE, STEPS = 16, 2000
"""What stands for the options that nobody gives, and is not the recipe's default."""

FIGURE_2 = [(6, 2, n) for n in (84, 252, 756, 2268)] + [(w, t, 252) for w, t in ((6, 2), (5, 3), (4, 4))]
"""(W, T, N) of the paper's figure 2."""


def run(arguments: Namespace) -> int:
    """Play, print and draw; returns the exit code."""
    _check(arguments)
    if arguments.figure_2 is not None:
        return _figure_2(arguments)
    simulation = simulation_of(arguments)
    result = simulate(simulation)
    if arguments.json:
        print(json.dumps(result, allow_nan=False))
    else:
        print("\n".join(lines(simulation, result)))
    if arguments.figure is not None:
        _draw({_label(simulation): result}, [arguments.figure])
    return 0


def simulation_of(arguments: Namespace) -> Simulation:
    """What the recipe and the options say. Raises `ConfigError` or `DataError` with one line."""
    tree = {} if arguments.recipe is None else recipe_tree(arguments.recipe)
    tree = {name: tree[name] for name in SECTIONS if name in tree}
    given = {name: getattr(arguments, name) for name in (*LOOP, *BUFFER, "seed", "steps")}
    given = {name: value for name, value in given.items() if value is not None}
    loop = {name: given[name] for name in LOOP if name in given}
    buffer = {name: given[name] for name in BUFFER if name in given}
    if arguments.recipe is None:
        loop.setdefault("group_size", GROUP_SIZE)
    loop["train_steps"] = given.get("steps", tree.get("loop", {}).get("train_steps") or STEPS)
    if "steps" in given:
        loop["compute_units"] = 0.0  # what is asked for is played, whatever the recipe's own end
    loop["clock"] = "virtual"
    if arguments.buffer is not None:
        buffer["kind"] = arguments.buffer
    if arguments.no_replacement:
        buffer["replacement"] = False
    if arguments.shards:
        loop["shards"] = True
    seed = {"seed": given["seed"]} if "seed" in given else {}
    config = _config(merge({**WITHOUT_A_MODEL, **tree}, {"loop": loop, "buffer": buffer, **seed}), arguments.overrides)
    _refuse_ignored(arguments, config.buffer)
    fraction, factor = arguments.stragglers
    service = Service(
        lengths=lengths_of(arguments.lengths),
        batching=arguments.batching,
        straggler_fraction=fraction,
        straggler_factor=factor,
        pause=arguments.pause,
        pause_for=arguments.pause_for,
        reward_latency=arguments.reward_latency,
    )
    return Simulation(config.loop, config.buffer, service, arguments.success_rate, config.seed)


def lengths_of(how: str) -> Lengths:
    """`fixed`, `lognormal:SIGMA`, or the completions of a run, a buffer or a file of rollouts."""
    kind, _, sigma = how.partition(":")
    if how == "fixed":
        return Fixed()
    if kind == "lognormal":
        try:
            spread = float(sigma)
        except ValueError:
            raise ConfigError(f"--lengths lognormal:SIGMA needs a number, got {how!r}") from None
        return LogNormal(spread)
    path = Path(how)
    if not how or not path.exists():
        raise ConfigError(f"--lengths must be fixed, lognormal:SIGMA or a path that exists, got {how!r}")
    stored = open_stored(newest_checkpoint(path) if (path / "checkpoints").is_dir() else path)
    found = [float(n) for part in stored.parts() for n in part.completion_lengths if n > 0]
    if not found:
        raise DataError(f"{path} holds no completions to take lengths from")
    return Empirical(found)


def _check(arguments: Namespace) -> None:
    """Refuse what would be ignored, and what could not be written, before anything is played."""
    steps, overrides = arguments.steps, arguments.overrides
    if steps is not None and steps < 1:
        raise ConfigError(f"--steps must be at least 1, got {steps}")
    for word in overrides:
        if word.startswith("--") and word[2:].partition("=")[0].partition(".")[0] not in SECTIONS:
            raise ConfigError(f"simulate takes settings of {', '.join(SECTIONS)} only, got {word!r}")
    if arguments.figure_2 is not None:
        for name in ("generators", "trainers", "capacity", "figure"):
            if getattr(arguments, name) is not None:
                raise ConfigError(f"--figure-2 has configurations of its own; leave out --{name}")
    if arguments.figure is not None and arguments.figure.suffix not in (".svg", ".png"):
        raise ConfigError(f"--figure must end in .svg or .png, got {arguments.figure}")
    if arguments.figure is not None and not arguments.figure.parent.is_dir():
        raise ConfigError(f"--figure: {arguments.figure.parent} is no directory")
    refuse_no_directory("--figure-2", arguments.figure_2)


def _refuse_ignored(arguments: Namespace, buffer: BufferConfig) -> None:
    """Options of one kind of buffer or sampler, given beside another."""
    queue = buffer.kind == "queue"
    if arguments.order is not None and not queue:
        raise ConfigError("--order is of a queue; add --buffer queue")
    for name in ("sampler", "positive_bias", "no_replacement"):
        if getattr(arguments, name) and queue:
            raise ConfigError(f"--{name.replace('_', '-')} is of a replay buffer, and this is a queue")
    if arguments.no_replacement and buffer.sampler != "uniform":
        raise ConfigError(f"--no-replacement is of the uniform sampler, got {buffer.sampler}")


def lines(simulation: Simulation, result: dict[str, Any]) -> list[str]:
    """For a person."""
    loop, wait = simulation.loop, result["queue_wait"]
    what = "queued, each used once" if simulation.buffer.kind == "queue" else "kept and drawn again"
    drawn_again = bool(result["steps_since_last_use"]["counts"])
    since = f"{_mean(result, 'steps_since_last_use')} train steps ago; " if drawn_again else ""
    equal = "" if simulation.service == Service() else ", with equal completions and no stragglers, pauses or latency"
    theory = f"with a buffer mu T / W = {result['mean_uses']:.2f}, gamma = {result['gamma']:.3f}{equal}"
    rows = [
        ("uses", f"{_mean(result, 'uses')} a rollout that has left"),
        ("staleness", f"{_mean(result, 'staleness')} train steps, residence {_mean(result, 'residence')}"),
        ("last use", f"{since}{_new(result):.1%} of samples were new"),
        ("waiting", f"generators {result['generator_idle']:.1%}, trainers {result['trainer_idle']:.1%} of their time"),
        ("full queue", f"requests waited {wait['mean']:.3g} C on average, {wait['max']:.3g} C at most"),
        ("cost", f"{result['compute_per_update']:.3f} baseline updates a train step"),
        ("time", f"{result['time']:.1f} C, {result['generated']} rollouts generated"),
        ("theory", theory),
    ]
    head = f"W {loop.generators}, T {loop.trainers}: {simulation.buffer.capacity} rollouts {what}"
    return [f"{head}; {result['train_steps']} train steps", *(f"  {name:<11} {text}" for name, text in rows)]


def _figure_2(arguments: Namespace) -> int:
    results = {}
    for generators, trainers, capacity in FIGURE_2:
        given = {"generators": generators, "trainers": trainers, "capacity": capacity}
        simulation = simulation_of(Namespace(**{**vars(arguments), **given}))
        if _label(simulation) not in results:
            results[_label(simulation)] = simulate(simulation)
    arguments.figure_2.mkdir(parents=True, exist_ok=True)
    paths = [arguments.figure_2 / f"replay_histograms.{ending}" for ending in ("svg", "png")]
    _draw(results, paths)
    if arguments.json:
        print(json.dumps(results, allow_nan=False))
    else:
        print("\n".join(map(str, paths)))
    return 0


def _draw(results: dict[str, dict[str, Any]], paths: list[Path]) -> None:
    from ostinato.report.plots import replay_histograms

    replay_histograms(results, paths)


def _label(simulation: Simulation) -> str:
    return f"({simulation.loop.generators}, {simulation.loop.trainers}), N = {simulation.buffer.capacity}"


def _config(tree: dict[str, Any], overrides: list[str]) -> RunConfig:
    return config_from_dict(apply_overrides(tree, overrides), where="simulate")


def _mean(result: dict[str, Any], name: str) -> str:
    mean = result[name]["mean"]
    return "none" if mean is None else f"{mean:.2f}"


def _new(result: dict[str, Any]) -> float:
    return float(result["new"]) / max(int(result["trained"]), 1)
