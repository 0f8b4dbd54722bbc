"""Stop anywhere, go on: the same run."""

import json

import pytest

from ostinato.backends.toy import ToyBackend
from ostinato.errors import CheckpointError, ConfigError
from ostinato.loop import Session
from ostinato.telemetry import read_arrays, read_jsonl

TIMING = ("busy_generate_s", "busy_score_s", "busy_train_s", "mu_measured")

ARMS = {
    "replay": {"buffer": {"capacity": 252}},
    "shards": {"buffer": {"capacity": 252}, "loop": {"shards": True}},
    "queue": {"buffer": {"kind": "queue", "capacity": 180}},
    "blocked queue": {"buffer": {"kind": "queue", "capacity": 96}, "loop": {"generators": 8, "trainers": 1}},
    "epochs": {"buffer": {"kind": "queue", "capacity": 180}, "loop": {"epochs": 3}},
    "late weights": {"loop": {"publish_every": 4, "mu": 3.3}},
    "bounded": {"buffer": {"kind": "queue", "capacity": 180}, "loop": {"max_staleness": 1, "groups_per_request": 2}},
}


def outcome(directory, steps: int) -> tuple:
    records = [{k: v for k, v in r.items() if k not in TIMING} for r in read_jsonl(directory / "metrics.jsonl")]
    table = read_arrays(directory / "checkpoints" / f"step-{steps:08d}" / "trainer" / "table.npz")["table"]
    statistics = json.loads((directory / "statistics.json").read_text())
    return records, table.tolist(), statistics


@pytest.mark.parametrize("arm", ARMS)
def test_run_when_stopped_twice_equals_the_uninterrupted_one(toy, run_toy, arm) -> None:
    settings = {"evaluation": {"every_units": 4.0, "samples": 4}, "loop": {"train_steps": 48}}
    for section, values in ARMS[arm].items():
        settings[section] = settings.get(section, {}) | values
    config = toy(**settings)
    whole = outcome(run_toy(config), 48)
    directory = run_toy(config, stop_at=13)
    assert not (directory / "finished.json").exists()
    run_toy(config, directory=directory, resume=True, stop_at=29)
    run_toy(config, directory=directory, resume=True)
    assert outcome(directory, 48) == whole


def test_run_when_killed_between_checkpoints_goes_back_and_repeats(toy, run_toy) -> None:
    config = toy(loop={"train_steps": 30}, checkpoint_every=8)
    whole = outcome(run_toy(config), 30)

    class KilledError(Exception):
        pass

    directory = run_toy(config, stop_at=1).parent / "killed"
    session = Session(config, ToyBackend(config), directory)

    def die() -> bool:
        if session._loop.ledger.train_step == 21:
            raise KilledError
        return False

    with pytest.raises(KilledError):
        session.run(die)
    assert len(read_jsonl(directory / "metrics.jsonl")) == 21
    assert sorted(p.name for p in (directory / "checkpoints").iterdir()) == ["step-00000008", "step-00000016"]
    run_toy(config, directory=directory, resume=True)
    assert outcome(directory, 30) == whole


def test_run_when_its_budget_is_raised_goes_on_as_if_it_had_been_larger(toy, run_toy) -> None:
    whole = outcome(run_toy(toy(loop={"train_steps": 40})), 40)
    directory = run_toy(toy(loop={"train_steps": 25}))
    run_toy(toy(loop={"train_steps": 40}), directory=directory, resume=True)
    assert outcome(directory, 40) == whole


def test_two_runs_when_seeds_agree_are_equal_and_differ_otherwise(toy, run_toy) -> None:
    one, same, other = (outcome(run_toy(toy(loop={"train_steps": 10}, seed=seed)), 10) for seed in (3, 3, 4))
    assert one == same and one[1] != other[1]


def test_directory_when_it_holds_a_run_is_not_overwritten(toy, run_toy) -> None:
    config = toy(loop={"train_steps": 5})
    directory = run_toy(config)
    before = (directory / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="already holds a run; add --resume"):
        run_toy(config, directory=directory)
    with pytest.raises(ConfigError, match=r"was run with loop.mu = 5.28, cannot resume with 4.0"):
        run_toy(toy(loop={"train_steps": 9, "mu": 4.0}), directory=directory, resume=True)
    assert (directory / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("name", ["loop.json", "buffer.npz", "in_flight.npz", "published.npz", "trainer/table.npz"])
@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_checkpoint_when_damaged_is_refused_and_left_alone(toy, run_toy, name, damage) -> None:
    config = toy(loop={"train_steps": 9})
    directory = run_toy(config, stop_at=5)
    path = directory / "checkpoints" / "step-00000005" / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="step-00000005") as caught:
        run_toy(config, directory=directory, resume=True)
    assert "\n" not in str(caught.value)
    assert len(read_jsonl(directory / "metrics.jsonl")) == 5


def test_wall_clock_run_when_stopped_generates_the_groups_in_flight_again(toy, run_toy) -> None:
    config = toy(loop={"clock": "wall", "generators": 2, "train_steps": 40}, buffer={"capacity": 252})
    directory = run_toy(config, stop_at=10)
    state = json.loads((directory / "checkpoints" / "step-00000010" / "loop.json").read_text())
    in_flight = [tuple(groups) for groups in state["reissue"]]
    assert 1 <= len(in_flight) <= 2
    session = Session(config, ToyBackend(config), directory, resume=True)
    admitted = {int(g) for g in session._loop.parts.store.columns["group_id"]}
    assert not admitted & {g for groups in in_flight for g in groups}
    assert session._loop._next_request(1)[0].group_id == in_flight[0][0]
