"""Stop anywhere, go on: the same run."""

import errno
import fcntl
import json
import shutil

import pytest

from ostinato.backends.toy import ToyBackend
from ostinato.errors import CheckpointError, ConfigError, DataError, RunError
from ostinato.loop import Session, WallClock
from ostinato.loop.checkpoint import Place, save_checkpoint
from ostinato.telemetry import read_arrays, read_jsonl, write_arrays

TIMING = ("busy_generate_s", "busy_score_s", "busy_train_s", "mu_measured")

GOVERNORS = {
    "ratio_bound": 2.0,
    "ess_bound": 0.6,
    "min_samples": 30,
    "window": 90,
    "learning_rate": "sqrt",
    "gate_z": 0.5,
}

ARMS = {
    "replay": {"buffer": {"capacity": 252}},
    "shards": {"buffer": {"capacity": 252}, "loop": {"shards": True}},
    "positive bias": {"buffer": {"capacity": 252, "positive_bias": 0.5, "correct_above": 0.5}},
    "sharded epochs of draws": {"buffer": {"capacity": 252, "sampler": "epoch"}, "loop": {"shards": True}},
    "never used first": {"buffer": {"capacity": 252, "sampler": "never_used_first"}},
    "per": {"buffer": {"capacity": 252, "sampler": "per", "priority": "log_ratio"}},
    "freshness per": {"buffer": {"capacity": 252, "sampler": "freshness_per", "freshness_tau": 5.0, "beta": 0.4}},
    "anchored": {"buffer": {"capacity": 252, "sampler": "advantage_prioritized"}, "loop": {"shards": True}},
    "without replacement": {"buffer": {"capacity": 252, "sampler": "prioritized", "replacement": False}},
    "bytes": {"buffer": {"capacity": 600, "capacity_bytes": 24000}, "sampling": {"max_new_tokens": 2}},
    "governors": {
        "buffer": {"capacity": 252, "sampler": "prioritized", "priority": "kl"},
        "governors": GOVERNORS,
        "diagnostics": {"gradient_split_every": 5},
    },
    "governed shards": {"buffer": {"capacity": 252}, "governors": GOVERNORS, "loop": {"shards": True}},
    "governed epochs": {
        "buffer": {"kind": "queue", "capacity": 180},
        "governors": GOVERNORS,
        "diagnostics": {"gradient_split_every": 5},
        "loop": {"epochs": 3},
    },
    "queue": {"buffer": {"kind": "queue", "capacity": 180}},
    "blocked queue": {"buffer": {"kind": "queue", "capacity": 96}, "loop": {"generators": 8, "trainers": 1}},
    "epochs": {"buffer": {"kind": "queue", "capacity": 180}, "loop": {"epochs": 3}},
    "samples per insert": {"buffer": {"capacity": 252, "samples_per_insert": 3.0}, "loop": {"generators": 6}},
    "blocked shards": {
        "buffer": {"capacity": 252, "samples_per_insert": 2.5, "error_buffer": 75.0, "min_size": 90},
        "loop": {"shards": True, "generators": 6, "groups_per_request": 2},
    },
    "capacity auto": {"buffer": {"capacity": "auto"}, "control": {"every": 5, "window": 12}},
    "uses auto": {
        "buffer": {"capacity": 252, "samples_per_insert": "auto", "sampler": "per", "priority": "log_ratio"},
        "loop": {"generators": 6},
        "control": {"every": 4, "rho": 0.9},
    },
    "auto in shards": {
        "buffer": {"capacity": "auto", "samples_per_insert": "auto"},
        "loop": {"generators": 6, "shards": True},
        "control": {"every": 5, "rho": 0.01, "max_batches": 9},
    },
    "late weights": {"loop": {"publish_every": 4, "mu": 3.3}},
    "bounded": {"buffer": {"kind": "queue", "capacity": 180}, "loop": {"max_staleness": 1, "groups_per_request": 2}},
}


