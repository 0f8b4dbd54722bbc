"""ReplayBuffer against a plain list, by numbers and by properties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.buffer import MaxStaleness, MaxUses, MinSize, Oldest, ReplayBuffer, Uniform, no_buffer, paper_fifo
from ostinato.buffer.repeats import occurrence
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.ragged import Ragged
from ostinato.rollouts import Rollouts

RNG = np.random.default_rng
ANY = MinSize(1)


def numbered(first: int, n: int, *, version: int = 0, **columns) -> Rollouts:
    """Rollout i has prompt [i], completion [i] * (i % 3) and reward i."""
    numbers = range(first, first + n)
    return Rollouts.from_completions(
        [[i] for i in numbers],
        [[i] * (i % 3) for i in numbers],
        [[-float(i)] * (i % 3) for i in numbers],
        reward=[float(i) for i in numbers],
        policy_version_min=version,
        **columns,
    )


def test_capacity_when_full_keeps_the_newest() -> None:
    buffer = paper_fifo(5)
    ids = [buffer.add(numbered(first, 3), train_step=0).tolist() for first in (0, 3, 6)]
    assert ids == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert buffer.columns["rollout_id"].tolist() == [4, 5, 6, 7, 8]
    assert buffer.departures().tolist() == [0, 0, 0, 0]
    assert buffer.departures().tolist() == []


def test_draw_when_taken_has_the_right_payload_and_books() -> None:
    buffer = paper_fifo(10, min_size=1)
    buffer.add(numbered(0, 4, version=2), train_step=3)
    first = buffer.sample(3, train_step=5, rng=RNG(0))
    again = buffer.sample(100, train_step=9, rng=RNG(1))
    assert set(first.staleness) == {3} and set(first.residence) == {2}
    for draw in (first, again):
        assert draw.rollouts.reward.tolist() == [float(i) for i in draw.rollout_ids]
        for row, number in enumerate(draw.rollout_ids):
            assert draw.rollouts.completion(row).tolist() == [number] * (number % 3)
    used = set(first.rollout_ids)
    for row, number in enumerate(again.rollout_ids):
        earlier = list(again.rollout_ids[:row])
        expected = 0 if number in earlier else 4 if number in used else -1
        assert again.steps_since_last_use[row] == expected
        assert again.uses[row] == list(first.rollout_ids).count(number) + earlier.count(number)


def test_statistics_example_when_drawn_once_then_three_times() -> None:
    buffer = ReplayBuffer(1, limiter=ANY)
    buffer.add(numbered(0, 1), train_step=0)
    one = buffer.sample(1, train_step=3, rng=RNG(0))
    three = buffer.sample(3, train_step=5, rng=RNG(0))
    assert one.steps_since_last_use.tolist() == [-1]
    assert three.steps_since_last_use.tolist() == [2, 0, 0]
    assert three.uses.tolist() == [1, 2, 3]


@pytest.mark.parametrize("capacity", [1, 3, 5, 1000])
def test_uniform_draws_when_counted_pass_chi_square(capacity) -> None:
    from scipy.stats import chisquare

    buffer = paper_fifo(capacity, min_size=1)
    buffer.add(numbered(0, capacity), train_step=0)
    rng = RNG(5)
    drawn = np.concatenate([buffer.sample(100, train_step=0, rng=rng).rollout_ids for _ in range(200)])
    if capacity > 1:
        assert chisquare(np.bincount(drawn, minlength=capacity)).pvalue > 1e-3
    else:
        assert set(drawn) == {0}


def test_draw_when_without_replacement_holds_each_once() -> None:
    buffer = paper_fifo(50, replacement=False)
    buffer.add(numbered(0, 50), train_step=0)
    for seed in range(20):
        assert sorted(buffer.sample(50, train_step=0, rng=RNG(seed)).rollout_ids) == list(range(50))
    with pytest.raises(DataError, match="cannot draw 51"):
        buffer.sample(51, train_step=0, rng=RNG(0))


def test_queue_when_newest_first_hands_out_each_once() -> None:
    queue = no_buffer(6)
    queue.add(numbered(0, 4), train_step=0)
    assert queue.sample(2, train_step=0, rng=RNG(0)).rollout_ids.tolist() == [3, 2]
    assert queue.departures().tolist() == [1, 1]
    queue.add(numbered(4, 4), train_step=1)
    assert not queue.can_add(1)
    with pytest.raises(DataError, match=r"holds 6 of 6: 1 more do not fit"):
        queue.add(numbered(8, 1), train_step=1)
    assert queue.sample(6, train_step=1, rng=RNG(0)).rollout_ids.tolist() == [7, 6, 5, 4, 1, 0]
    assert len(queue) == 0 and not queue.can_sample(1)


def test_queue_when_oldest_first_keeps_order() -> None:
    queue = no_buffer(6, order="oldest")
    queue.add(numbered(0, 6), train_step=0)
    assert queue.sample(4, train_step=0, rng=RNG(0)).rollout_ids.tolist() == [0, 1, 2, 3]


def test_max_staleness_when_at_the_bound_stays_and_one_above_goes() -> None:
    buffer = paper_fifo(10, max_staleness=2, min_size=1)
    buffer.add(numbered(0, 2, version=0), train_step=0)
    buffer.add(numbered(2, 2, version=1), train_step=1)
    buffer.retain(train_step=2)
    assert len(buffer) == 4
    assert set(buffer.sample(50, train_step=3, rng=RNG(0)).rollout_ids) == {2, 3}
    with pytest.raises(DataError, match="cannot draw"):
        buffer.sample(1, train_step=4, rng=RNG(0))


def test_max_uses_when_reached_inside_a_batch_removes_after_it() -> None:
    buffer = ReplayBuffer(2, sampler=Uniform(), retention=[MaxUses(2)], limiter=ANY)
    buffer.add(numbered(0, 1), train_step=0)
    assert buffer.sample(5, train_step=0, rng=RNG(0)).uses.tolist() == [0, 1, 2, 3, 4]
    assert len(buffer) == 0 and buffer.departures().tolist() == [5]


def test_min_size_when_not_reached_refuses_a_draw() -> None:
    buffer = ReplayBuffer(10, limiter=MinSize(4))
    buffer.add(numbered(0, 3), train_step=0)
    assert not buffer.can_sample(1)
    buffer.add(numbered(3, 1), train_step=0)
    assert buffer.can_sample(4) and buffer.can_sample(5)
    assert not ReplayBuffer(10).can_sample(1)


def test_rollouts_when_changed_outside_do_not_change_the_buffer() -> None:
    buffer, given_in = paper_fifo(4, min_size=1), numbered(0, 3)
    buffer.add(given_in, train_step=0)
    given_in.tokens[:] = -7
    out = buffer.sample(20, train_step=0, rng=RNG(0)).rollouts
    assert -7 not in out.tokens
    out.tokens[:] = -7
    assert -7 not in buffer.sample(20, train_step=0, rng=RNG(0)).rollouts.tokens
    with pytest.raises(ValueError, match="read-only"):
        buffer.columns["reward"][:] = 0


def test_extras_when_stored_come_back_with_their_row() -> None:
    buffer = paper_fifo(4, min_size=1)
    extras = {"image": np.arange(6.0).reshape(3, 2), "mask": Ragged.from_rows([np.arange(i) for i in range(3)])}
    buffer.add(numbered(0, 3, extras=extras), train_step=0)
    draw = buffer.sample(30, train_step=0, rng=RNG(0))
    for row, number in enumerate(draw.rollout_ids):
        assert draw.rollouts.extras["image"][row].tolist() == [2.0 * number, 2.0 * number + 1]
        assert draw.rollouts.extras["mask"].row(row).tolist() == list(range(number))
    with pytest.raises(DataError, match="differ from those already held"):
        buffer.add(numbered(3, 1), train_step=0)


def test_state_when_restored_gives_the_same_next_draws() -> None:
    one, two = (paper_fifo(7, max_staleness=50, min_size=1) for _ in range(2))
    rng = RNG(1)
    for step in range(6):
        one.add(numbered(3 * step, 3, version=step, source=f"s{step}"), train_step=step)
        one.sample(5, train_step=step, rng=rng)
    two.load_state_arrays(one.state_arrays())
    for step in range(6, 30):
        for buffer in (one, two):
            buffer.add(numbered(3 * step, 3, version=step), train_step=step)
        a, b = (buffer.sample(5, train_step=step, rng=RNG(step)) for buffer in (one, two))
        assert a.rollout_ids.tolist() == b.rollout_ids.tolist() and a.uses.tolist() == b.uses.tolist()
        assert a.rollouts.tokens.tolist() == b.rollouts.tokens.tolist()
    assert one.departures().tolist() == two.departures().tolist()


def test_state_when_loaded_into_less_room_keeps_the_newest() -> None:
    one, two = paper_fifo(7), paper_fifo(3)
    one.add(numbered(0, 7), train_step=0)
    two.load_state_arrays(one.state_arrays())
    assert two.columns["rollout_id"].tolist() == [4, 5, 6]
    with pytest.raises(CheckpointError, match="incomplete"):
        two.load_state_arrays({})


def test_misuse_when_attempted_is_refused() -> None:
    buffer = paper_fifo(2)
    with pytest.raises(DataError, match="3 rollouts at once do not fit"):
        buffer.add(numbered(0, 3), train_step=0)
    assert len(buffer) == 0
    with pytest.raises(KeyError, match="no column 'rewards'"):
        buffer.columns["rewards"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ReplayBuffer(0), "capacity must be at least 1, got 0"),
        (lambda: ReplayBuffer(1, id_stride=0), "id_stride must be at least 1, got 0"),
        (lambda: no_buffer(4, order="foo"), r"order must be one of \[?'newest', 'oldest'\]?, got 'foo'"),
        (lambda: paper_fifo(4, min_size=-1), "min_size must be at least 0, got -1"),
        (lambda: paper_fifo(4, max_staleness=-1), "max_staleness must be at least 0, got -1"),
        (lambda: MaxUses(0), "max_uses must be at least 1, got 0"),
    ],
)
def test_settings_when_impossible_are_refused(make, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("n", [0, -1])
def test_draw_when_it_holds_nothing_is_refused(n) -> None:
    for buffer in (paper_fifo(4), no_buffer(4)):
        buffer.add(numbered(0, 3), train_step=0)
        assert not buffer.can_sample(n)
        with pytest.raises(DataError, match=f"cannot draw {n} rollouts, expected at least 1"):
            buffer.sample(n, train_step=0, rng=RNG(0))


def test_train_step_when_it_falls_is_refused() -> None:
    buffer, restored = paper_fifo(4), paper_fifo(4)
    buffer.add(numbered(0, 2), train_step=3)
    buffer.sample(2, train_step=5, rng=RNG(0))
    restored.load_state_arrays(buffer.state_arrays())
    for one in (buffer, restored):
        calls = (
            lambda one=one: one.add(numbered(2, 1), train_step=4),
            lambda one=one: one.sample(1, train_step=4, rng=RNG(0)),
            lambda one=one: one.retain(train_step=4),
        )
        for call in calls:
            with pytest.raises(DataError, match="train step 4 comes after train step 5: steps must not fall"):
                call()
        assert one.sample(1, train_step=5, rng=RNG(0)).residence.tolist() == [2]
    with pytest.raises(DataError, match="policy_version_min 7 at train step 6: rollouts come from the past"):
        buffer.add(numbered(2, 1, version=7), train_step=6)


def with_extra(n: int, extra) -> Rollouts:
    return numbered(0, n, extras={} if extra is None else {"x": extra})


OTHER_EXTRAS = [
    (np.zeros((4, 2)), np.zeros((4, 3)), r"'float64 \(3,\)'.*'float64 \(2,\)'"),
    (np.zeros(4, np.int64), np.full(4, "s"), r"'str_ \(\)'.*'int64 \(\)'"),
    (np.zeros(4, np.int64), np.zeros(4), r"'float64 \(\)'.*'int64 \(\)'"),
    (np.zeros(4), None, r"extra columns \{\} differ"),
    (np.zeros(4), Ragged.from_rows([np.zeros(1)] * 4), r"'ragged float64 \(\)'.*'float64 \(\)'"),
    (
        Ragged.from_rows([np.zeros((2, 3))] * 4),
        Ragged.from_rows([np.zeros((2, 4))] * 4),
        r"float64 \(4,\)'.*float64 \(3,\)'",
    ),
]


@pytest.mark.parametrize(("held", "other", "message"), OTHER_EXTRAS)
@pytest.mark.parametrize("capacity", [4, 6, 20])
def test_add_when_extras_have_another_layout_is_refused_and_changes_nothing(capacity, held, other, message) -> None:
    buffer = paper_fifo(capacity, min_size=1)
    buffer.add(with_extra(4, held), train_step=0)
    before = buffer.state_arrays()
    with pytest.raises(DataError, match=message):
        buffer.add(with_extra(4, other), train_step=1)
    after = buffer.state_arrays()
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert np.array_equal(array, after[name]), name
    assert buffer.departures().tolist() == []
    assert len(buffer.sample(8, train_step=0, rng=RNG(0))) == 8


@pytest.mark.parametrize(("held", "other", "message"), OTHER_EXTRAS)
def test_queue_when_emptied_takes_other_extras(held, other, message) -> None:
    queue = no_buffer(4)
    for step, extra in enumerate([held, other, held]):
        rollouts = with_extra(4, extra)
        queue.add(rollouts, train_step=step)
        assert queue.state_arrays()["book.rollout_id"].tolist() == [4 * step + i for i in range(4)]
        assert queue.sample(4, train_step=step, rng=RNG(0)).rollouts.extras.keys() == rollouts.extras.keys()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("book.uses", lambda a: a[:2], r"book.uses is int64 \(2,\), expected int64 \(4,\)"),
        ("book.uses", lambda a: a.astype(float), r"book.uses is float64 \(4,\), expected int64 \(4,\)"),
        ("book.rollout_id", lambda a: np.array(3), "unsized"),
        ("book.rollout_id", lambda a: a[::-1], "rollout ids do not rise"),
        ("counters", lambda a: a[:2], "counters hold 2 numbers, expected 6"),
        ("statistics.departed", lambda a: np.array(["x"]), "invalid literal"),
        ("rollouts.tokens", None, "missing the column 'tokens'"),
        ("counters", None, "'counters'"),
        ("rollouts.offsets", lambda a: a[::-1], "offsets must rise"),
    ],
)
def test_state_when_damaged_is_refused_and_changes_nothing(name, change, message) -> None:
    buffer, saved = paper_fifo(10, min_size=1), paper_fifo(10)
    buffer.add(numbered(0, 2), train_step=0)
    saved.add(numbered(5, 4), train_step=3)
    arrays = saved.state_arrays()
    if change is None:
        del arrays[name]
    else:
        arrays[name] = change(arrays[name])
    with pytest.raises(CheckpointError, match=rf"buffer state is incomplete: .*{message}"):
        buffer.load_state_arrays(arrays)
    assert buffer.columns["rollout_id"].tolist() == [0, 1] and buffer.added == 2
    assert set(buffer.sample(9, train_step=0, rng=RNG(0)).rollouts.reward) <= {0.0, 1.0}


def test_sampler_when_it_returns_a_mask_is_refused() -> None:
    class Mask:
        repeats = False

        def __call__(self, columns, n, rng):
            return columns["reward"] > 0

    buffer = ReplayBuffer(4, sampler=Mask())
    buffer.add(numbered(0, 3), train_step=0)
    with pytest.raises(DataError, match=r"row numbers are bool \(3,\)"):
        buffer.sample(2, train_step=0, rng=RNG(0))


@given(st.lists(st.integers(0, 4), max_size=12))
def test_occurrence_when_compared_with_a_plain_count(rows) -> None:
    expected = [rows[:i].count(row) for i, row in enumerate(rows)]
    assert occurrence(np.array(rows, np.int64)).tolist() == expected


@settings(max_examples=60)
@given(
    st.integers(4, 9),
    st.lists(st.tuples(st.sampled_from(["add", "sample", "retain", "reload"]), st.integers(1, 4)), max_size=25),
)
def test_buffer_when_driven_at_random_agrees_with_a_list(capacity, actions) -> None:
    buffer = ReplayBuffer(capacity, sampler=Oldest(), retention=[MaxUses(3), MaxStaleness(4)])
    model: list[dict] = []
    step = number = 0
    for action, n in actions:
        if action == "add":
            buffer.add(numbered(number, n, version=step), train_step=step)
            model += [{"id": number + i, "uses": 0, "version": step} for i in range(n)]
            model, number = model[-capacity:], number + n
        elif action == "reload":
            state = buffer.state_arrays()
            buffer = ReplayBuffer(capacity, sampler=Oldest(), retention=[MaxUses(3), MaxStaleness(4)])
            buffer.load_state_arrays(state)
        else:
            step += 1
            model = [row for row in model if step - row["version"] <= 4]
            buffer.retain(train_step=step)
            if action == "sample" and len(model) >= n:
                draw = buffer.sample(n, train_step=step, rng=RNG(0))
                assert draw.rollout_ids.tolist() == [row["id"] for row in model[:n]]
                assert draw.uses.tolist() == [row["uses"] for row in model[:n]]
                for row in model[:n]:
                    row["uses"] += 1
                model = [row for row in model if row["uses"] < 3]
        buffer.check()
        assert buffer.columns["rollout_id"].tolist() == [row["id"] for row in model]
        assert buffer.columns["uses"].tolist() == [row["uses"] for row in model]
