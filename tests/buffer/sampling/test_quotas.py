"""Shares by source: exact counts, short sources, and the sampler inside."""

import numpy as np
import pytest
from fake_columns import FakeColumns
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from ostinato.buffer.sampling import Epoch, Newest, Prioritized, Quotas, Uniform
from ostinato.buffer.sampling.quotas import largest_remainder, limited
from ostinato.errors import ConfigError, DataError

RNG = np.random.default_rng
CODES = np.array([0, 1, 2, 0, 1, 2, 0, 0, 0, 3])


def mixed(quotas) -> FakeColumns:
    """Five rows of math, two of code and chat, one of a source without a quota."""
    columns = FakeColumns(10, source_code=CODES, sources=("math", "code", "chat", "other"))
    columns.attach(quotas)
    return columns


def counts_of(columns, picked) -> list[int]:
    return np.bincount(columns["source_code"][picked.rows], minlength=4).tolist()


def test_counts_when_split_go_to_the_largest_remainders() -> None:
    thirds = np.full(3, 1 / 3)
    assert largest_remainder(thirds, 10).tolist() == [4, 3, 3]
    assert largest_remainder(np.array([0.5, 0.3, 0.2]), 7).tolist() == [4, 2, 1]  # 3.5, 2.1, 1.4
    assert largest_remainder(np.array([0.1] * 10), 10).tolist() == [1] * 10
    assert limited(np.array([0.5, 0.3, 0.2]), np.array([2, 9, 9]), 10).tolist() == [2, 5, 3]  # 8 shared 3 : 2


@given(
    weights=st.lists(st.floats(0.01, 1), min_size=1, max_size=6),
    limits=st.lists(st.integers(0, 40), min_size=6, max_size=6),
    share=st.floats(0, 1),
)
def test_counts_when_some_sources_are_short_are_exact_and_within_limits(weights, limits, share) -> None:
    fractions, held = np.array(weights) / sum(weights), np.array(limits[: len(weights)])
    n = round(share * held.sum())
    counts = limited(fractions, held, n)
    assert counts.sum() == n and (counts >= 0).all() and (counts <= held).all()
    free = counts < held
    assert (counts[free] >= np.floor(fractions[free] * n - 1e-9)).all()  # nobody gets less for another's shortage


def test_batch_when_every_source_has_enough_holds_its_share() -> None:
    quotas = Quotas({"math": 0.5, "code": 0.25, "chat": 0.25}, Uniform(False))
    columns = mixed(quotas)
    for seed in range(20):
        picked = quotas(columns, 8, RNG(seed))
        assert counts_of(columns, picked) == [4, 2, 2, 0] and len(set(picked.rows)) == 8
    assert quotas.shortfall == {"math": 0, "code": 0, "chat": 0}
    assert picked.importance_weights is None


def test_batch_when_a_source_is_short_is_filled_by_the_others_and_counted() -> None:
    quotas = Quotas({"code": 0.8, "math": 0.2}, Uniform(False))
    columns = mixed(quotas)
    assert counts_of(columns, quotas(columns, 5, RNG(0))) == [3, 2, 0, 0]
    assert quotas.shortfall == {"code": 2, "math": 0}
    with pytest.raises(DataError, match=r"cannot draw 8: the sources hold \{'code': 2, 'math': 5\}"):
        quotas(columns, 8, RNG(0))
    assert quotas.shortfall == {"code": 2, "math": 0}


def test_batch_when_the_inner_sampler_repeats_is_short_only_of_sources_without_any() -> None:
    quotas = Quotas({"code": 0.5, "gone": 0.5})
    columns = mixed(quotas)
    assert quotas.repeats and counts_of(columns, quotas(columns, 100, RNG(0))) == [0, 100, 0, 0]
    assert quotas.shortfall == {"code": 0, "gone": 50}
    with pytest.raises(DataError, match="cannot draw 1: the sources hold"):
        Quotas({"gone": 1.0})(columns, 1, RNG(0))


def test_rows_when_drawn_inside_a_source_are_uniform_and_in_random_order() -> None:
    quotas = Quotas({"math": 0.5, "code": 0.5})
    columns = mixed(quotas)
    columns.kill([3])
    rows = np.stack([quotas(columns, 10, RNG(seed)).rows for seed in range(1000)])
    counts = np.bincount(rows.ravel(), minlength=10)
    assert not counts[[2, 3, 5, 9]].any()
    assert chisquare(counts[[0, 6, 7, 8]]).pvalue > 1e-3 and chisquare(counts[[1, 4]]).pvalue > 1e-3
    assert np.isin(rows[:, 0], [1, 4]).mean() == pytest.approx(0.5, abs=0.06)


def test_inner_samplers_when_they_keep_an_index_see_their_source_alone() -> None:
    quotas = Quotas({"math": 0.5, "code": 0.5}, Prioritized(exponent=1.0, beta=1.0, normalize=None))
    columns = mixed(quotas)
    columns.write(columns.live(), priority=np.array([1.0, 3, 9, 0, 1, 9, 0, 0, 0, 9]))
    columns.add(1, source_code=0, priority=1.0)
    columns.kill([4])
    columns.compact()
    picked = quotas(columns, 8000, RNG(0))
    ids = columns["rollout_id"][picked.rows]
    counts = np.bincount(ids, minlength=11)
    assert counts[1] == 4000 and set(ids) == {0, 1, 10}
    assert chisquare(counts[[0, 10]]).pvalue > 1e-3
    assert set(picked.importance_weights[ids == 1]) == {1.0}  # the only one of its source: P = 1, N = 1
    assert picked.importance_weights[ids == 0] == pytest.approx(1 / 3)  # P = 1/2, N = 6
    assert quotas.new_priority(columns) == 9


def test_inner_samplers_when_ordered_or_remembering_keep_their_ways() -> None:
    newest = Quotas({"math": 0.5, "code": 0.5}, Newest())
    columns = mixed(newest)
    assert sorted(newest(columns, 4, RNG(0)).rows) == [1, 4, 7, 8]
    epoch, again = Quotas({"math": 1.0}, Epoch()), Quotas({"math": 1.0}, Epoch())
    columns.attach(epoch)
    first = epoch(columns, 3, RNG(0)).rows
    again.load_state_arrays(epoch.state_arrays())
    again.rebuilt(columns)
    assert sorted([*first, *again(columns, 2, RNG(1)).rows]) == [0, 3, 6, 7, 8]
    assert list(epoch.state_arrays()) == ["math/drawn"]


@pytest.mark.parametrize("bad", [{}, {"a": 0.5}, {"a": 1.5, "b": -0.5}, {"a": 1.0, "b": 0.0}, {"a": float("nan")}])
def test_fractions_when_they_do_not_add_up_are_refused(bad) -> None:
    with pytest.raises(ConfigError, match=r"add up to 1|quota of source .[ab]. must be (above 0|a finite number)"):
        Quotas(bad)