def outcome(directory, steps: int = 0) -> tuple:
    """What a run leaves; `steps`: where its last checkpoint is, which may be left out."""
    records = [{k: v for k, v in r.items() if k not in TIMING} for r in read_jsonl(directory / "metrics.jsonl")]
    last = f"step-{steps:08d}" if steps else max(path.name for path in (directory / "checkpoints").iterdir())
    table = read_arrays(directory / "checkpoints" / last / "trainer" / "table.npz")["table"]
    statistics = json.loads((directory / "statistics.json").read_text())
    return records, table.tolist(), statistics


@pytest.mark.parametrize("arm", ARMS)
def test_run_when_stopped_twice_equals_the_uninterrupted_one(toy, run_toy, arm) -> None:
    settings = {"evaluation": {"every_units": 4.0, "samples": 4}, "loop": {"train_steps": 48}}
    for section, values in ARMS[arm].items():
        settings[section] = settings.get(section, {}) | values
    config = toy(**settings)
    whole = outcome(run_toy(config))
    directory = run_toy(config, stop_at=13)
    assert not (directory / "finished.json").exists()
    run_toy(config, directory=directory, resume=True, stop_at=29)
    run_toy(config, directory=directory, resume=True)
    assert outcome(directory) == whole


def test_run_when_stopped_at_its_last_step_is_not_evaluated_twice(toy, run_toy) -> None:
    config = toy(loop={"train_steps": 6}, evaluation={"every_units": 0.1, "samples": 4})
    whole = outcome(run_toy(config))
    directory = run_toy(config, stop_at=6)
    run_toy(config, directory=directory, resume=True)
    assert outcome(directory) == whole


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
    evaluation = {"every_units": 4.0, "samples": 4}
    long, short = (toy(loop={"train_steps": steps}, evaluation=evaluation) for steps in (40, 25))
    whole = outcome(run_toy(long), 40)
    directory = run_toy(short)
    last = read_jsonl(directory / "metrics.jsonl")[-1]
    assert (last["event"], last["train_step"]) == ("evaluation", 25)
    run_toy(long, directory=directory, resume=True)
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


def test_directory_when_it_is_a_file_is_refused(toy, run_toy, tmp_path) -> None:
    (tmp_path / "notes").write_text("mine")
    for place in (tmp_path / "notes", tmp_path / "notes" / "run"):
        with pytest.raises(ConfigError, match=r"notes.* is a file, expected a run directory; choose another --out"):
            run_toy(toy(loop={"train_steps": 5}), directory=place)
    assert (tmp_path / "notes").read_text() == "mine"


def test_run_when_it_goes_on_with_less_memory_is_let(toy, run_toy) -> None:
    directory = run_toy(toy(loop={"train_steps": 5}))
    less = {"optimizer": {"tokens_per_microbatch": 64}, "vllm": {"kv_cache_gib": 0.5, "max_num_seqs": 8}}
    run_toy(toy(loop={"train_steps": 9}, **less), directory=directory, resume=True)
    assert read_jsonl(directory / "metrics.jsonl")[-1]["train_step"] == 9
    with pytest.raises(ConfigError, match=r"was run with vllm.pause = 'wait', cannot resume with 'keep'"):
        run_toy(toy(loop={"train_steps": 9}, vllm={"pause": "keep"}), directory=directory, resume=True)


NAMES = (
    "loop.json",
    "buffer.npz",
    "in_flight.npz",
    "published.npz",
    "trainer/table.npz",
    "trainer/governor.json",
)


@pytest.mark.parametrize("name", NAMES)
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
    session.close()


def test_wall_clock_run_when_one_generator_stands_before_a_full_queue_loses_no_group(toy, tmp_path) -> None:
    config = toy(loop={"clock": "wall", "generators": 3, "train_steps": 9}, buffer={"kind": "queue", "capacity": 72})
    stopped = Session(config, ToyBackend(config), tmp_path / "run")
    loop, held = stopped._loop, {}
    # One generator holds its group; those of the two others are still in threads.
    for rank in (1, 2, 3):
        (request,) = loop._next_request(rank)
        held[rank] = request.group_id
        if rank == 1:
            (loop._in_hand[rank],) = loop._generate(loop.parts.engines[0])([[request]])
    save_checkpoint(tmp_path / "run/checkpoints/step-00000000", loop, stopped._channel, WallClock(), Place())
    stopped.close()
    resumed = Session(config, ToyBackend(config), tmp_path / "run", resume=True)
    assert resumed._resumed[1].groups == (held[1],)
    assert resumed._loop.groups_in_flight == [(held[2],), (held[3],)]
    entered, store = [], resumed._loop.parts.store
    add = store.add
    store.add = lambda rollouts, **when: (entered.extend(rollouts.group_id.tolist()), add(rollouts, **when))
    resumed.run()
    assert set(held.values()) <= set(entered)


