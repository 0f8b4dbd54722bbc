import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import ConfigError, DataError
from ostinato.protocols import Draw, Trained
from ostinato.rollouts import Rollouts
from ostinato.shares import in_draw_order, select_draw, token_shares


def draw_of(lengths) -> Draw:
    n = len(lengths)
    rollouts = Rollouts.from_completions(
        [[1]] * n, [[2] * (k - 1) for k in lengths], [[-1.0] * (k - 1) for k in lengths]
    )
    count = np.arange(n)
    return Draw(rollouts, count + 100, count / 2, count * 3, count * 5, count * 7, count * 11)


def test_shares_when_worked_by_hand_take_the_longest_first() -> None:
    # 9 to the first, 7 and 6 to the second, 5 to the first (14), 4 to the second (17), 2 to the first (16)
    shares = token_shares(np.array([4, 9, 2, 7, 5, 6]), 2)
    assert [share.tolist() for share in shares] == [[1, 2, 4], [0, 3, 5]]


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 6))
def test_shares_hold_every_row_once_and_differ_by_no_more_than_the_longest(lengths, trainers) -> None:
    lengths = np.array(lengths, np.int64)
    shares = token_shares(lengths, trainers)
    assert len(shares) == trainers
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(len(lengths)))
    tokens = [int(lengths[share].sum()) for share in shares]
    assert max(tokens) - min(tokens) <= lengths.max(initial=0)
    assert all(np.array_equal(share, np.sort(share)) for share in shares)


def test_shares_when_rollouts_are_empty_or_few_go_round() -> None:
    assert sorted(len(share) for share in token_shares(np.zeros(5, np.int64), 3)) == [1, 2, 2]
    assert [len(share) for share in token_shares(np.array([3]), 3)] == [1, 0, 0]
    assert [share.dtype for share in token_shares(np.empty(0, np.int64), 2)] == [np.int64] * 2


def test_draw_when_selected_has_every_column_of_its_rows() -> None:
    draw = draw_of([3, 1, 4])
    chosen = select_draw(draw, np.array([2, 0]))
    assert chosen.rollouts.lengths.tolist() == [4, 3]
    assert (chosen.rollout_ids.tolist(), chosen.importance_weights.tolist()) == ([102, 100], [1.0, 0.0])
    assert (chosen.staleness.tolist(), chosen.residence.tolist()) == ([6, 0], [10, 0])
    assert (chosen.uses.tolist(), chosen.steps_since_last_use.tolist()) == ([14, 0], [22, 0])
    assert len(select_draw(draw, np.empty(0, np.int64))) == 0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 4))
def test_figures_when_put_back_are_in_the_order_of_the_draw(lengths, trainers) -> None:
    draw = draw_of(lengths)
    shares = token_shares(draw.rollouts.lengths, trainers)
    told = np.concatenate([select_draw(draw, share).rollout_ids for share in shares]).astype(np.float64)
    trained = in_draw_order(Trained({"loss": 2.0}, {"tokens": told}, dropped=True), shares)
    assert trained.figures["tokens"].tolist() == draw.rollout_ids.tolist()
    assert trained.metrics == {"loss": 2.0} and trained.dropped


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        (lambda: token_shares(np.array([1, 2]), 0), ConfigError, "trainers must be at least 1, got 0"),
        (lambda: token_shares(np.array([1, -2]), 2), DataError, "expected integers of at least 0"),
        (lambda: token_shares(np.array([[1.5]]), 2), DataError, "expected integers of at least 0"),
        (lambda: select_draw(draw_of([1, 2]), np.array([2])), DataError, "expected 0 to 1"),
        (lambda: in_draw_order(Trained({}, {"x": np.zeros(2)}), [np.array([0, 0])]), DataError, "each row .* once"),
        (lambda: in_draw_order(Trained({}, {"x": np.zeros(3)}), [np.array([0, 1])]), DataError, r"shape \(3,\)"),
    ],
)
def test_shares_when_given_what_they_cannot_use_say_so(work, error, message) -> None:
    with pytest.raises(error, match=message):
        work()
