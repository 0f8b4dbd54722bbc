"""Buffers and files as one thing to look at: order, chunks, selection, and nothing changed."""

import json
import tracemalloc

import numpy as np
import pytest
from rollout_examples import equal, line

from ostinato import CheckpointError, ConfigError, DataError, ReplayBuffer, Rollouts, ShardedBuffer
from ostinato.buffer import MaxStaleness, MaxUses
from ostinato.buffer.journal import JournaledBuffer
from ostinato.ragged import Ragged
from ostinato.rollout_arrays import from_arrays
from ostinato.rollout_files import ReadRules, filled_buffer, open_stored, shown_rows, summary, write_rollouts
from ostinato.rollout_files import stored as stored_module
from ostinato.rollouts import concatenate
from ostinato.telemetry import write_arrays


def rollouts(first: int, n: int) -> Rollouts:
    names = np.arange(first, first + n)
    rows = [[int(name)] * (int(name) % 5 + 1) for name in names]
    extras = {"turns": names.astype(np.int16), "mask": Ragged.from_rows([np.array(row, np.uint8) for row in rows])}
    return Rollouts.from_completions(
        [[1, 2]] * n, rows, [[-0.1 * len(row)] * len(row) for row in rows], prompt_id=names, group_id=names,
        reward=names * 1.0, source=[f"s{name % 3}" for name in names], extras=extras,
    )  # fmt: skip


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The same 20 rollouts, 0 to 19, in five places; chunks of 7 rollouts or 40 tokens."""
    monkeypatch.setattr(stored_module, "CHUNK_ROLLOUTS", 7)
    monkeypatch.setattr(stored_module, "CHUNK_TOKENS", 40)
    whole = rollouts(0, 20)
    one, three = ReplayBuffer(20), ShardedBuffer([ReplayBuffer(9, first_id=i, id_stride=3) for i in range(3)])
    one.add(rollouts(90, 10), train_step=0)
    for store in (one, three):
        for first, n in ((0, 3), (3, 10), (13, 7)):
            store.add(rollouts(first, n), train_step=4)
    one.save(tmp_path / "one.ost")
    write_arrays(tmp_path / "one.npz", one.state_arrays())
    write_arrays(tmp_path / "three.npz", three.state_arrays())
    write_rollouts(tmp_path / "a.jsonl", [whole])
    write_rollouts(tmp_path / "a.parquet", [whole])
    return whole, tmp_path


@pytest.mark.parametrize("name", ["one.ost", "one.npz", "three.npz", "a.jsonl", "a.parquet"])
def test_stored_when_read_gives_the_rollouts_in_order(kept, name) -> None:
    whole, directory = kept
    stored = open_stored(directory / name, ReadRules(chunk_rollouts=7))
    parts = list(stored.parts())
    equal(concatenate(parts), whole)
    assert max(map(len, parts)) <= 7
    assert name.startswith("a") or max(len(part.tokens) for part in parts) <= 40
    assert len(stored) == 20
    columns = stored.columns()
    assert columns["reward"].tolist() == whole.reward.tolist() and columns["source"].tolist() == whole.source.tolist()
    assert columns["length"].tolist() == whole.lengths.tolist()
    for rows in ([3], [19, 0, 7, 7, 12], [0, 1]):
        equal(stored.select(rows), whole.select(rows))
    equal(concatenate(list(stored.parts())), whole)


@pytest.mark.parametrize("name", ["one.ost", "a.jsonl"])
def test_buffer_when_filled_holds_the_newest_in_order(kept, name) -> None:
    whole, directory = kept
    stored = open_stored(directory / name)
    assert filled_buffer(stored).columns["reward"].tolist() == whole.reward.tolist()
    small = filled_buffer(stored, capacity=3, train_step=9)
    assert small.columns["reward"].tolist() == [17, 18, 19] and small.columns["insert_step"].tolist() == [9] * 3
    tight = filled_buffer(stored, capacity_bytes=2000)
    tight.check()
    assert 0 < len(tight) < 20 and tight.columns["reward"][-1] == 19


def test_buffer_when_filled_at_an_earlier_step_is_refused(lines) -> None:
    stored = open_stored(lines(line(policy_version=7)))
    with pytest.raises(ConfigError, match="train step 6 comes before 7"):
        filled_buffer(stored, train_step=6)
    assert filled_buffer(stored).train_step == 7


def test_buffer_when_filled_at_a_step_past_counting_is_refused(lines) -> None:
    with pytest.raises(DataError, match="expected below"):
        filled_buffer(open_stored(lines(line(policy_version=2**62))))
    with pytest.raises(ConfigError, match="expected below"):
        filled_buffer(open_stored(lines(line())), train_step=2**62)
    assert filled_buffer(open_stored(lines(line(policy_version=2**62 - 1)))).train_step == 2**62 - 1


def test_file_when_of_many_tokens_is_read_in_bounded_memory(tmp_path) -> None:
    path, count = tmp_path / "a.jsonl", 150
    record = line([3] * 1000, reward=1)
    path.write_text((json.dumps(record) + "\n") * count)
    total = count * 1002 * 9
    tracemalloc.start()
    try:
        stored = open_stored(path, ReadRules(chunk_rollouts=2))
        for _ in stored.parts():
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert stored.nbytes > total
    assert peak < total / 3


def test_checkpoint_when_damaged_or_incomplete_is_refused(kept) -> None:
    _, directory = kept
    content = (directory / "one.npz").read_bytes()
    for name, damaged in (("cut.npz", content[: len(content) // 2]), ("empty.npz", b"")):
        (directory / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=name):
            open_stored(directory / name)
    write_arrays(directory / "other.npz", {"weights": np.zeros(3)})
    with pytest.raises(CheckpointError, match=r"other\.npz"):
        open_stored(directory / "other.npz")


def files(directory) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(directory.iterdir())}


def test_journal_when_of_any_sampler_and_retention_shows_what_its_owner_holds(tmp_path) -> None:
    buffer = ReplayBuffer(12, capacity_bytes=4000, retention=[MaxUses(2), MaxStaleness(3)])
    rng = np.random.default_rng(0)
    with JournaledBuffer(buffer, tmp_path / "j", max_bytes=3000) as journal:  # begins its log anew now and then
        for step in range(12):
            now = np.full(4, step)
            fresh = rollouts(10 * step, 4).replace(policy_version_min=now, policy_version_max=now)
            journal.add(fresh, train_step=step)
            journal.sample(3, train_step=step, rng=rng)
            before = files(tmp_path / "j")
            stored = open_stored(tmp_path / "j")
            assert files(tmp_path / "j") == before
            for name in ("rollout_id", "uses", "reward", "insert_step", "last_use_step"):
                assert stored.columns()[name].tolist() == buffer.columns[name].tolist(), name
            assert stored.train_step == step
        assert not (tmp_path / "j" / f"snapshot-{0:020}.ost").exists()  # it did begin anew
        equal(concatenate(list(stored.parts())), held(buffer))
    equal(concatenate(list(open_stored(tmp_path / "j").parts())), held(buffer))


def test_journal_when_begun_anew_while_it_is_read_is_read_again(tmp_path, monkeypatch) -> None:
    with JournaledBuffer(ReplayBuffer(9), tmp_path / "j") as journal:
        journal.add(rollouts(0, 2), train_step=0)
        replayed, calls = stored_module._replayed, []

        def late(directory, names, buffer):
            calls.append(names)
            if len(calls) == 1:
                journal.add(rollouts(2, 2), train_step=1)
                journal.rotate()
            return replayed(directory, names, buffer)

        monkeypatch.setattr(stored_module, "_replayed", late)
        assert len(open_stored(tmp_path / "j")) == 4
        assert len(calls) == 2 and calls[0] != calls[1]


def held(buffer: ReplayBuffer) -> Rollouts:
    return from_arrays(buffer.state_arrays(), prefix="rollouts.")


def test_journal_when_damaged_is_refused_by_its_own_name_and_left_alone(tmp_path) -> None:
    directory = tmp_path / "j"
    with JournaledBuffer(ReplayBuffer(9), directory) as journal:
        for step in range(4):
            journal.add(rollouts(step, 2), train_step=step)
    [log] = directory.glob("log-*.seg")
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    before = files(directory)
    with pytest.raises(CheckpointError, match=str(directory)):
        open_stored(directory)
    assert files(directory) == before
    log.write_bytes(content[:-5])
    (directory / "journal.ost").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"journal\.ost"):
        open_stored(directory)


def test_path_when_nothing_keeps_rollouts_there_is_refused(tmp_path) -> None:
    (tmp_path / "a.txt").write_text("x")
    for name, said in (("a.txt", "neither a buffer snapshot"), (".", "neither a checkpoint"), ("no", "does not exist")):
        with pytest.raises(DataError, match=said):
            open_stored(tmp_path / name)


def test_summary_when_of_a_file_counts_ages_from_its_newest_step(lines) -> None:
    path = lines(*[line(policy_version=v, reward=r, group_id=g) for v, r, g in ((3, 1, 1), (5, 0, 1), (9, 1, 2))])
    found = summary(open_stored(path), correct_above=1)
    assert found["train_step"] == 9 and found["staleness"]["mean"] == pytest.approx((6 + 4 + 0) / 3)
    assert found["correct_fraction"] == 0
    assert found["informative_fraction"] == {"rollouts": pytest.approx(2 / 3), "groups": 0.5}
    assert found["policy_version"] == {"min": 3, "max": 9}


def test_rows_when_asked_for_wrongly_are_refused(lines) -> None:
    stored = open_stored(lines(line()))
    assert shown_rows(stored, 0) is None
    for sort, said in (("uses", "does not say how often"), ("size", "expected one of reward, age, uses")):
        with pytest.raises(ConfigError, match=said):
            shown_rows(stored, 1, sort=sort)