def test_directory_when_a_run_is_going_on_in_it_admits_no_second(toy, run_toy, tmp_path) -> None:
    config = toy(loop={"train_steps": 6})
    first = Session(config, ToyBackend(config), tmp_path / "run")
    for resume in (False, True):
        with pytest.raises(RunError, match=r"another run is going on in .*run$"):
            Session(config, ToyBackend(config), tmp_path / "run", resume=resume)
    first.run()
    assert len(read_jsonl(tmp_path / "run" / "metrics.jsonl")) == 6
    run_toy(toy(loop={"train_steps": 9}), directory=tmp_path / "run", resume=True)


def test_directory_when_a_run_was_killed_before_its_first_line_is_taken(toy, run_toy, tmp_path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    assert (run_toy(toy(loop={"train_steps": 2}), directory=tmp_path) / "finished.json").exists()


def test_directory_when_a_run_was_refused_there_is_free_again(toy, run_toy) -> None:
    directory = run_toy(toy(loop={"train_steps": 4}))
    with pytest.raises(ConfigError, match="already holds a run"):
        run_toy(toy(loop={"train_steps": 4}), directory=directory)
    run_toy(toy(loop={"train_steps": 6}), directory=directory, resume=True)


def test_directory_when_its_file_system_has_no_locks_is_used_without(toy, run_toy, monkeypatch) -> None:
    def flock(file, flags):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert (run_toy(toy(loop={"train_steps": 2})) / "finished.json").exists()


@pytest.mark.parametrize("gone", ["metrics.jsonl", "checkpoints"])
def test_directory_when_run_json_is_gone_is_left_alone(toy, run_toy, gone) -> None:
    config = toy(loop={"train_steps": 4})
    directory = run_toy(config)
    (directory / "run.json").unlink()
    shutil.rmtree(directory / gone) if gone == "checkpoints" else (directory / gone).unlink()
    names = {path.name for path in directory.rglob("*")}
    with pytest.raises(ConfigError, match="already holds a run"):
        run_toy(config, directory=directory)
    with pytest.raises(CheckpointError, match=r"without run\.json in .*settings are unknown"):
        run_toy(config, directory=directory, resume=True)
    assert {path.name for path in directory.rglob("*")} == names


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"null", b'{"settings": 3}', b'{"settings": "\xff"}'])
def test_directory_when_run_json_is_damaged_is_refused_by_name(toy, run_toy, content) -> None:
    config = toy(loop={"train_steps": 4})
    directory = run_toy(config)
    (directory / "run.json").write_bytes(content)
    with pytest.raises(DataError, match=r"run\.json"):
        run_toy(config, directory=directory, resume=True)
    assert (directory / "run.json").read_bytes() == content


@pytest.mark.parametrize("size", [None, 0, 1000])
def test_metrics_when_shorter_than_the_checkpoint_expects_are_refused_before_training(toy, run_toy, size) -> None:
    config = toy(loop={"train_steps": 9})
    directory = run_toy(config, stop_at=5)
    path = directory / "metrics.jsonl"
    written = path.stat().st_size
    path.unlink()
    if size is not None:
        path.write_bytes(b" " * size)
    with pytest.raises(CheckpointError, match=rf"has {size or 0} bytes, the checkpoint expects at least {written}"):
        run_toy(config, directory=directory, resume=True)
    assert path.exists() == (size is not None) and not (directory / "finished.json").exists()


