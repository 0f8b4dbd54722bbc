"""What comes out of a buffer: alike by every kernel, never shared with the caller, padded right, in reused memory."""

import numpy as np
import pytest
from rollout_makers import EXTRAS, extra_row, groups, plain, same_rollout

from ostinato.buffer import MinSize, Oldest, PromptsLeft, ReplayBuffer, RightPadded, Uniform, Workspace
from ostinato.errors import ConfigError, DataError
from ostinato.ragged import Ragged
from ostinato.rollouts import ROW_COLUMNS, TOKEN_COLUMNS, Rollouts, concatenate

RNG = np.random.default_rng
KERNELS = ("numpy", "numba")

# ---------------------------------------------------------------- kernels


@pytest.mark.parametrize("settings", [{"kernels": "numba"}, {"kernels": "numba", "threads": 2}])
@pytest.mark.parametrize("extras", EXTRAS)
def test_kernels_when_given_the_same_calls_give_the_same_bytes(settings, extras) -> None:
    slow, fast = (ReplayBuffer(300, limiter=MinSize(1), **one) for one in ({"kernels": "numpy"}, settings))
    for step in range(8):
        part = groups(RNG(step), [8] * 8, first_group=8 * step, version=step, extras=extras, longest=600)
        for buffer in (slow, fast):
            buffer.add(part, train_step=step)
        draws = [buffer.sample(256, train_step=step, rng=RNG(step)) for buffer in (slow, fast)]
        assert_same_arrays(*draws)
        layout = PromptsLeft(3) if step % 2 else RightPadded(3)
        draws = [buffer.sample_padded(256, train_step=step, rng=RNG(step), layout=layout) for buffer in (slow, fast)]
        assert_same_arrays(*draws)
    assert slow.nbytes == fast.nbytes and slow.metrics() == fast.metrics()
    one, two = slow.state_arrays(), fast.state_arrays()
    assert one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


def assert_same_arrays(one, two) -> None:
    """Two draws agree in every array, to the bit."""
    for name in type(one).__slots__:
        a, b = getattr(one, name), getattr(two, name)
        if isinstance(a, Rollouts):
            pairs = [(getattr(a, column), getattr(b, column)) for column in (*TOKEN_COLUMNS, *ROW_COLUMNS, "offsets")]
            pairs += [(extra_row(a.extras[k], i), extra_row(b.extras[k], i)) for k in a.extras for i in range(len(a))]
        elif isinstance(a, dict):
            pairs = [(extra_row(a[k], i), extra_row(b[k], i)) for k in a for i in range(len(one))]
        else:
            pairs = [(np.asarray(a), np.asarray(b))]
        assert all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in pairs), name


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("column", [*TOKEN_COLUMNS, *(name for name in ROW_COLUMNS if name != "source"), "offsets"])
def test_column_when_of_the_other_byte_order_or_not_contiguous_is_stored_right_or_refused(kernels, column) -> None:
    given = groups(RNG(0), [3, 2])
    array = getattr(given, column)
    for other in (array.astype(array.dtype.newbyteorder(">")), np.repeat(array, 2)[::2]):
        buffer = ReplayBuffer(8, sampler=Oldest(), kernels=kernels)
        try:
            turned = given.replace(**{column: other})
        except DataError:
            continue
        buffer.add(turned, train_step=0)
        drawn = buffer.sample(5, train_step=0, rng=RNG(0)).rollouts
        assert all(same_rollout(drawn, i, given, i) for i in range(5))


# ---------------------------------------------------------------- nothing is shared with the caller


def arrays_of(thing) -> list[np.ndarray]:
    """Every array that hangs on a draw or on rollouts."""
    if isinstance(thing, np.ndarray):
        return [thing]
    if isinstance(thing, Ragged):
        return [thing.values, thing.offsets]
    if isinstance(thing, dict):
        return [array for value in thing.values() for array in arrays_of(value)]
    names = getattr(type(thing), "__slots__", ())
    return [array for name in names for array in arrays_of(getattr(thing, name))]


