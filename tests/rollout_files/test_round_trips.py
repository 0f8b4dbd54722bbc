"""What is written comes back: every dtype, every bit."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rollout_examples import equal, line, some_rollouts

from ostinato import ConfigError, DataError, Rollouts
from ostinato.ragged import Ragged
from ostinato.rollout_files import ReadRules, open_rollouts, read_rollouts, write_rollouts

FORMATS = ["jsonl", "parquet"]
QUICK = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("ending", FORMATS)
@given(rollouts=some_rollouts(), chunk=st.integers(1, 7))
@QUICK
def test_file_when_written_and_read_gives_back_every_bit(tmp_path_factory, ending, rollouts, chunk) -> None:
    path = tmp_path_factory.mktemp("files") / f"rollouts.{ending}"
    assert write_rollouts(path, [rollouts]) == len(rollouts)
    equal(read_rollouts(path, ReadRules(chunk_rollouts=chunk)), rollouts)


@given(rollouts=some_rollouts(min_size=0))
@QUICK
def test_parquet_when_rewritten_from_jsonl_is_the_same(tmp_path_factory, rollouts) -> None:
    directory = tmp_path_factory.mktemp("files")
    write_rollouts(directory / "a.jsonl", [rollouts])
    write_rollouts(directory / "b.parquet", open_rollouts(directory / "a.jsonl").parts())
    if len(rollouts):
        equal(read_rollouts(directory / "b.parquet"), rollouts)
    else:
        assert len(read_rollouts(directory / "b.parquet")) == 0


@given(st.lists(st.floats(max_value=0, allow_infinity=False, allow_nan=False, width=32), min_size=1))
@QUICK
def test_logprobs_when_printed_come_back_bit_identical(tmp_path_factory, values) -> None:
    path = tmp_path_factory.mktemp("files") / "a.jsonl"
    rollouts = Rollouts.from_completions([[1]], [[2] * len(values)], [values])
    write_rollouts(path, [rollouts])
    assert read_rollouts(path).behavior_logprobs.tobytes() == rollouts.behavior_logprobs.tobytes()
    printed = json.loads(path.read_text())["logprobs"]
    assert all(len(repr(value).lstrip("-").replace(".", "").split("e")[0].strip("0")) <= 9 for value in printed)


def test_prompt_when_logged_has_the_id_that_live_rollouts_of_it_get(lines) -> None:
    live = Rollouts.from_completions([[1, 2], [3]], [[5, 6]] * 2, [[-0.5, -0.5]] * 2)
    read = read_rollouts(lines(line(), line(prompt_ids=[3])))
    assert read.prompt_id.tolist() == live.prompt_id.tolist()


def test_jsonl_when_written_reads_as_people_log_it(tmp_path) -> None:
    rollouts = Rollouts.from_completions(
        [[1, 2]], [[3, 4]], [[-0.25, -1.5]], reward=1.0, temperature=0.7, source="gsm8k", group_id=9, prompt_id=0,
        extras={"image": np.zeros((1, 2), np.uint8)},
    )  # fmt: skip
    path = tmp_path / "a.jsonl"
    write_rollouts(path, [rollouts])
    assert json.loads(path.read_text()) == {
        "prompt_ids": [1, 2], "completion_ids": [3, 4], "logprobs": [-0.25, -1.5], "prompt_id": 0, "group_id": 9,
        "reward": 1.0, "group_reward_mean": 0.0, "group_reward_std": 0.0, "advantage": 0.0, "policy_version_min": 0,
        "policy_version_max": 0, "birth_step": 0, "truncated": False, "temperature": 0.7, "top_p": 1.0, "top_k": 0,
        "source": "gsm8k", "extras": {"image": {"dtype": "|u1", "shape": [2], "ragged": False, "values": [0, 0]}},
    }  # fmt: skip


def test_parquet_when_rewritten_by_another_tool_is_read_by_its_names(tmp_path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    rollouts = Rollouts.from_completions(
        [[1], [2]], [[3, 4], [5]], [[-1, -2], [-3]], reward=[0.0, 1.0], group_id=3, extras={"score": np.array([7, 8])}
    )
    write_rollouts(tmp_path / "a.parquet", [rollouts])
    table = pq.read_table(tmp_path / "a.parquet").replace_schema_metadata(None)
    pq.write_table(table, tmp_path / "b.parquet")
    equal(read_rollouts(tmp_path / "b.parquet"), rollouts)


def test_parquet_when_logged_elsewhere_is_read_as_lines_are(tmp_path, lines) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    records = [line(reward=i % 2, uid="a", score_detail=[0.5] * i) for i in range(3)]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    equal(read_rollouts(tmp_path / "a.parquet"), read_rollouts(lines(*records)))


def test_parquet_when_many_parts_differ_in_order_of_extras_keeps_names(tmp_path) -> None:
    def part(names):
        extras = {name: np.array([float(ord(name))]) for name in names}
        return Rollouts.from_completions([[1]], [[2]], [[-1]], extras=extras)

    write_rollouts(tmp_path / "a.parquet", [part("xy"), part("yx")])
    read = read_rollouts(tmp_path / "a.parquet")
    assert read.extras["x"].tolist() == [120.0] * 2 and read.extras["y"].tolist() == [121.0] * 2
    with pytest.raises(DataError, match="extra columns"):
        write_rollouts(tmp_path / "b.parquet", [part("xy"), part("x")])
    assert not (tmp_path / "b.parquet").exists() and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("ending", FORMATS)
def test_file_when_it_exists_is_kept_unless_forced(tmp_path, ending) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_text("mine")
    one = Rollouts.from_completions([[1]], [[2]], [[-1]])
    with pytest.raises(ConfigError, match="--force"):
        write_rollouts(path, [one])
    assert path.read_text() == "mine"
    write_rollouts(path, [one], overwrite=True)
    assert len(read_rollouts(path)) == 1


@pytest.mark.parametrize("ending", FORMATS)
def test_file_when_writing_fails_is_not_there(tmp_path, ending) -> None:
    def parts():
        yield Rollouts.from_completions([[1]], [[2]], [[-1]])
        raise OSError("the source went away")

    path = tmp_path / f"a.{ending}"
    with pytest.raises(OSError, match="went away"):
        write_rollouts(path, parts())
    assert list(tmp_path.iterdir()) == []
    path.write_text("mine")
    with pytest.raises(OSError, match="went away"):
        write_rollouts(path, parts(), overwrite=True)
    assert path.read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("ending", FORMATS)
def test_extras_when_structured_are_refused(tmp_path, ending) -> None:
    column = np.zeros(1, [("a", "i4"), ("b", "f8")])
    one = Rollouts.from_completions([[1]], [[2]], [[-1]], extras={"pair": column})
    with pytest.raises(DataError, match="'pair'"):
        write_rollouts(tmp_path / f"a.{ending}", [one])
    ragged = Ragged(np.zeros((2, 0)), np.array([0, 2]))
    with pytest.raises(DataError, match="nothing to write"):
        write_rollouts(tmp_path / f"a.{ending}", [one.replace(extras={"none": ragged})])


def test_parquet_when_damaged_is_refused(tmp_path) -> None:
    path = tmp_path / "a.parquet"
    write_rollouts(path, [Rollouts.from_completions([[1]] * 9, [[2]] * 9, [[-1]] * 9)])
    content = path.read_bytes()
    for damaged in (b"", content[:50], content[:-9], b"{}" * 40):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.parquet"):
            read_rollouts(path)


def test_parquet_when_of_a_later_format_is_refused(tmp_path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    write_rollouts(path, [Rollouts.from_completions([[1]], [[2]], [[-1]])])
    table = pq.read_table(path)
    for about, said in ((b'{"format": 2, "extras": {}}', "format 2, expected 1"), (b"[", "damaged metadata")):
        pq.write_table(table.replace_schema_metadata({b"ostinato.rollouts": about}), path)
        with pytest.raises(DataError, match=said):
            read_rollouts(path)


@pytest.mark.parametrize("ending", FORMATS)
def test_extras_when_some_are_asked_for_are_these_whatever_the_format(tmp_path, ending) -> None:
    path = tmp_path / f"a.{ending}"
    extras = {"a": np.array([1]), "b": np.array([2.5])}
    write_rollouts(path, [Rollouts.from_completions([[1]], [[2]], [[-1]], extras=extras)])
    assert list(read_rollouts(path, ReadRules(extras=("b",))).extras) == ["b"]
    assert open_rollouts(path, ReadRules(extras=("b",))).report.kept == ["b"]
    assert read_rollouts(path, ReadRules(extras=())).extras == {}
    with pytest.raises(DataError, match="extra column 'c'"):
        read_rollouts(path, ReadRules(extras=("c",)))


def test_ending_when_unknown_is_refused(tmp_path) -> None:
    for function in (read_rollouts, lambda path: write_rollouts(path, [])):
        with pytest.raises(ConfigError, match=r"'\.csv', expected \.jsonl or \.parquet"):
            function(tmp_path / "a.csv")
