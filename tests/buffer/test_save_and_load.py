"""A buffer saved and loaded: everything comes back, here or in another process, as it was or as far as it fits."""

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import saved_draws
from families import RETENTIONS, SAMPLERS
from rollout_makers import EXTRAS, groups, plain, same_rollout

from ostinato.buffer import KeepBest, MinSize, Oldest, PositiveBias, ReplayBuffer, SamplesPerInsert, paper_fifo
from ostinato.buffer.sampling import Prioritized
from ostinato.errors import CheckpointError, DataError

RNG = np.random.default_rng


def used(buffer: ReplayBuffer, *, extras: str = "none", steps: int = 30) -> ReplayBuffer:
    """The buffer after some time: turned over, drawn from, written to, with holes."""
    rng = RNG(3)
    for step in range(steps):
        given = groups(rng, [3, 3], first_group=2 * step, version=step, extras=extras)
        buffer.add(given, train_step=step, priorities=rng.random(6) if step % 3 else None)
        try:
            draw = buffer.sample(6, train_step=step, rng=rng)
        except DataError:
            continue
        buffer.update_priorities(draw.rollout_ids, rng.random(6))
    held = buffer.state_arrays()["book.rollout_id"]
    buffer.remove(held[2::7])
    return buffer


def same_state(one: ReplayBuffer, two: ReplayBuffer) -> bool:
    a, b = one.state_arrays(), two.state_arrays()
    return a.keys() == b.keys() and all(
        x.dtype == b[name].dtype and x.tobytes() == b[name].tobytes() for name, x in a.items()
    )


