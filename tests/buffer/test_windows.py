"""Copies of many spans at once, against one slice after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.buffer.kernels import address
from ostinato.buffer.windows import FEW, LONG_BYTES, Windows
from ostinato.ragged import offsets_of

UNTOUCHED = 9


def _copied(lengths: np.ndarray, order: np.ndarray, gap: int, dtype: type[np.generic]) -> tuple[np.ndarray, np.ndarray]:
    """What `Windows` and what slices make of spans put down in another order, `gap` items between them."""
    of = np.arange(lengths.sum() + 1).astype(dtype)
    starts, places = offsets_of(lengths)[:-1], np.empty_like(lengths)
    places[order] = offsets_of(lengths[order] + gap)[:-1]
    ours, slices = (np.full(lengths.sum() + gap * len(lengths) + 1, UNTOUCHED, dtype) for _ in range(2))
    item = ours.itemsize
    Windows(lengths, item).copy(address(ours) + item * places, address(of) + item * starts, item)
    for place, start, length in zip(places, starts, lengths, strict=True):
        slices[place : place + length] = of[start : start + length]
    return ours, slices


@given(
    lengths=st.lists(st.integers(0, 3000) | st.integers(0, 12).map(lambda k: 1 << k), max_size=2 * FEW),
    gap=st.integers(0, 2),
    dtype=st.sampled_from([np.uint8, np.int32]),
    seed=st.integers(0, 99),
)
def test_copy_when_spans_have_any_lengths_equals_slices(
    lengths: list[int], gap: int, dtype: type[np.generic], seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(lengths))
    ours, slices = _copied(np.array(lengths, np.int64), order, gap, dtype)
    np.testing.assert_array_equal(ours, slices)


@pytest.mark.parametrize("length", [1, 3, 4, 5, LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1, 100_000])
def test_copy_when_many_spans_are_equally_long_touches_nothing_between_them(length: int) -> None:
    lengths = np.full(FEW + 1, length)
    ours, slices = _copied(lengths, np.arange(len(lengths)), 1, np.uint8)
    np.testing.assert_array_equal(ours, slices)
    assert ours[length] == UNTOUCHED


@pytest.mark.parametrize("n", [0, 3, FEW, FEW + 1, 300])
def test_fill_when_spans_lie_apart_sets_every_byte_of_them_and_no_other(n: int) -> None:
    lengths = np.random.default_rng(n).integers(0, 2000, n)
    starts = offsets_of(lengths + 1)
    array = np.full(int(starts[-1]), UNTOUCHED, np.int32)
    expected = array.copy()
    Windows(lengths, 4).fill(address(array) + 4 * starts[:-1], 4, 0)
    for start, length in zip(starts[:-1], lengths, strict=True):
        expected[start : start + length] = 0
    np.testing.assert_array_equal(array, expected)
