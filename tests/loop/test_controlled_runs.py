"""Runs whose capacity or samples per insert are `auto`: where they end, what they tell, that they can be stopped."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ostinato.backends.toy import ToyBackend, ToyTrainer
from ostinato.buffer import ShardedBuffer
from ostinato.errors import CheckpointError, ConfigError
from ostinato.loop import Session
from ostinato.loop.events import Stepped
from ostinato.loop.pace import MeteredPace, SteadyPace
from ostinato.loop.sizing import sizing_of
from ostinato.protocols import Draw, Trained
from ostinato.telemetry import read_jsonl
from ostinato.theory import PowerLaw, Workload, best_horizon, best_uses_at, optimum

RHO = 0.05


class LawBackend(ToyBackend):
    """A policy that stands still, with token ratios whose second moment is age^(2 alpha)."""

    def __init__(self, config, alpha: float) -> None:
        super().__init__(config)
        self._alpha = alpha

    def trainer(self) -> ToyTrainer:
        trainer = super().trainer()
        step = trainer.step

        def told(draw: Draw) -> Trained:
            trained = step(draw)
            tokens = trained.figures["tokens"]
            moment = np.maximum(draw.staleness, 1.0) ** (2 * self._alpha)
            figures = {**trained.figures, "ratio_sum": tokens, "ratio_square_sum": tokens * moment}
            return Trained(trained.metrics, figures)

        trainer.step = told  # type: ignore[method-assign]
        return trainer


def play(config, alpha, directory) -> tuple[Session, list[dict[str, Any]], list[dict[str, Any]]]:
    """The session at its end, what each train step says of the control, its changes; without the rest of the metrics,
    which take most of a step's time."""
    session = Session(config, LawBackend(config, alpha), directory)
    steps: list[dict[str, Any]] = []
    changes: list[dict[str, Any]] = []
    for event in session._loop.run(session._clock):
        if isinstance(event, Stepped):
            steps.append({**event.step.followed, "train_step": event.train_step, "buffer_size": event.step.buffer_size})
            change = session._loop.follow_up.sizing.take_change()
            changes += [change.record()] if change else []
    session.close()
    return session, steps, changes


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("alpha", [0.06, 0.2])
def test_capacity_when_auto_in_the_loop_ends_at_the_optimum_of_its_split(toy, tmp_path, shards, alpha) -> None:
    """W = 5, T = 3, mu = 5.28: 3.168 uses. Staleness counts the steps of generating too, which moves the fit a little:
    within 25 % of x* B / y, half of the distance being hysteresis."""
    config = toy(
        loop={"shards": shards, "trainers": 3, "train_steps": 260},
        buffer={"capacity": "auto"},
        control={"rho": RHO},
    )
    session, steps, changes = play(config, alpha, tmp_path / "run")
    law, uses = Workload(5.28, RHO, PowerLaw(alpha)), 3.168
    store = session._loop.parts.store
    assert store.capacity == pytest.approx(best_horizon(law, uses) * 60 / uses, rel=0.25)
    assert len(store) == store.capacity == steps[-1]["buffer_size"] == steps[-1]["buffer_capacity"]
    assert {round(change["mu"], 9) for change in changes} == {5.28}  # modelled, whatever this machine took
    assert steps[-1]["control.uses"] == pytest.approx(uses, rel=0.05)
    assert steps[-1]["control.alpha"] == pytest.approx(alpha, abs=0.03)
    when = [change["train_step"] for change in changes]
    assert len(when) >= 3 and all(step % 20 == 0 for step in when) and len(set(when)) == len(when)
    # A line of a step tells the capacity that is in force after it.
    before = {step["train_step"]: step["buffer_capacity"] for step in steps}
    assert all(change["after_capacity"] == before[change["train_step"]] for change in changes)
    if shards:
        assert isinstance(store, ShardedBuffer) and len({shard.capacity for shard in store.shards}) == 1
        assert all(change["after_capacity"] % 3 == 0 for change in changes)


@pytest.mark.parametrize("clock", ["virtual", "turns"])
def test_samples_per_insert_when_auto_in_the_loop_are_the_best_of_the_capacity(toy, tmp_path, clock) -> None:
    """On the clock of turns mu is what this machine measures; the dial follows that mu."""
    loop = {"clock": clock, "generators": 1 if clock == "turns" else 9, "trainers": 1, "mu": 2.0, "train_steps": 240}
    config = toy(
        loop=loop,
        buffer={"capacity": 300, "samples_per_insert": "auto"},
        control={"rho": RHO, "step": 0.5},
    )
    session, steps, changes = play(config, 0.15, tmp_path / "run")
    mu = steps[-1]["control.mu"]
    if clock == "virtual":
        assert mu == pytest.approx(2.0, rel=1e-9)
        alpha = steps[-1]["control.alpha"]
        best = best_uses_at(Workload(mu, RHO, PowerLaw(alpha)), 5.0)
        assert steps[-1]["samples_per_insert"] == pytest.approx(best, rel=0.2)
    else:
        looks = [step for step in steps if "control.target_samples_per_insert" in step]
        assert looks and all(0 < c["mu_low"] <= c["mu"] <= c["mu_high"] for c in changes)
        for step in looks:
            best = best_uses_at(Workload(step["control.mu"], RHO, PowerLaw(step["control.alpha"])), 5.0)
            assert step["control.target_samples_per_insert"] == pytest.approx(min(max(best, 1.0), 32.0))
    ledger = session._loop.ledger
    assert 1 <= ledger.trained / ledger.generated <= 32
    limiter = session._loop.parts.store.limiter
    assert limiter.ratio == steps[-1]["samples_per_insert"]


