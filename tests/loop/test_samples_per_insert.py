"""Samples per insert in runs: the ratio is kept on every clock, nobody waits for ever, impossible bands are refused."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ostinato.backends.toy import ToyBackend
from ostinato.buffer import SamplesPerInsert
from ostinato.config import BufferConfig, LoopConfig
from ostinato.config.bounds import bounds_of, narrowest_band
from ostinato.errors import ConfigError
from ostinato.loop import Session
from ostinato.loop.events import Admitted, Stepped
from ostinato.loop.sizing import sizing_of
from ostinato.loop.stores import build_store
from ostinato.simulation.simulate import Simulation, build
from ostinato.telemetry import read_jsonl


def counts(config, directory) -> list[tuple[float, float]]:
    """(generated, trained) after each train step."""
    Session(config, ToyBackend(config), directory).run()
    return [(r["generated"], r["trained"]) for r in read_jsonl(directory / "metrics.jsonl") if r["event"] == "step"]


@pytest.mark.parametrize("clock", ["virtual", "wall", "turns"])
@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("ratio", [0.7, 4.0])
def test_ratio_when_set_is_kept_within_the_band_at_every_step(toy, tmp_path, clock, shards, ratio) -> None:
    """mu T / W would be 15.84 uses with five generators, 1.76 with nine; the limiter makes it the ratio."""
    loop = {"clock": clock, "shards": shards, "trainers": 3, "train_steps": 60, "mu": 5.28}
    config = toy(
        loop=loop | {"generators": 1 if clock == "turns" else 3},
        buffer={"capacity": 252, "samples_per_insert": ratio},
    )
    band = max(60.0, ratio * 12)
    for generated, trained in counts(config, tmp_path / "run"):
        balance = ratio * (generated - 60) - trained  # 60: the filling, which nobody counts
        assert -band - 1e-6 <= balance <= band + ratio * 12
    assert trained / generated == pytest.approx(ratio, abs=0.13 * ratio + ratio * 120 / generated)


def test_error_buffer_when_wider_lets_generators_be_further_ahead(toy, tmp_path) -> None:
    """Generators that are 20 times too fast stop at the upper edge: balance within one request below the band."""
    for band in (60.0, 240.0):
        config = toy(
            loop={"generators": 4, "trainers": 1, "mu": 0.2, "train_steps": 40},
            buffer={"capacity": 252, "samples_per_insert": 2.0, "error_buffer": band},
        )
        balances = [2 * (g - 60) - t for g, t in counts(config, tmp_path / f"{band}")]
        assert band - 24 < max(balances) <= band


def test_shards_when_built_share_band_batch_and_request() -> None:
    loop = LoopConfig(trainers=4, shards=True, batch_size=60, group_size=14, train_steps=1)
    buffer = BufferConfig(capacity=240, samples_per_insert=3.0, error_buffer=90.0, min_size=100)
    limiters = {shard.limiter for shard in build_store(buffer, loop).shards}
    # 14 rollouts over 4 shards: 4 at most, and one that a shard may be ahead.
    assert limiters == {SamplesPerInsert(3.0, min_size=25, error_buffer=22.5, batch_size=15, group_size=5)}


SHARDED = {"shards": True, "trainers": 3}
AHEAD = {"samples_per_insert": 4.0}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"buffer": {"samples_per_insert": 0.0}}, "buffer.samples_per_insert must be at least 1e-09, got 0.0"),
        ({"buffer": {"samples_per_insert": "always"}}, "expects float or 'auto', got str 'always'"),
        ({"buffer": {"capacity": "large"}}, "buffer.capacity expects int or 'auto', got str 'large'"),
        ({"buffer": AHEAD | {"kind": "queue"}}, "needs buffer.kind = replay: a queue uses each rollout once"),
        ({"buffer": {"capacity": "auto", "kind": "queue"}}, "capacity = auto needs buffer.kind = replay"),
        ({"buffer": {"error_buffer": 99.0}}, "buffer.error_buffer 99.0 needs buffer.samples_per_insert"),
        ({"buffer": AHEAD | {"error_buffer": 59.0}}, "59.0 lets both sides wait .*requests of 12 .* at least 60, or"),
        ({"buffer": {"samples_per_insert": 6.0, "error_buffer": 71.0}}, "it must be at least 72, or none"),
        (
            {"buffer": {"samples_per_insert": 0.5, "capacity": 119}},
            "samples_per_insert 0.5 . buffer.capacity 119 < loop.batch_size 60: .* replaced between two draws",
        ),
        ({"buffer": AHEAD | {"min_size": 1021}}, "min_size 1021 > buffer.capacity 1020: it is never reached"),
        (
            {"buffer": {"capacity": 200, "positive_bias": 0.5, "min_size": 101}},
            "positive_bias 0.5 keeps fewer of the newest of 200 than buffer.min_size 101",
        ),
        (
            {"buffer": AHEAD | {"capacity": 60}, "loop": SHARDED | {"group_size": 59}},
            "21 rollouts of a request do not fit in a shard of 20; raise buffer.capacity to 63",
        ),
        (
            {"buffer": AHEAD, "loop": SHARDED | {"max_staleness": 3}},
            "loop.shards with buffer.samples_per_insert and loop.max_staleness: .* set loop.shards = false",
        ),
        ({"loop": {"clock": "turns", "generators": 1}}, "turns needs buffer.samples_per_insert: .*never give way"),
        ({"loop": {"clock": "turns", "generators": 2}, "buffer": AHEAD}, "one engine, .*loop.generators = 1, got 2"),
        (
            {"buffer": {"capacity": "auto", "min_size": 999}, "control": {"max_batches": 16}},
            "auto has no room: at least 999 .*at most 960 allowed; raise control.max_batches 16",
        ),
        ({"buffer": {"capacity": "auto", "positive_bias": 1.0}}, "capacity = auto has no room"),
        (
            {"buffer": AHEAD, "loop": {"max_staleness": 2}},
            "samples_per_insert 4.0 is never reached: .* staleness 2 .*, 3 samples per insert at most; lower it, or",
        ),
        (
            {"buffer": {"samples_per_insert": "auto", "min_size": 240}, "loop": {"max_staleness": 2}},
            "samples_per_insert auto is never reached: .*, 0.75 samples per insert at most",
        ),
        ({"buffer": {"samples_per_insert": 12.0, "sampler": "advantage_prioritized"}}, "staleness 10 .*, 11 samples"),
    ],
)
def test_settings_when_somebody_would_wait_for_ever_are_refused(toy, sections, message) -> None:
    loop = {"train_steps": 10} | sections.get("loop", {})
    with pytest.raises(ConfigError, match=message) as caught:
        toy(**sections | {"loop": loop})
    assert "\n" not in str(caught.value)


def test_samples_per_insert_when_rollouts_grow_too_old_end_at_what_is_possible(toy, tmp_path) -> None:
    """Up to a staleness of 2 there are three draws for a rollout: 3 uses are kept, and `auto` asks for no more."""
    loop = {"clock": "turns", "generators": 1, "max_staleness": 2, "train_steps": 60}
    kept = counts(toy(loop=loop, buffer={"samples_per_insert": 3.0}), tmp_path / "kept")[-1]
    assert kept[1] / kept[0] == pytest.approx(3.0, rel=0.05)
    auto = toy(loop=loop, buffer={"capacity": "auto", "samples_per_insert": "auto"})
    assert sizing_of(auto).buffer.samples_per_insert == 3.0  # the optimum would be 4.12
    anchored = toy(
        loop={"train_steps": 9, "mu": 10.0},  # 6 uses
        buffer={"capacity": "auto", "sampler": "advantage_prioritized"},
        control={"rho": 0.0},
    )
    assert sizing_of(anchored).buffer.capacity == 11 * 60 / 6


def test_capacity_when_auto_below_one_sample_per_insert_outlives_a_draw(toy) -> None:
    """At 0.05 samples per insert 1,200 rollouts come between two draws: fewer would be replaced as a whole."""
    config = toy(loop={"train_steps": 9}, buffer={"capacity": "auto", "samples_per_insert": 0.05})
    assert bounds_of(config.loop, config.buffer, config.control).least_capacity == 1200
    with pytest.raises(ConfigError, match=r"no room: at least 12000 .*samples_per_insert.*at most 3840 allowed"):
        toy(loop={"train_steps": 9}, buffer={"capacity": "auto", "samples_per_insert": 0.005})


def test_settings_when_made_in_python_are_refused_too() -> None:
    with pytest.raises(ConfigError, match="samples_per_insert must be above 0, got -1"):
        Simulation(LoopConfig(train_steps=1), BufferConfig(samples_per_insert=-1.0))
    for auto in (BufferConfig(capacity="auto"), BufferConfig(samples_per_insert="auto")):
        with pytest.raises(ConfigError, match="= auto needs a run that measures; give a number"):
            build_store(auto, LoopConfig())


@settings(max_examples=60, deadline=None)
@example(1, 1, 1, 3, 5.952152128790912, True, 1, 0, 1.0, 1.0)  # 3 y / 3 is not y
@given(
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 3),
    st.floats(0.2, 9.0),
    st.booleans(),
    st.integers(1, 4),
    st.integers(0, 30),
    st.floats(0.05, 20.0),
    st.floats(1.0, 2.0),
)
def test_loop_when_its_settings_are_accepted_never_stands_still(
    batches, group, each, trainers, ratio, shards, generators, min_size, mu, wide
) -> None:
    batch = trainers * max(batches, -(-group // trainers))
    loop = LoopConfig(
        generators=generators,
        trainers=trainers,
        batch_size=batch,
        group_size=group,
        groups_per_request=each,
        shards=shards,
        mu=mu,
        train_steps=25,
    )
    capacity = trainers * (max(batch, group * each, min_size, math.ceil(batch / ratio)) + 3)
    band = wide * narrowest_band(loop, ratio)
    buffer = BufferConfig(capacity=capacity, samples_per_insert=ratio, error_buffer=band, min_size=min_size)
    simulated, clock = build(Simulation(loop, buffer))
    events = list(simulated.run(clock))
    assert simulated.ledger.train_step == 25
    inserted = sum(event.rollouts for event in events if isinstance(event, Admitted))
    filling = max(batch, min_size) + 2 * group * each + 2 * trainers
    # What is still owed at the end is within the band and what one side may add to it; min_size is divided by shards.
    owed = ratio * inserted - 25 * batch
    assert -band - 1e-6 <= owed <= band + ratio * (filling + group * each)


def test_narrowest_band_when_undercut_deadlocks_a_limiter() -> None:
    """The bound is sharp: ratio 6, batches of 8, requests of 2 have 12; a hand-made band of 9 can stand still.

    Balance 6 i - s after the filling of 8: draws stop below -1, inserts stop above -3: at balances of -2 to -1 nobody
    moves; at 12 they never overlap.
    """

    def stuck(band: float) -> bool:
        limits = [6.0 * i - 8.0 * s for i, s in itertools.product(range(60), repeat=2)]
        reachable = [balance for balance in limits if -band <= balance <= band]
        return any(balance - 8 < -band and balance + 12 > band for balance in reachable)

    loop = LoopConfig(batch_size=8, group_size=2, train_steps=1)
    assert narrowest_band(loop, 6.0) == 12.0
    assert stuck(9.0) and not stuck(12.0)


def test_events_when_turns_are_taken_by_hand_alternate(toy, tmp_path) -> None:
    """B = 8, G = 4, 4 samples per insert: two groups fill; then each step overdraws by 8 and two steps follow a group.

    band = max(8, 16) = 16: draws go while 4 (inserted - 8) - sampled - 8 >= -16.
    """
    config = toy(
        loop={"clock": "turns", "generators": 1, "batch_size": 8, "group_size": 4, "train_steps": 8},
        buffer={"capacity": 16, "samples_per_insert": 4.0},
    )
    session = Session(config, ToyBackend(config), tmp_path / "run")
    order = []
    for event in session._loop.run(session._clock):
        if isinstance(event, Admitted | Stepped):
            order.append("G" if isinstance(event, Admitted) else "T")
    session.close()
    assert "".join(order) == "GGTTGTTGTTGTT"
    assert session._loop.ledger.switches == 7
