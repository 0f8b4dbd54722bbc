"""The loop over durations: against closed forms, and against the real loop event by event."""

import json

import numpy as np
import pytest

from ostinato.backends.toy import ToyBackend
from ostinato.config import BufferConfig, LoopConfig
from ostinato.errors import OstinatoError
from ostinato.loop import Session
from ostinato.loop.events import Admitted
from ostinato.recipe import config_from_dict
from ostinato.simulation import Empirical, Fixed, LogNormal, Service, Simulation, simulate
from ostinato.simulation.simulate import build
from ostinato.theory import Equilibrium


def run(*, buffer=None, service=None, seed=0, success_rate=0.0, **loop):
    settings = {"batch_size": 60, "group_size": 12, "generators": 1, "trainers": 1, "train_steps": 2000, **loop}
    return simulate(
        Simulation(
            LoopConfig(**settings),
            BufferConfig(**{"capacity": 252, **(buffer or {})}),
            service or Service(),
            success_rate,
            seed,
        )
    )


def shares(histogram):
    counts = np.array(histogram["counts"], np.float64)
    return counts / counts.sum()


# ---------------------------------------------------------------- the synchronous model


@pytest.mark.parametrize("replacement", [True, False])
def test_histograms_when_each_step_brings_r_rollouts_are_those_of_equilibrium(replacement) -> None:
    # A request of 12 takes mu 12 / 60 = 1, as long as a train step: R = 12. What arrives during a step is drawn at the
    # next one, so a rollout is drawn at residence 1 .. 21 where the synchronous model says 0 .. 20.
    steps, x = 3000, 21
    result = run(mu=5.0, train_steps=steps, buffer={"replacement": replacement})
    model = Equilibrium(252, 12, 60, replacement)
    left = sum(result["uses"]["counts"])

    residence = shares(result["residence"])
    assert result["residence"]["counts"][0] == 60  # the first batch, for which the learner waited
    assert len(residence) == x + 1
    # Draws are a multinomial over ages, so each share has at most this deviation.
    sigma = np.sqrt(1 / x * (1 - 1 / x) / (60 * steps))
    assert residence[1:] == pytest.approx(model.residence(), abs=3 * sigma + 21 / steps / x)

    uses = shares(result["uses"])
    expected = model.uses()[: len(uses)]
    common = expected * left >= 5  # rarer ones are no normal variables, and those of the start are among them
    off = np.abs(uses - expected) / np.sqrt(expected * (1 - expected) / left)
    assert common.sum() >= 10 and off[common].max() < 3
    assert uses[~common].sum() < 10 / left
    k = np.arange(len(model.uses()))
    mean, variance = k @ model.uses(), (k**2) @ model.uses() - (k @ model.uses()) ** 2
    assert result["uses"]["mean"] == pytest.approx(mean, abs=3 * np.sqrt(variance / left))
    assert mean == pytest.approx(5.0)

    gaps, new = model.steps_since_last_use()
    drawn = 60 * steps
    found = np.array(result["steps_since_last_use"]["counts"]) / drawn
    assert found == pytest.approx(gaps[: len(found)], abs=3 * np.sqrt(0.25 / drawn) + 21 / steps)
    assert result["new"] / drawn == pytest.approx(new, abs=3 * np.sqrt(0.25 / drawn) + 21 / steps)


@pytest.mark.parametrize(("generators", "trainers"), [(7, 1), (6, 2), (5, 3), (4, 4)])
def test_mean_uses_when_nobody_idles_are_mu_t_over_w(generators, trainers) -> None:
    result = run(mu=5.28, generators=generators, trainers=trainers, group_size=16, train_steps=1500)
    assert result["uses"]["mean"] == pytest.approx(result["mean_uses"], rel=0.02)
    assert result["compute_per_update"] == pytest.approx(result["gamma"], rel=0.02)
    assert (result["generator_idle"], result["trainer_idle"]) == pytest.approx((0, 0), abs=1e-9)


