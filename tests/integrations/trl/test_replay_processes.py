"""Two processes under accelerate, over gloo: each with its own buffer, both with one schedule."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl")

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def ranks(model_directory, tmp_path_factory):
    """What the two processes said, by rank."""
    output, answers = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("answers")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "process_worker.py"), model_directory, str(output), str(answers)]
    both = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank, "ACCELERATE_USE_CPU": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in "01"
    ]
    try:
        said = [process.communicate(timeout=1800)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], "\n".join(said)
    return [json.loads((answers / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_processes_share_capacity_ids_schedule_and_weights(ranks) -> None:
    one, other = (rank["whole"] for rank in ranks)
    assert one["capacity"] == other["capacity"] == 16
    assert one["generations"] == other["generations"] == 2
    assert {i % 2 for i in one["rollout_id"]} == {0} and {i % 2 for i in other["rollout_id"]} == {1}
    assert one["weights"] == other["weights"]
    assert one["ids"] != [[i - 1 for i in ids] for ids in other["ids"]]  # each draws its own
    for rank in (one, other):
        assert [max(ages) for ages in rank["staleness"][:3]] == [0, 1, 2] and max(map(max, rank["staleness"])) <= 5
    assert one["size"] == [16, 16, 16, 32, 32, 32]  # of both


def test_tokens_of_a_step_are_those_that_both_processes_drew(ranks) -> None:
    one, other = (rank["whole"] for rank in ranks)
    assert one["items"] == other["items"]
    steps = np.add(one["tokens"], other["tokens"]).reshape(-1, 2).sum(1)
    assert one["items"][::2] == one["items"][1::2] == steps.tolist()
    assert len(set(one["items"])) > 2 and one["tokens"] != other["tokens"]


def test_baselines_of_groups_that_lie_in_both_processes_are_of_the_whole_group(ranks) -> None:
    """Groups of 16, of which each process generates 8."""
    one, other = (rank["whole"] for rank in ranks)
    assert one["group_id"] == other["group_id"] == [0] * 8 + [1] * 8
    for group in (slice(0, 8), slice(8, 16)):
        rewards = one["reward"][group] + other["reward"][group]
        for rank in (one, other):
            np.testing.assert_allclose(rank["group_reward_mean"][group], np.mean(rewards), rtol=1e-12)
    assert np.mean(one["reward"]) != np.mean(other["reward"])


def test_resumed_processes_go_on_as_if_nothing_had_happened(ranks) -> None:
    for rank in ranks:
        assert rank["resumed"]["losses"] == rank["whole"]["losses"][8:]
        assert rank["resumed"]["ids"] == rank["whole"]["ids"][4:]
        assert rank["resumed"]["weights"] == rank["whole"]["weights"]


def test_process_that_lacks_a_batch_makes_all_generate(ranks) -> None:
    """Rank 1 keeps 4 of 8: the first step borrows, the second generates out of turn in both, and no one waits."""
    one, other = (rank["lame"] for rank in ranks)
    assert one["generations"] == other["generations"] == 3
    assert len(one["rollout_id"]) == 16 and len(other["rollout_id"]) == 12
    assert one["weights"] == other["weights"]
