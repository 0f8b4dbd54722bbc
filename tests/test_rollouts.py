"""The one data type: packing, selection, round trips."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import DataError
from ostinato.ragged import Ragged, gather_positions
from ostinato.rollout_arrays import from_arrays, to_arrays
from ostinato.rollouts import Rollouts, concatenate


def three() -> Rollouts:
    """Prompts [1], [2, 3], []; completions [7, 8], [], [9]."""
    return Rollouts.from_completions(
        [[1], [2, 3], []],
        [[7, 8], [], [9]],
        [[-0.5, -0.25], [], [-1.0]],
        reward=[1.0, 0.0, 0.5],
        group_id=4,
        policy_version_min=[2, 3, 4],
        source=["sort", "add", "countdown"],
        extras={
            "image": np.arange(6).reshape(3, 2),
            "versions": Ragged.from_rows([np.array([5, 6]), np.array([], int), np.array([7])]),
        },
    )


def test_packing_when_prompts_and_completions_may_be_empty() -> None:
    rollouts = three()
    assert rollouts.tokens.tolist() == [1, 7, 8, 2, 3, 9]
    assert rollouts.loss_mask.tolist() == [False, True, True, False, False, True]
    assert rollouts.behavior_logprobs.tolist() == [0.0, -0.5, -0.25, 0.0, 0.0, -1.0]
    assert rollouts.offsets.tolist() == [0, 3, 5, 6]
    assert rollouts.completion_lengths.tolist() == [2, 0, 1]
    assert rollouts.policy_version_max.tolist() == [2, 3, 4]
    assert rollouts.prompt(1).tolist() == [2, 3] and rollouts.completion(0).tolist() == [7, 8]


def test_bytes_when_stored_are_nine_a_token_plus_rows() -> None:
    rows = Rollouts.from_completions([[0] * 100], [[1] * 900], [[0.0] * 900])
    assert sum(getattr(rows, name).nbytes for name in ("tokens", "loss_mask", "behavior_logprobs")) == 9 * 1000


def test_select_when_rows_repeat_and_reorder_carries_extras_and_copies() -> None:
    rollouts = three()
    chosen = rollouts.select([2, 0, 2])
    assert chosen.tokens.tolist() == [9, 1, 7, 8, 9]
    assert chosen.source.tolist() == ["countdown", "sort", "countdown"]
    assert np.array_equal(chosen.extras["image"], [[4, 5], [0, 1], [4, 5]])
    versions = chosen.extras["versions"]
    assert isinstance(versions, Ragged)
    assert [versions.row(i).tolist() for i in range(3)] == [[7], [5, 6], [7]]
    chosen.tokens[:] = -1
    assert rollouts.tokens.tolist() == [1, 7, 8, 2, 3, 9]


def test_concatenate_when_split_gives_back_the_whole() -> None:
    rollouts = three()
    again = concatenate([rollouts.select([0]), rollouts.select([1, 2])])
    for name, array in to_arrays(rollouts).items():
        assert np.array_equal(array, to_arrays(again)[name]), name


def test_arrays_when_saved_without_pickle_come_back(tmp_path) -> None:
    rollouts = three()
    np.savez(tmp_path / "r.npz", **to_arrays(rollouts, prefix="x."))
    with np.load(tmp_path / "r.npz", allow_pickle=False) as file:
        again = from_arrays(dict(file), prefix="x.")
    for name, array in to_arrays(rollouts).items():
        assert np.array_equal(array, to_arrays(again)[name]), name


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_gather_positions_when_compared_with_slices(lengths, data) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=10)), np.int64)
    values = np.arange(offsets[-1])
    positions, new = gather_positions(offsets, rows)
    expected = [values[offsets[r] : offsets[r + 1]].tolist() for r in rows]
    assert [values[positions][new[i] : new[i + 1]].tolist() for i in range(len(rows))] == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.zeros(5, np.int32)}, "offsets must rise"),
        ({"reward": np.zeros(2)}, r"reward is float64 \(2,\), expected float64 \(3,\)"),
        ({"loss_mask": np.zeros(7, bool)}, r"loss_mask is bool \(7,\), expected bool \(6,\)"),
        ({"prompt_length": np.array([4, 0, 0], np.int32)}, "prompt_length must lie"),
        ({"extras": {"image": np.zeros((2, 2))}}, "extra column 'image' has 2 rows, expected 3"),
        ({"extras": {"image": [1, 2, 3]}}, "extra column 'image' is list, expected a Ragged or an array"),
        ({"extras": {"image": 3}}, "extra column 'image' is int, expected a Ragged or an array"),
        ({"extras": {"image": np.array(3)}}, r"extra column 'image' is int64 \(\), expected a Ragged or an array"),
        (
            {"extras": {"image": np.array([{}, 1, None])}},
            r"is object \(3,\), expected a Ragged or an array without objects",
        ),
        ({"tokens": [1] * 6}, r"tokens is list, expected int32 \(L,\)"),
        ({"tokens": np.zeros(6)}, r"tokens is float64 \(6,\), expected int32 \(6,\)"),
        ({"source": np.zeros(3)}, r"source is float64 \(3,\), expected str \(3,\)"),
        ({"offsets": np.array([0.0, 3, 5, 6])}, r"offsets are float64 \(4,\), expected int64 \(rows \+ 1,\)"),
        ({"offsets": np.zeros((2, 2), np.int64)}, r"offsets are int64 \(2, 2\), expected int64"),
        ({"offsets": np.array([0, 5, 3, 6])}, r"offsets must rise from 0 to 6, the number of values, got \[0 5 3 6\]"),
    ],
)
def test_construction_when_columns_disagree_is_refused(change, message) -> None:
    with pytest.raises(DataError, match=message):
        three().replace(**change)


def test_from_completions_when_logprobs_are_missing_is_refused() -> None:
    with pytest.raises(DataError, match="rollout 1 has 2 completion tokens but 1 log-probs"):
        Rollouts.from_completions([[1], [1]], [[2], [2, 3]], [[0.0], [0.0]])
    with pytest.raises(DataError, match="got 2 prompts, 1 completions and 1 rows of log-probs"):
        Rollouts.from_completions([[1], [1]], [[2]], [[0.0]])
    with pytest.raises(DataError, match="unknown rollout column 'rewrad'"):
        Rollouts.from_completions([[1]], [[2]], [[0.0]], rewrad=1)


def test_concatenate_when_extras_differ_is_refused() -> None:
    plain = Rollouts.from_completions([[1]], [[2]], [[0.0]])
    with pytest.raises(DataError, match="must share their extra columns"):
        concatenate([three(), plain])
    with pytest.raises(DataError, match="empty list"):
        concatenate([])
    with pytest.raises(DataError, match="missing the column 'tokens'"):
        from_arrays({})
    with pytest.raises(DataError, match=r"missing the column 'ragged_offsets\.versions'"):
        from_arrays({name: array for name, array in to_arrays(three()).items() if name != "ragged_offsets.versions"})


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1.5], r"token ids of rollout 1 are float64 \(1,\), expected one row of integers"),
        ([[1]], r"token ids of rollout 1 are int64 \(1, 1\), expected one row of integers"),
        (["a"], r"token ids of rollout 1 are <U1 \(1,\), expected one row of integers"),
        ([2**40], r"rollout 1 has the token id 1099511627776, expected 0 to 2\^31 - 1"),
        (np.array([2**31]), r"rollout 1 has the token id 2147483648, expected 0 to 2\^31 - 1"),
        ([-1], r"rollout 1 has the token id -1, expected 0 to 2\^31 - 1"),
    ],
)
def test_from_completions_when_token_ids_would_be_changed_is_refused(ids, message) -> None:
    with pytest.raises(DataError, match=message):
        Rollouts.from_completions([[1], []], [[2], ids], [[0.0], [0.0]])
    largest = Rollouts.from_completions([[], []], [[], [2**31 - 1]], [[], [0.0]])
    assert largest.tokens.tolist() == [2147483647]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"group_id": [1, 2, 3]}, r"group_id is int64 \(3,\), expected int64 \(\) or \(2,\)"),
        ({"group_id": [1.5, 2.5]}, r"group_id is float64 \(2,\), expected int64 \(\) or \(2,\)"),
        ({"reward": ["right", "wrong"]}, r"reward is <U5 \(2,\), expected float64"),
    ],
)
def test_from_completions_when_a_column_would_be_changed_is_refused(columns, message) -> None:
    with pytest.raises(DataError, match=message):
        Rollouts.from_completions([[1]] * 2, [[2]] * 2, [[0.0]] * 2, **columns)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.array([False, True, True]), r"row numbers are bool \(3,\), expected integers \(k,\); np.flatnonzero"),
        ([1.7], r"row numbers are float64 \(1,\), expected integers"),
        ([[0]], r"row numbers are int64 \(1, 1\), expected integers"),
        ([-1], "row numbers run from -1 to -1, expected 0 to 2"),
        ([0, 9], "row numbers run from 0 to 9, expected 0 to 2"),
    ],
)
def test_select_when_rows_are_no_row_numbers_is_refused(rows, message) -> None:
    versions = three().extras["versions"]
    for column in (three(), versions):
        with pytest.raises(DataError, match=message):
            column.select(rows)
    assert len(three().select([])) == 0


@pytest.mark.parametrize("index", [-1, 3])
def test_row_when_there_is_none_is_refused(index) -> None:
    for read in (three().prompt, three().completion, three().extras["versions"].row):
        with pytest.raises(DataError, match=f"there is no row {index}, expected 0 to 2"):
            read(index)


@pytest.mark.parametrize("offsets", [[0, 3, 2, 3], [0, 1, 9], [1, 3], [0, 2]])
def test_ragged_when_offsets_do_not_rise_to_the_end_is_refused(offsets) -> None:
    with pytest.raises(DataError, match="offsets must rise from 0 to 3, the number of values, got"):
        Ragged(np.zeros(3), np.array(offsets))


def test_ragged_when_made_of_no_rows_is_refused() -> None:
    with pytest.raises(DataError, match="values of a ragged column are list, expected an array of rows"):
        Ragged([1, 2], np.array([0, 2]))
    with pytest.raises(
        DataError, match=r"differ in dtype or trailing shape, the first are \['int64 \(1,\)', '<U1 \(1,\)'\]"
    ):
        Ragged.from_rows([np.array([1]), np.array(["a"])])


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (np.zeros((1, 2)), np.zeros((1, 3)), r"'float64 \(3,\)'.*'float64 \(2,\)'"),
        (np.zeros(1, np.int64), np.array(["s"]), r"'str_ \(\)'.*'int64 \(\)'"),
        (np.zeros(1), Ragged.from_rows([np.zeros(2)]), r"'ragged float64 \(\)'.*'float64 \(\)'"),
    ],
)
def test_concatenate_when_extras_have_other_layouts_is_refused(one, other, message) -> None:
    row = Rollouts.from_completions([[1]], [[2]], [[0.0]])
    with pytest.raises(DataError, match=message):
        concatenate([row.replace(extras={"x": one}), row.replace(extras={"x": other})])


def test_concatenate_when_texts_differ_in_width_keeps_them() -> None:
    row = Rollouts.from_completions([[1]], [[2]], [[0.0]])
    both = concatenate([row.replace(extras={"x": np.array([text])}) for text in ("a", "long")])
    assert both.extras["x"].tolist() == ["a", "long"]


def test_replace_when_a_column_is_unknown_says_so_and_checks_what_is_exchanged() -> None:
    rollouts = Rollouts.from_completions([[1, 2]] * 2, [[3]] * 2, [[-0.5]] * 2)
    with pytest.raises(DataError, match="no column 'rewards' to replace"):
        rollouts.replace(rewards=np.zeros(2))
    with pytest.raises(DataError, match=r"reward is float64 \(3,\), expected float64 \(2,\)"):
        rollouts.replace(reward=np.zeros(3))
    with pytest.raises(DataError, match="prompt_length must lie"):
        rollouts.replace(prompt_length=np.array([1, 4], np.int32))
    changed = rollouts.replace(reward=np.array([1.0, 0.0]))
    assert changed.reward.tolist() == [1, 0] and rollouts.reward.tolist() == [0, 0]
    assert changed.tokens is rollouts.tokens


@pytest.mark.parametrize("parts", [None, Rollouts.from_completions([[1]], [[2]], [[0.0]]), [None], "ab", iter([])])
def test_concatenate_when_given_no_list_of_rollouts_says_so(parts) -> None:
    with pytest.raises(DataError, match="list of Rollouts to concatenate"):
        concatenate(parts)


@pytest.mark.parametrize("extras", [None, [1], "x"])
def test_extras_when_no_columns_by_name_are_refused(extras) -> None:
    row = Rollouts.from_completions([[1]], [[2]], [[0.0]])
    for make in (row.replace, lambda extras: Rollouts.from_completions([[1]], [[2]], [[0.0]], extras=extras)):
        with pytest.raises(DataError, match="expected extra columns by name"):
            make(extras=extras)