@pytest.mark.parametrize(("generators", "trainers"), [(7, 1), (6, 2), (5, 3), (2, 6)])
def test_queue_when_service_is_deterministic_makes_the_faster_side_wait(generators, trainers) -> None:
    result = run(
        mu=5.28,
        generators=generators,
        trainers=trainers,
        group_size=12,
        train_steps=1000,
        buffer={"kind": "queue", "capacity": 180},
    )
    # Generators make B W / mu rollouts in a unit of time, trainers take B T.
    load = 5.28 * trainers / generators
    assert result["generator_idle"] == pytest.approx(max(0, 1 - load), abs=2e-3)
    assert result["trainer_idle"] == pytest.approx(max(0, 1 - 1 / load), abs=2e-3)
    assert result["uses"]["counts"] == [0, 60_000]
    assert (result["queue_wait"]["mean"] > 0) == (load < 1)


def test_queue_wait_when_one_generator_is_twice_as_fast_is_worked_by_hand() -> None:
    # A group of 60 is a batch. It takes 0.5 to make and 1 to train on; the queue holds 119, so one waits: in the end
    # every group finishes 0.5 after the one before it entered and enters when the next batch is drawn, 0.5 later.
    result = run(mu=0.5, group_size=60, train_steps=400, buffer={"kind": "queue", "capacity": 119})
    assert result["queue_wait"]["max"] == pytest.approx(0.5)
    assert result["queue_wait"]["mean"] == pytest.approx(0.5, abs=0.01)
    assert result["generator_idle"] == pytest.approx(0.5, abs=0.01)


# ---------------------------------------------------------------- the real loop


@pytest.mark.parametrize(
    "buffer",
    [
        {"capacity": 252},
        {"capacity": 252, "sampler": "epoch"},
        {"capacity": 252, "replacement": False},
        {"kind": "queue", "capacity": 180},
    ],
    ids=["replay", "epoch", "without replacement", "queue"],
)
@pytest.mark.parametrize(("w", "t", "publish_every"), [(5, 3, 1), (2, 2, 3)])
def test_events_when_the_toy_trains_with_the_same_settings_are_the_same(tmp_path, buffer, w, t, publish_every) -> None:
    loop = {"generators": w, "trainers": t, "mu": 5.28, "train_steps": 150, "publish_every": publish_every}
    recipe = {"model": {"backend": "toy"}, "task": {"name": "toy"}, "seed": 3, "loop": loop, "buffer": buffer}
    config = config_from_dict(recipe)
    session = Session(config, ToyBackend(config), tmp_path / "run")
    real = [
        (type(e), session._clock.now, e.groups if isinstance(e, Admitted) else e.train_step)
        for e in session._loop.run(session._clock)
    ]
    session.close()

    played, clock = build(Simulation(config.loop, config.buffer, seed=3))
    events = [(type(e), clock.now, e.groups if isinstance(e, Admitted) else e.train_step) for e in played.run(clock)]
    assert events == real
    assert json.dumps(played.statistics.summary()) == json.dumps(session._loop.statistics.summary())


# ---------------------------------------------------------------- service times


def test_result_when_the_seed_is_the_same_is_the_same() -> None:
    service = Service(LogNormal(0.8), "longest", straggler_fraction=0.05, straggler_factor=4.0, pause=0.1)
    first, second, other = (
        run(mu=5.28, generators=6, trainers=2, service=service, seed=seed, train_steps=300) for seed in (1, 1, 2)
    )
    assert json.dumps(first) == json.dumps(second)
    assert first["residence"] != other["residence"]


def test_uses_when_stragglers_slow_generators_rise_by_their_mean_slowness() -> None:
    # A tenth of the requests take five times as long: 1.4 times on average.
    service = Service(straggler_fraction=0.1, straggler_factor=5.0)
    result = run(mu=5.28, generators=6, trainers=2, service=service, train_steps=3000)
    assert result["uses"]["mean"] == pytest.approx(1.4 * result["mean_uses"], rel=0.03)


def test_uses_when_everybody_waits_for_the_longest_completion_rise_by_its_mean() -> None:
    rng = np.random.default_rng(0)
    longest = np.exp(0.5 * rng.standard_normal((100_000, 12)) - 0.125).max(axis=1).mean()
    steady = run(mu=5.28, generators=6, trainers=2, service=Service(LogNormal(0.5)), train_steps=3000)
    waiting = run(mu=5.28, generators=6, trainers=2, service=Service(LogNormal(0.5), "longest"), train_steps=2000)
    assert steady["uses"]["mean"] == pytest.approx(1.76, rel=0.02)
    assert waiting["uses"]["mean"] == pytest.approx(1.76 * longest, rel=0.02)


