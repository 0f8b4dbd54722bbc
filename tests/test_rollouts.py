"""The one data type: packing, selection, round trips."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import DataError
from ostinato.rollouts import Ragged, Rollouts, concatenate, from_arrays, gather_positions, to_arrays


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
        ({"reward": np.zeros(2)}, r"reward has shape \(2,\), expected \(3,\)"),
        ({"loss_mask": np.zeros(7, bool)}, r"loss_mask has shape \(7,\), expected \(6,\)"),
        ({"prompt_length": np.array([4, 0, 0], np.int32)}, "prompt_length must lie"),
        ({"extras": {"image": np.zeros((2, 2))}}, "extra column 'image' has 2 rows, expected 3"),
    ],
)
def test_construction_when_columns_disagree_is_refused(change, message) -> None:
    with pytest.raises(DataError, match=message):
        three().replace(**change)


def test_from_completions_when_logprobs_are_missing_is_refused() -> None:
    with pytest.raises(DataError, match="rollout 1 has 2 completion tokens but 1 log-probs"):
        Rollouts.from_completions([[1], [1]], [[2], [2, 3]], [[0.0], [0.0]])
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
