"""Where payload lies: spans in slabs, values stored once, extra columns of any dtype. Against dicts and plain sums."""

import zlib

import numpy as np
import pytest
from rollout_makers import extra_row, plain, same_rollout

from ostinato.buffer import MinSize, Oldest, PositiveBias, PromptsLeft, ReplayBuffer, Uniform
from ostinato.buffer.arena import Arena
from ostinato.buffer.blobs import Blobs
from ostinato.buffer.kernels import kernels as make_kernels
from ostinato.buffer.repeats import numbered
from ostinato.errors import DataError
from ostinato.ragged import Ragged, offsets_of
from ostinato.rollouts import Rollouts

RNG = np.random.default_rng
KERNELS = ("numpy", "numba")
LEAVING = ("oldest first", "any order", "positive bias")


def leaving(order: str, held: list[tuple[int, bool]], capacity: int, rng: np.random.Generator) -> list[int]:
    """Positions in `held`, of (handle, correct), of what must leave."""
    over = len(held) - capacity
    if over <= 0:
        return []
    if order == "oldest first":
        return list(range(over))
    if order == "any order":
        return sorted(rng.choice(len(held), over, replace=False).tolist())
    older = len(held) - capacity // 2
    correct = [i for i in range(older) if held[i][1]]
    stay = set(correct[-(capacity - capacity // 2) :])
    return [i for i in range(older) if i not in stay]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("order", LEAVING)
@pytest.mark.parametrize("longest", [0, 40, 9000])  # 9,000 items of 12 bytes are longer than a slab
def test_arena_when_spans_come_and_leave_agrees_with_a_dict(kernels, order, longest) -> None:
    rng = RNG(1)
    arena = Arena({"a": (np.int32, ()), "b": (np.float32, (2,))}, make_kernels(kernels))
    model: dict[int, np.ndarray] = {}
    held: list[tuple[int, bool]] = []
    for _ in range(120):
        lengths = rng.integers(0, longest + 1, int(rng.integers(0, 12)))
        starts = offsets_of(lengths)[:-1] + 5
        source = rng.integers(0, 1 << 20, int(lengths.sum()) + 9).astype(np.int32)
        handles = arena.put({"a": source, "b": np.stack([source, -source], 1).astype(np.float32)}, starts, lengths)
        assert not set(handles.tolist()) & model.keys() and len(set(handles.tolist())) == len(handles)
        model |= {int(h): source[s : s + n].copy() for h, s, n in zip(handles, starts, lengths, strict=True)}
        held += [(int(handle), bool(rng.random() < 0.4)) for handle in handles]
        gone = leaving(order, held, 40, rng)
        arena.release(np.array([held[i][0] for i in gone], np.int64))
        for i in gone:
            del model[held[i][0]]
        held = [one for i, one in enumerate(held) if i not in set(gone)]
        assert arena.live_items == sum(map(len, model.values())) and arena.item_bytes == 12
        assert arena.live_bytes <= arena.allocated_bytes
        chosen = np.array([one[0] for one in held], np.int64)[rng.integers(0, max(1, len(held)), 20 if held else 0)]
        starts = offsets_of(arena.lengths(chosen))
        a, b = np.empty(starts[-1], np.int32), np.empty((starts[-1], 2), np.float32)
        arena.copy_out("a", chosen, a, starts[:-1])
        arena.copy_out("b", chosen, b, starts[:-1])
        want = np.concatenate([np.empty(0, np.int32), *(model[int(handle)] for handle in chosen)])
        assert np.array_equal(a, want) and np.array_equal(b, np.stack([want, -want], 1))
        if held:
            assert np.array_equal(arena.view("a", held[-1][0]), model[held[-1][0]])


@pytest.mark.parametrize(("order", "bound"), [("oldest first", 1.05), ("positive bias", 1.1), ("any order", 1.25)])
def test_arena_when_it_turned_over_takes_little_more_memory_than_it_holds(order, bound) -> None:
    rng, capacity = RNG(2), 8000
    arena = Arena({"tokens": (np.int32, ()), "logprobs": (np.float32, ())}, make_kernels("auto"))
    held: list[tuple[int, bool]] = []
    worst = 0.0
    for turn in range(500):
        lengths = np.minimum(rng.exponential(900, 64).astype(np.int64), 8000)
        total = int(lengths.sum())
        columns = {"tokens": np.zeros(total, np.int32), "logprobs": np.zeros(total, np.float32)}
        handles = arena.put(columns, offsets_of(lengths)[:-1], lengths)
        held += [(handle, bool(rng.random() < 0.4)) for handle in handles.tolist()]
        gone = leaving(order, held, capacity, rng)
        arena.release(np.array([held[i][0] for i in gone], np.int64))
        away = set(gone)
        held = [one for i, one in enumerate(held) if i not in away]
        if turn > 250:  # two turnovers
            worst = max(worst, arena.allocated_bytes / arena.live_bytes)
    assert worst < bound


@pytest.mark.parametrize(("retention", "bound"), [([], 1.05), ([PositiveBias(0.5, 0.5)], 1.05)])
def test_buffer_when_it_turned_over_takes_little_more_memory_than_the_payload(retention, bound) -> None:
    buffer, rng = ReplayBuffer(1000, retention=retention), RNG(3)
    for number in range(250):
        lengths = np.minimum(rng.exponential(1200, 16).astype(int), 8000) + 1
        completions = [np.full(length, number, np.int32) for length in lengths]
        logprobs = [np.zeros(length, np.float32) for length in lengths]
        prompt = rng.integers(0, 1000, 200)
        reward = rng.integers(0, 2, 16).astype(float)
        group = Rollouts.from_completions([prompt] * 16, completions, logprobs, reward=reward)
        buffer.add(group, train_step=number)
    payload = int((9 * buffer.columns["length"].astype(np.int64)).sum())
    assert buffer.allocated_bytes < bound * payload


def test_long_rollout_when_stored_takes_eight_bytes_a_token_and_nine_where_the_mask_has_gaps() -> None:
    long = plain(1, prompt=0, length=32_768)
    mask = np.arange(32_768) % 1000 < 900
    gaps = long.replace(loss_mask=mask, behavior_logprobs=np.where(mask, -0.5, 0).astype(np.float32))
    for rollout, each in ((long, 8), (gaps, 9)):
        buffer = ReplayBuffer(4, capacity_bytes=32_768 * 9 + 1000)
        buffer.add(rollout, train_step=0)
        assert 32_768 * each <= buffer.nbytes < 32_768 * each + 400
        assert buffer.allocated_bytes < 32_768 * each + 50_000
        buffer.add(rollout, train_step=0)
        assert buffer.columns["rollout_id"].tolist() == [1]
        with pytest.raises(DataError, match="do not fit in a buffer of capacity_bytes"):
            buffer.add(plain(1, prompt=0, length=33_000), train_step=0)


# ---------------------------------------------------------------- shared values


@pytest.mark.parametrize("kernels", KERNELS)
def test_blobs_when_values_repeat_are_stored_once_and_leave_with_their_last_user(kernels) -> None:
    rng, blobs = RNG(4), Blobs(np.int32, (), make_kernels(kernels))
    values = [rng.integers(0, 99, length).astype(np.int32) for length in (0, 1, 15, 16, 17, 100, 100)]
    held: list[tuple[int, int]] = []  # handle, number of the value
    for _ in range(300):
        numbers = rng.integers(0, len(values), int(rng.integers(1, 5)))
        lengths = np.array([len(values[number]) for number in numbers])
        packed = np.concatenate([values[number] for number in numbers])
        handles = np.broadcast_to(blobs.put(packed, offsets_of(lengths)[:-1], lengths), len(numbers))
        held += list(zip(handles.tolist(), numbers.tolist(), strict=True))
        gone = set(rng.choice(len(held), max(0, len(held) - 12), replace=False).tolist())
        blobs.release(np.array([held[i][0] for i in sorted(gone)], np.int64))
        held = [one for i, one in enumerate(held) if i not in gone]
        assert all(np.array_equal(blobs.arena.view("values", handle), values[number]) for handle, number in held)
        large = {number for _, number in held if len(values[number]) >= 16}  # from 64 bytes on
        small = {one for one in held if len(values[one[1]]) < 16}
        assert blobs.live_bytes == 4 * (sum(len(values[i]) for i in large) + sum(len(values[i]) for _, i in small))


@pytest.mark.parametrize("kernels", KERNELS)
def test_values_when_their_checksums_collide_stay_apart(kernels) -> None:
    # CRC-32 is linear: for parts of equal length, crc(a ^ b ^ c) = crc(a) ^ crc(b) ^ crc(c). So x and x ^ d collide
    # when crc(d) = crc(0); d below is such a pattern, found by Gaussian elimination over 33 single bits.
    one = np.zeros(64, np.uint8)
    other = colliding(one)
    blobs = Blobs(np.uint8, (), make_kernels(kernels))
    first = blobs.put(one, np.array([0]), np.array([64]))
    second = blobs.put(other, np.array([0]), np.array([64]))
    third = blobs.put(other, np.array([0]), np.array([64]))
    assert len({int(first[0]), int(second[0])}) == 2
    blobs.release(first)
    assert [bytes(blobs.arena.view("values", int(h[0]))) for h in (second, third)] == [other.tobytes()] * 2
    blobs.release(np.concatenate([second, third]))
    assert blobs.live_bytes == 0


def colliding(value: np.ndarray) -> np.ndarray:
    """Another value of the same length and CRC-32."""
    base = zlib.crc32(value.tobytes())
    basis: dict[int, tuple[int, set[int]]] = {}
    for bit in range(40):
        changed = value.copy()
        changed[bit // 8] ^= 1 << (bit % 8)
        rest, bits = zlib.crc32(changed.tobytes()) ^ base, {bit}
        while rest and rest.bit_length() in basis:
            other, others = basis[rest.bit_length()]
            rest, bits = rest ^ other, bits ^ others
        if rest:
            basis[rest.bit_length()] = rest, bits
            continue
        for one in bits:
            value = value.copy()
            value[one // 8] ^= 1 << (one % 8)
        assert zlib.crc32(value.tobytes()) == base
        return value
    raise AssertionError("40 bits are more than 32")


def test_images_when_shared_by_a_group_are_stored_once_until_the_last_member_leaves() -> None:
    buffer = ReplayBuffer(64, limiter=MinSize(1))
    image = RNG(0).integers(0, 255, (2, 3, 8, 8), dtype=np.uint8)
    buffer.add(plain(8, extras={"image": np.repeat(image[:1], 8, 0)}), train_step=0)
    one = buffer.nbytes
    buffer.add(plain(1, first=8, extras={"image": image[:1]}), train_step=0)  # members may come one at a time
    buffer.add(plain(1, first=9, extras={"image": image[1:]}), train_step=0)
    row = (one - 192 - 8 * (3 * 8 + 2 * 4)) // 8
    assert buffer.nbytes == one + 2 * (row + 3 * 8 + 2 * 4) + 192
    buffer.remove(range(8))
    assert buffer.nbytes == 2 * (row + 3 * 8 + 2 * 4 + 192)
    held = buffer.sample(20, train_step=0, rng=RNG(1))
    for i, rollout_id in enumerate(held.rollout_ids.tolist()):
        assert np.array_equal(held.rollouts.extras["image"][i], image[rollout_id - 8])
    buffer.remove([8])
    assert buffer.nbytes == row + 3 * 8 + 2 * 4 + 192


def test_prompt_when_long_is_stored_once_however_its_rollouts_come() -> None:
    together, apart = ReplayBuffer(99), ReplayBuffer(99)
    group = Rollouts.from_completions([list(range(1000))] * 8, [[1, 2]] * 8, [[-1.0, -1.0]] * 8)
    together.add(group, train_step=0)
    for i in range(8):
        apart.add(group.select([i]), train_step=0)
    assert together.nbytes == apart.nbytes < 4000 + 8 * 400
    apart.remove(range(7))
    assert same_rollout(apart.sample(1, train_step=0, rng=RNG(0)).rollouts, 0, group, 7)


def test_trajectory_when_the_policy_wrote_part_of_its_prompt_is_stored_whole_and_exact() -> None:
    group = Rollouts.from_completions([[5, 6, 7, 8]] * 3, [[9], [], [9, 9]], [[-1.0], [], [-2.0, -3.0]])
    mask, logprobs = group.loss_mask.copy(), group.behavior_logprobs.copy()
    mask[1], logprobs[group.offsets[1] + 2] = True, -0.25  # one by its mask, one by its log-probs, one by neither
    group = group.replace(loss_mask=mask, behavior_logprobs=logprobs)
    for kernels in KERNELS:
        buffer = ReplayBuffer(3, sampler=Oldest(), kernels=kernels)
        buffer.add(group, train_step=0)
        drawn = buffer.sample(3, train_step=0, rng=RNG(0)).rollouts
        assert all(same_rollout(drawn, i, group, i) for i in range(3))
        padded = buffer.sample_padded(3, train_step=0, rng=RNG(0), layout=PromptsLeft())
        assert padded.prompt_width == 4 and padded.loss_mask[0].tolist() == [False, True, False, False, True, False]
        assert padded.behavior_logprobs[1].tolist() == [0, 0, -0.25, 0, 0, 0]


# ---------------------------------------------------------------- extra columns


def test_texts_when_they_get_wider_come_back_as_they_were() -> None:
    words = ["", "a", "λ" * 40, "bb", "c" * 300, "dd"]
    buffer = ReplayBuffer(4, limiter=MinSize(1))
    for i, word in enumerate(words):
        extras = {"word": np.array([word]), "code": np.array([word.encode()])}
        buffer.add(plain(1, first=i, extras=extras), train_step=0)
    draw = buffer.sample(40, train_step=0, rng=RNG(0))
    assert set(draw.rollout_ids.tolist()) == {2, 3, 4, 5}
    for i, rollout_id in enumerate(draw.rollout_ids.tolist()):
        assert draw.rollouts.extras["word"][i] == words[rollout_id]
        assert draw.rollouts.extras["code"][i] == words[rollout_id].encode()


@pytest.mark.parametrize("kernels", KERNELS)
def test_texts_when_bytes_are_bounded_never_take_more(kernels) -> None:
    for widths in ([200, *[2] * 15], [*[2] * 15, 200]):
        buffer = ReplayBuffer(100, capacity_bytes=4000, kernels=kernels)
        for i, width in enumerate(widths):
            buffer.add(plain(1, first=i, extras={"word": np.array([f"{i}" * width])}), train_step=0)
            buffer.check()
            assert buffer.nbytes <= 4000
            assert buffer.columns["rollout_id"][-1] == i


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    "extra",
    [
        np.zeros((4, 0)),
        np.zeros((4, 0), "U3"),
        Ragged(np.zeros((6, 0), np.int8), np.array([0, 1, 3, 3, 6])),
        Ragged(np.arange(6.0), np.array([0, 0, 0, 6, 6])),
        np.array([1, 2, 3, 4], ">i4"),
        np.arange(24, dtype=np.float16).reshape(4, 3, 2),
        np.array(["2026-01-01", "NaT", "1970-01-01", "2000-02-29"], "datetime64[D]"),
        np.array([(1, 2.0), (3, 4.0), (5, -0.0), (7, np.nan)], [("a", "i2"), ("b", "f8")]),
        np.array([1 + 2j, 0, np.inf, 3], np.complex64),
        np.asfortranarray(np.arange(12).reshape(4, 3)),
        np.arange(8)[::2],
    ],
)
def test_extra_when_of_any_dtype_and_shape_survives_memory_and_file(kernels, extra, tmp_path) -> None:
    buffer, loaded = (ReplayBuffer(9, sampler=Oldest(), kernels=kernels) for _ in range(2))
    buffer.add(plain(4, extras={"x": extra}), train_step=0)
    buffer.save(tmp_path / "buffer")
    loaded.load(tmp_path / "buffer")
    for one in (buffer, loaded):
        got = one.sample(4, train_step=0, rng=RNG(0)).rollouts.extras["x"]
        assert type(got) is type(extra)
        for i in range(4):
            want = extra_row(extra, i)
            assert extra_row(got, i).dtype == want.dtype and extra_row(got, i).tobytes() == want.tobytes()
        one.add(plain(4, first=4, extras={"x": extra}), train_step=0)
        one.check()


def test_image_rows_when_a_permuted_subset_is_drawn_belong_to_their_rollout() -> None:
    """Rollouts with 0, 1 and 3 images of differing grids: flat pixel rows and a grid a rollout, both ragged."""
    grids = [[], [(2, 3)], [(1, 1), (4, 2), (2, 2)], [(1, 5)]]
    pixels = [np.full((sum(h * w for h, w in grid), 4), i + 1, np.float32) for i, grid in enumerate(grids)]
    shapes = [np.array(grid, np.int64).reshape(-1, 2) for grid in grids]
    extras = {"pixels": Ragged.from_rows(pixels), "grid": Ragged.from_rows(shapes)}
    buffer = ReplayBuffer(8, sampler=Uniform(False))
    buffer.add(plain(4, extras=extras), train_step=0)
    for seed in range(6):
        draw = buffer.sample(3, train_step=0, rng=RNG(seed))
        for i, rollout_id in enumerate(draw.rollout_ids.tolist()):
            assert np.array_equal(draw.rollouts.extras["pixels"].row(i), pixels[rollout_id])
            assert np.array_equal(draw.rollouts.extras["grid"].row(i), shapes[rollout_id])


@pytest.mark.parametrize("by_file", [True, False])
def test_buffer_when_short_values_repeat_takes_up_the_bytes_it_had(tmp_path, by_file) -> None:
    """Adds share short values only among themselves; what is loaded shares no more, so that bytes bound both alike."""

    def fresh() -> ReplayBuffer:
        return ReplayBuffer(100, capacity_bytes=12 * 300)

    def add(buffer: ReplayBuffer, step: int) -> None:
        note = {"note": Ragged.from_rows([np.array([1, 2], np.int16), np.array([step], np.int16)])}
        prompts, completions = [[5, 6, 7]] * 2, [[step] * 3, [step] * 9]
        rollouts = Rollouts.from_completions(prompts, completions, [[-0.5] * 3, [-0.5] * 9], extras=note)
        buffer.add(rollouts, train_step=step)

    buffer, loaded = fresh(), fresh()
    for step in range(30):
        add(buffer, step)
    if by_file:
        buffer.save(tmp_path / "buffer")
        loaded.load(tmp_path / "buffer")
    else:
        loaded.load_state_arrays(buffer.state_arrays())
    assert loaded.nbytes == buffer.nbytes
    for step in range(30, 60):
        add(buffer, step)
        add(loaded, step)
        assert loaded.nbytes == buffer.nbytes
        np.testing.assert_array_equal(loaded.columns["rollout_id"], buffer.columns["rollout_id"])


def test_values_when_numbered_count_up_in_the_order_they_first_come() -> None:
    assert numbered(np.array([7, 3, 7, 9, 3, 7])).tolist() == [0, 1, 0, 2, 1, 0]
    assert numbered(np.empty(0, np.int64)).tolist() == []