def spoil(thing) -> None:
    """Overwrite every array of it."""
    for array in arrays_of(thing):
        if array.flags.writeable and array.dtype.kind in "iufb":
            array[...] = 1
        elif array.flags.writeable and array.dtype.kind == "U":
            array[...] = "z"


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("kernels", KERNELS)
def test_memory_when_the_caller_overwrites_all_it_gave_and_got_stays_as_it_was(kernels, extras) -> None:
    buffer, workspace = ReplayBuffer(40, kernels=kernels), Workspace()
    given = groups(RNG(0), [4] * 6, extras=extras)
    mine = concatenate([given])
    priorities = np.arange(24.0)
    ids = buffer.add(mine, train_step=0, priorities=priorities)
    before = buffer.state_arrays()
    spoil(mine)
    spoil([priorities, ids])
    priorities[:], ids[:] = 0, 0
    written = np.arange(24.0)
    for number in range(3):
        out = workspace if number else None
        spoil(buffer.sample(12, train_step=0, rng=RNG(number), out=out))
        spoil(buffer.sample_padded(12, train_step=0, rng=RNG(number), out=out, layout=PromptsLeft()))
        spoil(buffer.sample_prompts(given.prompt_id[:2], 3, train_step=0, rng=RNG(number), out=out))
        spoil(buffer.state_arrays())
        spoil(buffer.departures())
    for method in (buffer.columns.live, lambda: buffer.columns.select(np.arange(5)), lambda: buffer.columns["reward"]):
        array = method()
        if array.flags.writeable:
            array[:] = 0
    buffer.update_priorities(np.arange(24), written)
    written[:] = 99
    after = buffer.state_arrays()
    changing = ("book.uses", "book.last_use_step", "statistics", "counters")
    for name, array in before.items():
        if not name.startswith(changing):
            assert np.array_equal(array, after[name]), name


def test_state_when_its_arrays_are_overwritten_after_loading_stays_loaded() -> None:
    buffer, loaded = ReplayBuffer(40), ReplayBuffer(40)
    buffer.add(groups(RNG(0), [4] * 6, extras="ragged"), train_step=0)
    state, want = buffer.state_arrays(), buffer.state_arrays()
    loaded.load_state_arrays(state)
    spoil(state)
    got = loaded.state_arrays()
    assert all(np.array_equal(array, got[name]) for name, array in want.items())


# ---------------------------------------------------------------- padded batches


