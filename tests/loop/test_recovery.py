"""What a run in real time keeps when it is stopped without warning, and how it counts that."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

from ostinato.backends.toy import ToyBackend
from ostinato.buffer import ReplayBuffer
from ostinato.buffer.journal import JournaledBuffer
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.loop import Session
from ostinato.loop.faults import FAULTS_FILE, FaultLog, fault_counts, read_faults
from ostinato.loop.ledger import Ledger
from ostinato.loop.throughput import Effort, gamma_measured
from ostinato.telemetry import read_json_object, read_jsonl

WALL: dict[str, Any] = {
    "loop": {"clock": "wall", "generators": 2, "trainers": 1, "batch_size": 8, "group_size": 4, "train_steps": 12},
    "buffer": {"capacity": 4096},
    "checkpoint_every": 5,
}


class CrashError(Exception):
    """Ends a run at once."""


def crash_at(train_step: int) -> Any:
    def observe(record: Any) -> None:
        if record["train_step"] == train_step:
            raise CrashError

    return observe


def crashed(config: Any, directory: Any, train_step: int) -> dict[str, int]:
    """Rollouts by group that the store of a run held when it crashed at this step."""
    session = Session(config, ToyBackend(config), directory, observer=crash_at(train_step))
    with pytest.raises(CrashError):
        session.run()
    return groups(session)


def groups(session: Session) -> dict[str, int]:
    store = session._loop.parts.store
    ids, counts = np.unique(getattr(store, "buffer", store).columns["group_id"], return_counts=True)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def resumed(config: Any, directory: Any) -> Session:
    session = Session(config, ToyBackend(config), directory, resume=True)
    assert session.run()
    return session


def test_rollouts_when_journaled_with_a_checkpoint_at_every_publication_are_all_there_again(toy, tmp_path) -> None:
    config = toy(**WALL | {"checkpoint_every": 1, "buffer": {"capacity": 4096, "journal": True}})
    before = crashed(config, tmp_path / "run", 7)
    session = resumed(config, tmp_path / "run")
    after, ledger = groups(session), session._loop.ledger
    assert before.items() <= after.items()
    assert set(after.values()) == {4}  # no group twice
    assert sum(after.values()) == ledger.generated == session._loop.parts.store.added
    assert (ledger.train_step, ledger.trained) == (12, 96)
    assert sorted(after) == list(range(len(after))) or ledger.groups - len(after) <= 2  # but for what was on its way
    counts = fault_counts(tmp_path / "run" / FAULTS_FILE)
    # Step 7 was seen and its checkpoint not yet written.
    assert (counts["rolled_back"], counts["lost_train_steps"]) == (1, 1)
    assert "lost_rollouts" not in counts


def test_rollouts_when_journaled_with_rare_checkpoints_leave_if_their_version_comes_again(toy, tmp_path) -> None:
    config = toy(**WALL | {"buffer": {"capacity": 4096, "journal": True}})
    before = crashed(config, tmp_path / "run", 8)
    session = resumed(config, tmp_path / "run")
    line = read_faults(tmp_path / "run" / FAULTS_FILE)[0]
    at_checkpoint = read_jsonl(tmp_path / "run" / "metrics.jsonl")[4]["generated"]
    assert line["lost_train_steps"] == 3
    assert line["lost_rollouts"] + line["recovered_rollouts"] == sum(before.values()) - at_checkpoint
    assert set(groups(session).values()) == {4}
    journal = tmp_path / "run" / "journal"
    shutil.rmtree(journal)
    with pytest.raises(CheckpointError, match="journal is missing"):
        resumed(config, tmp_path / "run")
    with JournaledBuffer(ReplayBuffer(4096), journal):
        pass  # of another run
    longer = toy(**WALL | {"buffer": {"capacity": 4096, "journal": True}, "loop": WALL["loop"] | {"train_steps": 14}})
    with pytest.raises(CheckpointError, match="the journal has seen 0 rollouts, the checkpoint"):
        resumed(longer, tmp_path / "run")


def test_rollouts_when_not_journaled_are_lost_back_to_the_checkpoint_and_counted(toy, tmp_path) -> None:
    config = toy(**WALL)
    crashed(config, tmp_path / "run", 8)
    records = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    lost = records[7]["generated"] - records[4]["generated"]
    session = resumed(config, tmp_path / "run")
    line = read_faults(tmp_path / "run" / FAULTS_FILE)[0]
    assert (line["fault"], line["lost_train_steps"], line["lost_rollouts"]) == ("rolled_back", 3, lost)
    last = read_jsonl(tmp_path / "run" / "metrics.jsonl")[-1]
    assert last["faults.lost_rollouts"] == lost
    assert sum(groups(session).values()) == session._loop.ledger.generated


def test_run_when_it_stops_by_itself_has_no_faults(toy, tmp_path) -> None:
    config = toy(**WALL | {"buffer": {"capacity": 4096, "journal": True}})
    assert not Session(config, ToyBackend(config), tmp_path / "run").run(lambda: True)
    resumed(config, tmp_path / "run")
    assert not (tmp_path / "run" / FAULTS_FILE).exists()
    assert not list((tmp_path / "run" / "checkpoints").glob("*/buffer.npz"))


def test_journal_when_the_clock_is_virtual_is_refused(toy) -> None:
    with pytest.raises(ConfigError, match=r"buffer.journal needs .* got replay, virtual"):
        toy(loop={"train_steps": 1}, buffer={"journal": True})


def test_fault_log_when_read_again_goes_on_counting(tmp_path) -> None:
    path = tmp_path / FAULTS_FILE
    assert FaultLog(path).counts() == {}
    assert not path.exists()
    FaultLog(path).record("generator_died", generator=1, reissued_groups=2, why="killed")
    log = FaultLog(path)
    log.record("generator_died", generator=0, reissued_groups=3)
    assert log.counts() == {"faults.generator_died": 2.0, "faults.reissued_groups": 5.0}
    with path.open("a") as file:
        file.write('{"fault": "gen')  # a torn line, left by a kill
    assert [line["generator"] for line in read_faults(path)] == [1, 0]
    path.write_text("[]\n")
    with pytest.raises(DataError, match=r"faults.jsonl:1 is not a fault"):
        fault_counts(path)


def test_throughput_when_two_generators_feed_one_trainer_adds_up(toy, tmp_path) -> None:
    config = toy(**WALL)
    session = Session(config, ToyBackend(config), tmp_path / "run")
    assert session.run()
    summary, last = (
        read_json_object(tmp_path / "run" / "throughput.json"),
        read_jsonl(tmp_path / "run/metrics.jsonl")[-1],
    )
    assert sum(one["rollouts"] for one in summary["generators"]) == last["generated"]
    assert summary["trainer"]["rollouts"] == 96
    # Two tokens a completion: tokens over busy seconds, twice rollouts over busy seconds.
    assert summary["trainer"]["tokens_per_s"] == pytest.approx(2 * 96 / last["busy_train_s"])
    assert last["mu_measured"] == summary["mu_measured"] > 0
    assert Effort(3, 12, 1.5).rates(6.0) == {"rollouts": 3, "tokens_per_s": 8.0, "busy_share": 0.25}


def test_gamma_when_nobody_waits_is_that_of_the_paper() -> None:
    # W = 6, T = 2, mu = 5: each step trains 60 rollouts in 1 / T, in which W generators make 60 W / (mu T) = 36.
    ledger = Ledger(train_step=10, generated=360, trained=600, busy_generate_s=360 * 5.0, busy_train_s=600.0)
    assert gamma_measured(ledger, 60) == pytest.approx((1 + 6 / 2) / (1 + 5))
    assert gamma_measured(Ledger(), 60) is None