def test_time_when_generators_pause_for_new_weights_is_lost() -> None:
    # Every request of 60 starts under newer weights than the one before: 2.5 + 0.5.
    result = run(mu=2.5, group_size=60, service=Service(pause=0.5), train_steps=1000)
    assert result["time"] / (result["generated"] / 60) == pytest.approx(3.0, rel=0.01)
    assert result["paused"] == pytest.approx(0.5 * result["generated"] / 60, rel=0.01)
    # Weights are published every unit of C, so a share of 0.2 / 1 is lost to pauses of 0.2.
    swapped = run(mu=2.5, group_size=60, service=Service(pause=0.2, pause_for="published"), train_steps=2000)
    assert swapped["time"] / (swapped["generated"] / 60) == pytest.approx(2.5 / 0.8, rel=0.01)
    # Reward latency is lost at every request.
    late = run(mu=2.5, group_size=60, service=Service(reward_latency=0.5), train_steps=1000)
    assert late["time"] / (late["generated"] / 60) == pytest.approx(3.0, rel=0.01)


def test_retention_when_rewards_matter_keeps_correct_rollouts_longer() -> None:
    settings = {"mu": 5.0, "train_steps": 500, "success_rate": 0.25}
    plain = run(**settings)
    biased = run(**settings, buffer={"positive_bias": 0.5})
    assert biased["residence"]["mean"] > 1.2 * plain["residence"]["mean"]


def test_size_when_a_thousand_gpus_play_stays_in_bounds() -> None:
    result = run(
        generators=700,
        trainers=324,
        batch_size=4096,
        group_size=16,
        mu=5.28,
        train_steps=60,
        buffer={"capacity": 12_000},
    )
    assert result["buffer_size"] == 12_000
    assert result["trained"] / result["generated"] == pytest.approx(result["mean_uses"], rel=0.1)


def test_lengths_when_drawn_have_mean_one() -> None:
    rng = np.random.default_rng(0)
    assert LogNormal(1.0).draw(400_000, rng).mean() == pytest.approx(1, abs=0.01)
    assert Empirical([10, 30]).draw(50_000, rng).mean() == pytest.approx(1, abs=0.01)
    assert set(Empirical([10, 30]).draw(100, rng)) == {0.5, 1.5}
    assert Fixed().draw(3, rng).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LogNormal(-1), r"within \[0, 4\]"),
        (lambda: LogNormal(float("nan")), "sigma of log-normal lengths must be a finite number"),
        (lambda: LogNormal("a"), "must be a finite number, got 'a'"),
        (lambda: Service(pause="a"), "pause must be a finite number"),
        (lambda: Service(batching="slow"), "batching must be one of"),
        (lambda: Service(pause_for="ever"), "pause_for must be one of"),
        (
            lambda: Simulation(LoopConfig(train_steps=1, clock="wall"), BufferConfig()),
            "virtual clock, got loop.clock 'wall'",
        ),
        (lambda: Empirical([]), "positive numbers"),
        (lambda: Empirical([1, 0]), "positive numbers"),
        (lambda: Service(straggler_fraction=1.5), "fraction within"),
        (lambda: Service(straggler_factor=0.5), "factor of at least 1"),
        (lambda: Service(pause=-1.0), "pause must be within 0 and"),
        (lambda: Service(reward_latency=1e308), "reward latency must be within 0 and"),
        (lambda: Service(straggler_factor=1e308), "at most 1e\\+12"),
        (lambda: Simulation(LoopConfig(train_steps=100, mu=1e-9), BufferConfig()), "play fewer steps"),
        (lambda: Simulation(LoopConfig(), BufferConfig()), "at least 1 train step"),
        (lambda: Simulation(LoopConfig(train_steps=1), BufferConfig(), success_rate=2.0), "success_rate"),
        (lambda: Simulation(LoopConfig(train_steps=1), BufferConfig(capacity=10)), "a batch never fits"),
    ],
)
def test_simulation_when_impossible_names_the_constraint(make, message) -> None:
    with pytest.raises(OstinatoError, match=message):
        make()