def test_draws_when_loaded_in_another_process_are_the_ones_that_would_have_come(tmp_path) -> None:
    expected = {}
    for name in SAMPLERS:
        buffer, rng = used(saved_draws.empty_buffer(name, "numba")), RNG([1, 2])
        rng.random(7)
        buffer.save(tmp_path / name, draws=rng)
        expected[name] = saved_draws.next_draws(buffer, rng)
    command = [sys.executable, saved_draws.__file__, str(tmp_path), "numpy"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    assert json.loads(done.stdout) == expected
    assert len(set(expected.values())) == len(SAMPLERS)


@pytest.mark.parametrize("bits", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_generator_when_saved_beside_a_buffer_goes_on_in_the_middle_of_a_word(bits, tmp_path) -> None:
    rng, other = (np.random.Generator(getattr(np.random, bits)(seed)) for seed in (1, 2))
    rng.integers(0, 9, 3, dtype=np.uint8), rng.random(3, dtype=np.float32), rng.standard_normal()
    buffer = ReplayBuffer(4)
    buffer.save(tmp_path / "b", one=rng, two=other)
    loaded = buffer.load(tmp_path / "b")
    for before, after in ((rng, loaded["one"]), (other, loaded["two"])):
        assert before.random(9, dtype=np.float32).tolist() == after.random(9, dtype=np.float32).tolist()
        assert before.integers(1 << 62, size=9).tolist() == after.integers(1 << 62, size=9).tolist()


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("retention", RETENTIONS)
def test_state_when_saved_and_loaded_twice_is_identical(retention, extras, tmp_path) -> None:
    def make() -> ReplayBuffer:
        return ReplayBuffer(25, retention=RETENTIONS[retention](), first_id=3, id_stride=4)

    first = used(make(), extras=extras)
    first.save(tmp_path / "one")
    from_file, from_arrays = make(), make()
    from_file.load(tmp_path / "one")
    np.savez(tmp_path / "two.npz", **first.state_arrays())
    with np.load(tmp_path / "two.npz", allow_pickle=False) as arrays:
        from_arrays.load_state_arrays(dict(arrays))
    for again in (from_file, from_arrays):
        assert same_state(first, again)
        assert again.metrics() | {"allocated_bytes": 0, "bytes": 0} == first.metrics() | {
            "allocated_bytes": 0,
            "bytes": 0,
        }
        assert (again.added, again.train_step, len(again)) == (first.added, first.train_step, len(first))
    from_file.save(tmp_path / "three")
    assert (tmp_path / "three").read_bytes() == (tmp_path / "one").read_bytes()
    assert from_file.nbytes == first.nbytes
    ids = [
        b.add(plain(2) if extras == "none" else groups(RNG(0), [2], extras=extras), train_step=40)
        for b in (first, from_file)
    ]
    assert ids[0].tolist() == ids[1].tolist()
    assert ids[0].tolist() == [3 + 4 * (first.added - 2), 3 + 4 * (first.added - 1)]


def test_buffer_when_empty_is_saved_and_loaded_with_its_counters(tmp_path) -> None:
    buffer = paper_fifo(4)
    buffer.add(plain(3, source="math"), train_step=5)
    buffer.clear()
    buffer.save(tmp_path / "b")
    other = paper_fifo(4, min_size=1)
    other.load(tmp_path / "b")
    assert len(other) == 0 and (other.added, other.train_step) == (3, 5)
    assert other.add(plain(2, source="code"), train_step=5).tolist() == [3, 4]
    other.sample(2, train_step=5, rng=RNG(0))
    assert other.metrics()["drawn_source_share.code"] == 1.0


# ---------------------------------------------------------------- into another buffer


@pytest.mark.parametrize("way", ["file", "arrays"])
def test_buffer_when_loaded_into_fewer_rollouts_keeps_the_freshest(way, tmp_path) -> None:
    buffer = ReplayBuffer(20)
    given = groups(RNG(0), [4] * 5)
    buffer.add(given, train_step=0)
    buffer.remove([15])
    small = ReplayBuffer(6, sampler=Oldest())
    move(buffer, small, way, tmp_path / "b")
    assert small.columns["rollout_id"].tolist() == [13, 14, 16, 17, 18, 19]
    drawn = small.sample(6, train_step=0, rng=RNG(0))
    assert all(same_rollout(drawn.rollouts, i, given, row) for i, row in enumerate(drawn.rollout_ids))
    assert small.added == 20 and small.departures().tolist().count(0) == 14


@pytest.mark.parametrize("way", ["file", "arrays", "resize", "add"])
@pytest.mark.parametrize("lengths", [[60] * 40, [1000] * 4 + [10] * 40, [10, 2000] * 10, [3000] + [10] * 50])
def test_buffer_when_bytes_are_fewer_keeps_the_largest_part_that_fits_freshest_first(way, lengths, tmp_path) -> None:
    buffer = ReplayBuffer(100)
    for number, length in enumerate(lengths):
        buffer.add(plain(1, prompt=0, length=length, first=number), train_step=0)
    row = (buffer.nbytes - 8 * sum(lengths)) // len(lengths)
    sizes = [row + 8 * length for length in lengths]
    for bound in (sum(sizes) - 1, sum(sizes) // 2, sum(sizes) // 5):
        if way == "add":
            newcomer = plain(1, prompt=0, length=500, first=100)
            gap = np.arange(500) > 0  # and so it takes 9 bytes a token
            newcomer = newcomer.replace(loss_mask=gap, behavior_logprobs=np.where(gap, -0.5, 0).astype(np.float32))
            small = ReplayBuffer(100, capacity_bytes=bound + row + 500 * 9)
            small.load_state_arrays(buffer.state_arrays())
            small.add(newcomer, train_step=0)
        else:
            small = ReplayBuffer(100, capacity_bytes=None if way == "resize" else bound)
            move(buffer, small, "arrays" if way == "resize" else way, tmp_path / "b")
            if way == "resize":
                small.resize(100, bound)
        fitting = [n for n in range(len(sizes) + 1) if sum(sizes[len(sizes) - n :]) <= bound][-1]
        newest = list(range(len(sizes)))[len(sizes) - fitting :]
        assert [i for i in small.columns["rollout_id"].tolist() if i < len(sizes)] == newest


def test_buffer_when_loaded_under_another_sampler_and_retention_obeys_them(tmp_path) -> None:
    buffer = used(ReplayBuffer(40))
    rows = {name: buffer.columns[name].copy() for name in ("rollout_id", "priority", "reward")}
    buffer.save(tmp_path / "b")
    best = ReplayBuffer(10, sampler=Prioritized(exponent=1.0), retention=[KeepBest()], limiter=MinSize(1))
    best.load(tmp_path / "b")
    want = np.sort(rows["rollout_id"][np.lexsort((rows["rollout_id"], rows["priority"]))[-10:]])
    assert best.columns["rollout_id"].tolist() == want.tolist()
    drawn = best.sample(200, train_step=30, rng=RNG(0)).rollout_ids
    priority = dict(zip(rows["rollout_id"].tolist(), rows["priority"].tolist(), strict=True))
    share = np.array([priority[i] for i in want]) / sum(priority[i] for i in want)
    assert np.abs(np.bincount(np.searchsorted(want, drawn), minlength=10) / 200 - share).max() < 1 / 200 + 1e-9
    biased = ReplayBuffer(20, retention=[PositiveBias(0.5, 0.5)])
    biased.load(tmp_path / "b")
    held = biased.columns
    assert (held["reward"][:-10] > 0.5).all()
    assert held["rollout_id"][-10:].tolist() == rows["rollout_id"][-10:].tolist()


def test_buffer_when_loaded_into_more_room_holds_everything_and_fills_up(tmp_path) -> None:
    buffer = used(ReplayBuffer(10))
    buffer.save(tmp_path / "b")
    large = ReplayBuffer(50)
    large.load(tmp_path / "b")
    assert large.columns["rollout_id"].tolist() == buffer.columns["rollout_id"].tolist()
    large.add(groups(RNG(9), [40]), train_step=31)
    assert len(large) == len(buffer) + 40


def test_limiter_when_loaded_with_another_ratio_owes_nothing_and_with_the_same_goes_on(tmp_path) -> None:
    def make(ratio: float) -> ReplayBuffer:
        return ReplayBuffer(100, limiter=SamplesPerInsert(ratio, batch_size=4, group_size=4))

    buffer = make(1.0)
    for step in range(9):
        buffer.add(plain(4), train_step=step)
        if buffer.can_sample(4):
            buffer.sample(4, train_step=step, rng=RNG(step))
    buffer.save(tmp_path / "b")
    same, faster = make(1.0), make(8.0)
    same.load(tmp_path / "b")
    faster.load(tmp_path / "b")
    assert (same.can_add(4), same.can_sample(4)) == (buffer.can_add(4), buffer.can_sample(4))
    draws = 0
    while faster.can_sample(4):
        faster.sample(4, train_step=9, rng=RNG(draws))
        draws += 1
    assert draws == 8  # the band of 32, not 8 draws for each of the 36 rollouts that came before
    assert faster.can_add(4)


def test_buffer_when_loaded_refuses_a_train_step_that_went_backwards(tmp_path) -> None:
    buffer = paper_fifo(4, min_size=1)
    buffer.add(plain(2, policy_version_min=7), train_step=9)
    buffer.save(tmp_path / "b")
    loaded = paper_fifo(4, min_size=1)
    loaded.load(tmp_path / "b")
    for call in (
        lambda: loaded.add(plain(1), train_step=8),
        lambda: loaded.sample(1, train_step=8, rng=RNG(0)),
        lambda: loaded.retain(train_step=8),
    ):
        with pytest.raises(DataError, match="train step 8 comes after train step 9: steps must not fall"):
            call()
    assert loaded.sample(1, train_step=9, rng=RNG(0)).staleness.tolist() == [2]


def test_state_when_a_part_of_it_is_missing_or_wrong_changes_nothing() -> None:
    saved = used(saved_draws.empty_buffer("epoch", "auto"))
    buffer = saved_draws.empty_buffer("epoch", "auto")
    buffer.add(plain(3), train_step=2)
    before = buffer.state_arrays()
    arrays = saved.state_arrays()
    part = next(name for name in arrays if name.startswith("part."))
    for damaged in (
        {name.replace(part, f"{part}s"): array for name, array in arrays.items()},
        arrays | {part: np.array(["x"])},
        arrays | {"counters": np.array([1, 0, 1, 1, 0, 0])},  # one was added, the ids say otherwise
        arrays | {"book.uses": arrays["book.uses"] - 100},
    ):
        with pytest.raises(CheckpointError):
            buffer.load_state_arrays(damaged)
        after = buffer.state_arrays()
        assert all(np.array_equal(array, after[name]) for name, array in before.items())
    assert sorted(buffer.sample(3, train_step=2, rng=RNG(0)).rollout_ids.tolist()) == [0, 1, 2]


def move(one: ReplayBuffer, other: ReplayBuffer, way: str, path: Path) -> None:
    if way == "file":
        one.save(path)
        other.load(path)
    else:
        other.load_state_arrays(one.state_arrays())


# ---------------------------------------------------------------- in the long run


@pytest.mark.parametrize(
    ("sampler", "retention"),
    [("uniform", retention) for retention in RETENTIONS]
    + [(sampler, "oldest leave") for sampler in ("prioritized", "freshness", "epoch", "never used first", "mixture")],
)
def test_memory_and_file_when_the_buffer_turns_over_ten_times_stay_as_they_are(sampler, retention, tmp_path) -> None:
    buffer = ReplayBuffer(
        200, sampler=SAMPLERS[sampler][0](), retention=RETENTIONS[retention](), limiter=MinSize(1), kernels="numpy"
    )
    rng, taken, traced, files = RNG(0), [], [], []
    given = [groups(rng, [8] * 5, version=0, longest=40) for _ in range(8)]
    tracemalloc.start()
    for step in range(100):  # 40 rollouts a step
        part = given[step % 8].replace(policy_version_min=np.full(40, step), policy_version_max=np.full(40, step))
        buffer.add(part, train_step=step)
        for _ in range(2):
            if buffer.can_sample(16):
                draw = buffer.sample(16, train_step=step, rng=rng)
                buffer.update_priorities(draw.rollout_ids, rng.random(16))
        if step % 25 == 24:
            taken.append(buffer.allocated_bytes)
            files.append(buffer.save(tmp_path / "b"))
            traced.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert len(buffer) <= 200
    assert max(taken[1:]) < taken[0] + 100_000, "a few slabs of 16 KiB may be open"
    assert max(files[1:]) < 1.1 * files[0]
    assert max(traced[1:]) < traced[0] + 120_000