def test_both_dials_when_auto_in_the_loop_end_at_the_joint_optimum(toy, tmp_path) -> None:
    config = toy(
        loop={"generators": 9, "trainers": 1, "mu": 3.0, "train_steps": 300},
        buffer={"capacity": "auto", "samples_per_insert": "auto"},
        control={"rho": RHO},
    )
    session, steps, _ = play(config, 0.15, tmp_path / "run")
    best = optimum(Workload(3.0, RHO, PowerLaw(steps[-1]["control.alpha"])))
    assert steps[-1]["samples_per_insert"] == pytest.approx(best.uses_per_rollout, rel=0.2)
    horizon = session._loop.parts.store.capacity * steps[-1]["samples_per_insert"] / 60
    assert horizon == pytest.approx(best.staleness_horizon, rel=0.3)


def test_run_when_nothing_is_auto_says_nothing_of_a_control(toy, run_toy) -> None:
    config = toy(loop={"train_steps": 60}, buffer={"capacity": 252}, control={"every": 5})
    lines = read_jsonl(run_toy(config) / "metrics.jsonl")
    assert sizing_of(config) is None
    assert not [name for line in lines for name in line if "control" in name or name == "buffer_capacity"]
    assert {line["event"] for line in lines} == {"step"}


def test_auto_run_when_it_changes_nothing_is_the_fixed_run(toy, run_toy) -> None:
    """The starting capacity, written as a number, looked at less often than the run is long: the same train steps."""
    auto = toy(loop={"train_steps": 50}, buffer={"capacity": "auto"}, control={"every": 1000})
    start = sizing_of(auto).buffer.capacity
    fixed = toy(loop={"train_steps": 50}, buffer={"capacity": start})
    losses = [
        [(r["grad_norm"], r["staleness"], r["uses"]) for r in read_jsonl(run_toy(config) / "metrics.jsonl")]
        for config in (auto, fixed)
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("damage", ["missing", "too large", "torn", "counters", "metered", "window", "told"])
def test_checkpoint_when_its_sizes_are_damaged_is_refused(toy, run_toy, damage) -> None:
    config = toy(loop={"train_steps": 40}, buffer={"capacity": "auto"}, control={"every": 5})
    directory = run_toy(config, stop_at=20)
    path = directory / "checkpoints" / "step-00000020" / "loop.json"
    state = json.loads(path.read_text())
    sizing = state["follow_up"]["sizing"]
    if damage == "missing":
        del state["follow_up"]["sizing"]
    elif damage == "too large":
        sizing["control"]["dials"]["capacity"] = 10**6
    elif damage == "torn":
        sizing["metered"] = sizing["metered"][:2]
    elif damage == "counters":
        sizing["control"]["totals"][0] = float("nan")
    elif damage == "metered":
        sizing["metered"][1] = -1.0
    elif damage == "window":
        sizing["control"]["window"] *= 9
    else:
        sizing["control"]["told"]["control.mu"] = float("inf")
    path.write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match="step-00000020") as caught:
        run_toy(config, directory=directory, resume=True)
    assert "\n" not in str(caught.value)


def test_checkpoint_when_the_buffer_had_grown_is_taken_whole(toy, run_toy) -> None:
    """A buffer that starts at 147 and had grown beyond keeps what it held: nothing is cut at the start's capacity."""
    config = toy(loop={"train_steps": 200}, buffer={"capacity": "auto"}, control={"every": 5})
    directory = run_toy(config, stop_at=150)
    session = Session(config, ToyBackend(config), directory, resume=True)
    store = session._loop.parts.store
    last = [r for r in read_jsonl(directory / "metrics.jsonl") if r["event"] == "step"][-1]
    assert (store.capacity, len(store)) == (last["buffer_capacity"], last["buffer_size"])
    assert len(store) > sizing_of(config).buffer.capacity
    session.close()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"buffer": {"capacity": "auto", "journal": True}, "loop": {"clock": "wall"}}, "checkpoints, not in a journal"),
        (
            {"buffer": {"capacity": "auto"}, "loop": {"clock": "wall"}, "runtime": "ray", "ray": {"store": "actor"}},
            "capacity = auto turns a buffer of this process: set ray.store = driver, got actor",
        ),
    ],
)
def test_auto_when_the_buffer_cannot_be_turned_is_refused(toy, sections, message) -> None:
    with pytest.raises(ConfigError, match=message):
        toy(**sections | {"loop": {"train_steps": 9} | sections["loop"]})


def test_pace_when_metered_adds_up_what_replicas_and_generators_take() -> None:
    """mu 6, B 4, T 3: 8 rollouts take 12, a step 1/3 on three trainers: one unit of the optimizer's time."""

    class Eight:
        def __len__(self) -> int:
            return 8

    pace = MeteredPace(SteadyPace(6.0, 4, 3), 3)
    assert pace.generate(0, Eight()) == 12.0 and pace.train(Eight()) == pytest.approx(1 / 3)
    assert pace.totals == (12.0, 8, pytest.approx(1.0), 8)