def test_metrics_when_a_line_is_damaged_are_refused_before_training(toy, run_toy) -> None:
    config = toy(loop={"train_steps": 9})
    directory = run_toy(config, stop_at=5)
    path = directory / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"#" * (len(lines[2]) - 1) + b"\n", *lines[3:]]))
    with pytest.raises(DataError, match=r"metrics\.jsonl:3 is not JSON"):
        run_toy(config, directory=directory, resume=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: [],
        lambda state: None,
        lambda state: {**state, "format": 0},
        lambda state: {**state, "ledger": {"train_step": 5, "unknown": 1}},
        lambda state: {**state, "extra": {"next": 1}},
        lambda state: {**state, "flights": [1]},
        lambda state: {**state, "reissue": 3},
        lambda state: {**state, "now": None},
        lambda state: {**state, "draw_rng": {"bit_generator": "MT19937"}},
        lambda state: {key: value for key, value in state.items() if key != "statistics"},
    ],
)
def test_checkpoint_when_its_json_has_another_shape_is_refused(toy, run_toy, change) -> None:
    config = toy(loop={"train_steps": 9})
    directory = run_toy(config, stop_at=5)
    path = directory / "checkpoints" / "step-00000005" / "loop.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(CheckpointError, match="step-00000005"):
        run_toy(config, directory=directory, resume=True)


@pytest.mark.parametrize("name", ["buffer.npz", "published.npz", "trainer/table.npz"])
@pytest.mark.parametrize("place", ["compression", "header"])
def test_checkpoint_when_bytes_of_an_array_file_change_is_refused(toy, run_toy, name, place) -> None:
    config = toy(loop={"train_steps": 9})
    directory = run_toy(config, stop_at=5)
    path = directory / "checkpoints" / "step-00000005" / name
    content = bytearray(path.read_bytes())
    if place == "compression":  # the method of an entry in the archive's directory: zipfile has no such method
        content[content.rindex(b"PK\x01\x02") + 10] = 99
    else:  # numpy parses this text: an unclosed string is an error of the tokenizer
        at = content.index(b"{'descr'")
        content[at : at + 9] = b"{'''''' ("
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="step-00000005"):
        run_toy(config, directory=directory, resume=True)


@pytest.mark.parametrize("name", ["trainer/table.npz", "published.npz"])
def test_checkpoint_when_its_weights_have_another_shape_is_refused(toy, run_toy, name) -> None:
    config = toy(loop={"train_steps": 9})
    directory = run_toy(config, stop_at=5)
    path = directory / "checkpoints" / "step-00000005" / name
    arrays = read_arrays(path)
    key = "table" if "table" in arrays else "weights.table"
    write_arrays(path, arrays | {key: arrays[key][:3]})
    with pytest.raises(CheckpointError, match=r"shape \(3, 2, 4\), expected \(8, 2, 4\)"):
        run_toy(config, directory=directory, resume=True)


def test_checkpoints_when_others_stand_beside_them_are_told_by_their_names(toy, run_toy) -> None:
    config = toy(loop={"train_steps": 9})
    directory = run_toy(config, stop_at=5)
    for name in ("step-zzz", "step-99999999x", "step-1", ".notes"):
        (directory / "checkpoints" / name).mkdir()
    run_toy(config, directory=directory, resume=True)
    assert len(list((directory / "checkpoints").iterdir())) == 4 + 2


def test_checkpoints_when_a_kill_left_halves_are_tidied_on_resume(toy, run_toy) -> None:
    config = toy(loop={"train_steps": 12})
    whole = outcome(run_toy(config), 12)
    directory = run_toy(config, stop_at=5)
    kept = directory / "checkpoints"
    (kept / ".step-00000007.abc123").mkdir()
    # Killed between the two renames of a checkpoint that takes the place of another.
    (kept / "step-00000005").rename(kept / ".step-00000005.def456.replaced")
    (kept / ".step-00000005.def456").mkdir()
    run_toy(config, directory=directory, resume=True)
    assert sorted(path.name for path in kept.iterdir()) == ["step-00000005", "step-00000012"]
    assert outcome(directory, 12) == whole


def test_finished_run_when_resumed_with_nothing_left_to_do_stays_as_it_is(toy, run_toy) -> None:
    config = toy(loop={"train_steps": 10}, evaluation={"every_units": 4.0, "samples": 4})
    directory = run_toy(config)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    run_toy(config, directory=directory, resume=True)
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
