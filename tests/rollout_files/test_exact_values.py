"""Nothing in a file becomes something else on the way in: values that do not fit are refused, damage is noticed."""

import json

import numpy as np
import pytest
from rollout_examples import equal, line, typed

from ostinato import DataError, Rollouts
from ostinato.ragged import Ragged
from ostinato.rollout_files import open_rollouts, read_rollouts, write_rollouts


@pytest.mark.parametrize(
    ("dtype", "ragged", "values", "said"),
    [
        ("<i4", False, 1.9, "holds '1.9' of type float, expected int32"),
        ("<i4", False, "7", "holds '7' of type str"),
        ("<i4", False, True, "of type bool"),
        ("<u1", False, 300, "300"),
        ("<i8", True, [1, None], "of type NoneType"),
        ("|b1", False, "no", "of type str, expected bool"),
        ("|b1", True, [1], "of type int, expected bool"),
        ("<f8", False, None, "of type NoneType, expected float64"),
        ("<f4", False, 1e300, "holds a number too large for float32"),
        ("<f8", True, {"1": 2}, "a ragged row is no list"),
        ("U", False, 5, "of type int"),
        ("S2", False, [1.5, 2], "of type float, expected uint8"),
    ],
)
def test_extra_when_its_values_are_not_of_its_dtype_is_refused(lines, dtype, ragged, values, said) -> None:
    with pytest.raises(DataError, match=r"logged\.jsonl:1: extra 'x': ") as caught:
        open_rollouts(lines(line(extras={"x": typed(dtype, [], ragged, values)})))
    assert said in str(caught.value)


@pytest.mark.parametrize("shape", [[0, 10**12], [2**40, 2**40], [10**12]])
def test_extra_when_its_shape_fits_no_memory_is_refused(lines, shape) -> None:
    with pytest.raises(DataError, match="larger than"):
        open_rollouts(lines(line(extras={"x": typed("<f4", shape, False, [])})))


def test_extra_when_flags_stand_among_numbers_is_left_out(lines) -> None:
    opened = open_rollouts(lines(line(x=[True, 1], y=[0.5, 1], z=[True])))
    [read] = opened.parts()
    assert opened.report.left_out == {"x": "a mixed list"}
    assert read.extras["y"].values.tolist() == [0.5, 1] and read.extras["z"].values.dtype == np.bool_


@pytest.mark.parametrize("ending", ["\n", ""])
def test_name_when_it_stands_twice_in_an_object_is_refused(lines, ending) -> None:
    text = json.dumps(line(reward=1))[:-1] + ', "reward": 0}' + ending
    with pytest.raises(DataError, match=r"logged\.jsonl:2: 'reward' stands twice in one object"):
        open_rollouts(lines(line(), tail=text))


def test_parquet_when_a_bit_is_flipped_is_refused_or_unharmed(tmp_path) -> None:
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    n = 30
    lengths = rng.integers(1, 20, n)
    rollouts = Rollouts.from_completions(
        [[1, 2]] * n, [rng.integers(0, 1000, k) for k in lengths], [-rng.random(k) for k in lengths],
        reward=rng.random(n), group_id=rng.integers(0, 9, n), source=[f"s{i % 3}" for i in range(n)],
        extras={"turns": rng.integers(0, 99, n), "mask": Ragged.from_rows([rng.integers(0, 2, k) for k in lengths])},
    )  # fmt: skip
    path = tmp_path / "a.parquet"
    write_rollouts(path, [rollouts])
    content = path.read_bytes()
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            read = read_rollouts(path)
        except DataError:
            refused += 1
        else:
            equal(read, rollouts)
    assert refused > 200


def test_parquet_when_a_text_is_no_utf8_is_refused(tmp_path) -> None:
    pytest.importorskip("pyarrow")
    one = Rollouts.from_completions([[1]], [[2]], [[-1]], source=["\ud800"])
    other = Rollouts.from_completions([[1]], [[2]], [[-1]], extras={"\ud800": np.array([1])})
    for rollouts in (one, other):
        with pytest.raises(DataError, match="Parquet"):
            write_rollouts(tmp_path / "a.parquet", [rollouts])
        write_rollouts(tmp_path / "a.jsonl", [rollouts], overwrite=True)
        equal(read_rollouts(tmp_path / "a.jsonl"), rollouts)
    assert not (tmp_path / "a.parquet").exists()
