"""Rollouts that hypothesis draws, what makes two equal, and lines as others log them."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ostinato import Rollouts
from ostinato.ragged import Ragged, offsets_of
from ostinato.rollouts import ROW_COLUMNS, TOKEN_COLUMNS

DTYPES = [
    np.bool_, np.int8, np.int16, np.int64, np.uint8, np.uint64, np.float16, np.float32, np.float64, np.dtype(">i4"),
    np.complex64, np.dtype("M8[s]"), np.dtype("S3"),
]  # fmt: skip


def equal(a: Rollouts, b: Rollouts) -> None:
    """Same dtypes, shapes and bits; texts of any width, numbers in either byte order."""
    columns = [(name, getattr(a, name), getattr(b, name)) for name in (*TOKEN_COLUMNS, *ROW_COLUMNS, "offsets")]
    assert list(a.extras) == list(b.extras)
    for name in a.extras:
        one, other = a.extras[name], b.extras[name]
        assert type(one) is type(other), name
        if isinstance(one, Ragged):
            columns.append((name, one.offsets, other.offsets))
            one, other = one.values, other.values
        columns.append((name, one, other))
    for name, one, other in columns:
        assert one.shape == other.shape, name
        if one.dtype.kind == "U":
            assert other.dtype.kind == "U" and one.tolist() == other.tolist(), name
        else:
            one, other = (array.astype(array.dtype.newbyteorder("=")) for array in (one, other))
            assert one.dtype == other.dtype and one.tobytes() == other.tobytes(), name


def arrays(dtype, shape):
    finite = {"allow_nan": False} if np.dtype(dtype).kind in "fc" else {}
    if np.dtype(dtype).kind == "M":
        return hnp.arrays(np.int64, shape, elements=st.integers(-(10**9), 10**9)).map(lambda a: a.astype(dtype))
    return hnp.arrays(dtype, shape, elements=hnp.from_dtype(np.dtype(dtype), **finite))


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)


@st.composite
def some_rollouts(draw, min_size=1):
    n = draw(st.integers(min_size, 6))
    lengths = [draw(st.tuples(st.integers(0, 4), st.integers(0, 5))) for _ in range(n)]
    offsets = offsets_of([sum(pair) for pair in lengths])
    total = int(offsets[-1])
    mask = draw(hnp.arrays(np.bool_, total))
    float32 = st.floats(-(2.0**100), 0, width=32)
    ids = st.integers(-(2**63), 2**63 - 1)
    number = st.floats(-1e100, 1e100)
    extras = {}
    for i, dtype in enumerate(draw(st.lists(st.sampled_from(DTYPES), max_size=3))):
        shape = draw(st.sampled_from([(), (2,), (2, 3)]))
        if draw(st.booleans()):
            rows = offsets_of([draw(st.integers(0, 3)) for _ in range(n)])
            extras[f"ragged{i}"] = Ragged(draw(arrays(dtype, (int(rows[-1]), *shape))), rows)
        else:
            extras[f"fixed{i}"] = draw(arrays(dtype, (n, *shape)))
    if draw(st.booleans()):
        extras["text"] = np.array([draw(TEXT) for _ in range(n)], np.str_)
    versions = [sorted(draw(st.tuples(st.integers(-5, 2**62), st.integers(-5, 2**62)))) for _ in range(n)]
    return Rollouts(
        tokens=draw(hnp.arrays(np.int32, total, elements=st.integers(0, 2**31 - 1))),
        loss_mask=mask,
        behavior_logprobs=draw(hnp.arrays(np.float32, total, elements=float32)),
        offsets=offsets,
        prompt_length=np.array([pair[0] for pair in lengths], np.int32),
        policy_version_min=np.array([v[0] for v in versions], np.int64),
        policy_version_max=np.array([v[1] for v in versions], np.int64),
        **{name: draw(hnp.arrays(np.int64, n, elements=ids)) for name in ("prompt_id", "group_id", "birth_step")},
        **{
            name: draw(hnp.arrays(np.float64, n, elements=number))
            for name in ("reward", "group_reward_mean", "advantage")
        },
        group_reward_std=draw(hnp.arrays(np.float64, n, elements=st.floats(0, 1e100))),
        truncated=draw(hnp.arrays(np.bool_, n)),
        temperature=draw(hnp.arrays(np.float32, n, elements=st.floats(0, 10, width=32))),
        top_p=draw(hnp.arrays(np.float32, n, elements=st.floats(0, 1, width=32))),
        top_k=draw(hnp.arrays(np.int32, n, elements=st.integers(0, 2**31 - 1))),
        source=np.array([draw(TEXT) for _ in range(n)], np.str_),
        extras=extras,
    )


def line(completion=(5, 6), **fields):
    """A smallest whole line."""
    return {"prompt_ids": [1, 2], "completion_ids": list(completion), "logprobs": [-0.5] * len(completion), **fields}


def typed(dtype, shape, ragged, values) -> dict:
    return {"dtype": dtype, "shape": shape, "ragged": ragged, "values": values}


ANYTHING = [
    None, True, 1, -1, 0.5, 1e308, 10**400, -(10**25), float("nan"), float("inf"), "5", "9" * 5000, "", [], {}, [1],
    [[1]], [None], [1, 2], [10**400, 1], [True, False], ["a"], [{}], [1, [2]], [1e308, 1e308], [0.5, "x"], {"a": 1},
    [{"logprob": 1}], {"content": [{"logprob": -1}, {"logprob": None}]}, {"content": 3},
    typed("<f4", [2], False, [1, 2]), typed("O", [], False, 1), typed("zz", [], True, 1),
    typed("<f4", "x", True, 1), typed("<f4", [-1], True, [1]),
    typed("S0", [], False, []), typed("<f4", [3], False, [1, 2]), typed(["a"], [], True, 1),
    typed("|V0", [], True, [[]]), typed("<i2", [], False, 99999), typed("<f4", [0], True, [[], []]),
]  # fmt: skip