def slow_padded(rollouts: Rollouts, layout, width: int, column: int) -> dict[str, np.ndarray]:
    """Row by row: completions begin in `column` (PromptsLeft), or rollouts in column 0."""
    fill = {"tokens": layout.pad_token, "loss_mask": False, "behavior_logprobs": 0.0}
    arrays = {}
    for name in TOKEN_COLUMNS:
        rows = []
        for i in range(len(rollouts)):
            values = getattr(rollouts, name)[rollouts.offsets[i] : rollouts.offsets[i + 1]].tolist()
            start = column - int(rollouts.prompt_length[i]) if isinstance(layout, PromptsLeft) else 0
            rows.append([fill[name]] * start + values + [fill[name]] * (width - start - len(values)))
        arrays[name] = np.array(rows, TOKEN_COLUMNS[name])
    return arrays


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("multiple", [1, 8, 64])
@pytest.mark.parametrize("kind", [PromptsLeft, RightPadded])
@pytest.mark.parametrize("reuse", [False, True])
def test_padded_batch_when_compared_with_a_slow_reference_is_the_same(kernels, multiple, kind, reuse) -> None:
    buffer, out = ReplayBuffer(99, kernels=kernels), Workspace() if reuse else None
    buffer.add(groups(RNG(5), [4] * 20, longest=30), train_step=0)
    for seed in range(4):
        layout = kind(pad_token=50_000 + seed, multiple_of=multiple)
        packed = buffer.sample(7, train_step=0, rng=RNG(seed)).rollouts
        padded = buffer.sample_padded(7, train_step=0, rng=RNG(seed), layout=layout, out=out)
        if kind is PromptsLeft:
            column = -(-int(packed.prompt_length.max()) // multiple) * multiple
            width = column + -(-int(packed.completion_lengths.max()) // multiple) * multiple
        else:
            column, width = 0, -(-int(packed.lengths.max()) // multiple) * multiple
        for name, want in slow_padded(packed, layout, width, column).items():
            assert getattr(padded, name).dtype == want.dtype and np.array_equal(getattr(padded, name), want), name
        assert padded.prompt_width == column and padded.lengths.tolist() == packed.lengths.tolist()
        real = np.concatenate([padded.tokens[i][padded.attention_mask[i]] for i in range(7)])
        assert np.array_equal(real, packed.tokens) and padded.attention_mask.sum() == len(packed.tokens)
        assert all(np.array_equal(padded.columns[name], getattr(packed, name)) for name in ROW_COLUMNS)


def test_padded_batch_when_given_a_width_has_it_and_too_narrow_ones_are_refused() -> None:
    buffer = ReplayBuffer(4, sampler=Oldest())
    buffer.add(plain(2, prompt=2, length=3), train_step=0)
    assert buffer.sample_padded(2, train_step=0, rng=RNG(0), layout=RightPadded(width=9)).tokens.shape == (2, 9)
    assert buffer.sample_padded(2, train_step=0, rng=RNG(0), layout=RightPadded(width=5)).tokens.shape == (2, 5)
    before = buffer.columns["uses"].tolist()
    with pytest.raises(DataError, match="a rollout of 5 tokens does not fit in a width of 4"):
        buffer.sample_padded(2, train_step=0, rng=RNG(0), layout=RightPadded(width=4))
    assert buffer.columns["uses"].tolist() == before == [2, 2]
    for make in (lambda: RightPadded(width=0), lambda: RightPadded(multiple_of=0), lambda: PromptsLeft(multiple_of=0)):
        with pytest.raises(ConfigError, match="at least 1"):
            make()


def test_padded_batch_when_nothing_has_tokens_has_no_columns() -> None:
    for kernels in KERNELS:
        buffer = ReplayBuffer(4, kernels=kernels)
        buffer.add(plain(3, prompt=0, length=0), train_step=0)
        for layout in (PromptsLeft(multiple_of=8), RightPadded()):
            assert buffer.sample_padded(2, train_step=0, rng=RNG(0), layout=layout).tokens.shape == (2, 0)
        assert len(buffer.sample(2, train_step=0, rng=RNG(0)).rollouts.tokens) == 0


# ---------------------------------------------------------------- the caller's memory


def where(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_workspace_when_given_again_is_the_memory_of_the_next_batch() -> None:
    buffer, out = ReplayBuffer(99, sampler=Uniform(False)), Workspace()
    buffer.add(groups(RNG(0), [8] * 8, longest=40, extras="images"), train_step=0)
    buffer.sample(60, train_step=0, rng=RNG(0), out=out)
    taken = out.nbytes
    places = set()
    for seed in range(5):
        draw = buffer.sample(20, train_step=0, rng=RNG(seed), out=out).rollouts
        places.add(
            (where(draw.tokens), where(draw.loss_mask), where(draw.behavior_logprobs), where(draw.extras["image"]))
        )
        fresh = buffer.sample(20, train_step=0, rng=RNG(seed)).rollouts
        assert all(same_rollout(draw, i, fresh, i) for i in range(20))
    assert len(places) == 1 and out.nbytes == taken
    buffer.sample_padded(30, train_step=0, rng=RNG(0), out=out)
    grown = out.nbytes
    places = {where(buffer.sample_padded(30, train_step=0, rng=RNG(0), out=out).tokens) for _ in range(3)}
    assert len(places) == 1 and out.nbytes == grown


def test_workspace_when_it_has_its_own_allocator_takes_all_payload_from_there() -> None:
    asked: list[np.ndarray] = []

    def allocate(size: int) -> np.ndarray:
        asked.append(np.full(size + 3, 7, np.uint8))  # more than asked for is fine
        return asked[-1]

    buffer, out = ReplayBuffer(99), Workspace(allocate)
    given = groups(RNG(0), [8] * 4, extras="fixed")
    buffer.add(given, train_step=0)
    draw = buffer.sample(9, train_step=0, rng=RNG(0), out=out)
    arrays = [draw.rollouts.tokens, draw.rollouts.loss_mask, draw.rollouts.behavior_logprobs]
    arrays += list(draw.rollouts.extras.values())
    assert all(any(np.shares_memory(array, memory) for memory in asked) for array in arrays)
    for i, rollout_id in enumerate(draw.rollout_ids.tolist()):
        assert same_rollout(draw.rollouts, i, given, rollout_id)
