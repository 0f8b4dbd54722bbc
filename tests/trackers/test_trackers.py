"""Experiment trackers get what metrics.jsonl gets, and no failure of theirs ends a run."""

import json
import shutil
import sqlite3
import sys
import threading
import types
from pathlib import Path

import pytest

from ostinato.backends.toy import ToyBackend
from ostinato.cli.main import main
from ostinato.errors import ConfigError, MissingExtraError, RunError
from ostinato.loop.session import Session
from ostinato.recipe import config_from_dict
from ostinato.telemetry import read_jsonl
from ostinato.trackers import numbers, tracked
from ostinato.trackers.kinds import KINDS, Mlflow, Run, Trackio, Wandb
from ostinato.trackers.sender import WAITING, Sender


def toy(to="", **loop):
    return config_from_dict(
        {
            "model": {"backend": "toy"},
            "task": {"name": "toy"},
            "tracking": {"to": to, "project": "p"},
            "checkpoint_every": 2,
            "loop": {"train_steps": 4, "batch_size": 12, "group_size": 12, **loop},
            "buffer": {"capacity": 48},
            "evaluation": {"every_units": 2.0},
        }
    )


class Memory:
    """A tracker that remembers; `fail_at` records, or all of them, it does not take."""

    def __init__(self, run, fail_at=()):
        self.run, self.run_id, self.taken, self.ended, self.fail_at, self.seen = run, "m-1", [], [], fail_at, 0

    def log(self, values, *, train_step):
        self.seen += 1
        if self.seen in self.fail_at:
            raise ConnectionError(f"no network\nat {self.seen}")
        self.taken.append((train_step, dict(values)))

    def close(self, *, failed):
        self.ended.append(failed)


def observed(config, directory, *, resume=False, stop_after=None, tell=print, name="n"):
    seen = []
    with tracked(config, directory, name=name, resume=resume, tell=tell) as track:

        def observe(record):
            track(record)
            seen.append(record["train_step"])

        session = Session(config, ToyBackend(config), directory, resume=resume, observer=observe)
        session.run(lambda: stop_after is not None and seen[-1] >= stop_after)


# -------------------------------------------------------------------- records


def test_record_when_made_numbers_has_the_names_of_the_metrics_and_nothing_but_numbers():
    record = {
        "event": "evaluation",
        "train_step": 7,
        "sampled_accuracy": 0.5,
        "greedy_accuracy": None,
        "pass_at_k": {1: 0.5, 2: 0.75},
        "compute": float("nan"),
        "point": 3,
    }
    assert numbers(record) == {
        "eval/sampled_accuracy": 0.5,
        "eval/pass_at_k/1": 0.5,
        "eval/pass_at_k/2": 0.75,
        "eval/point": 3.0,
    }
    assert numbers({"event": "step", "train_step": 1, "staleness": 2.5}) == {"train/staleness": 2.5}


@pytest.mark.parametrize(
    ("tracking", "message"),
    [
        ({"to": "tensorbord"}, "unknown tracker 'tensorbord', expected some of mlflow, tensorboard, trackio, wandb"),
        ({"to": "wandb, wandb"}, "names a tracker twice"),
        ({"to": "wandb,"}, "unknown tracker ''"),
        ({"to": "wandb", "project": ""}, "tracking.project must not be empty"),
    ],
)
def test_settings_when_wrong_are_refused(tracking, message):
    with pytest.raises(ConfigError, match=message):
        config_from_dict({"loop": {"train_steps": 1}, "tracking": tracking})


# -------------------------------------------------------------------- failures


def test_tracker_when_some_records_fail_is_told_of_once_and_gets_the_others(tmp_path, monkeypatch):
    kept, told = [], []
    monkeypatch.setitem(KINDS, "wandb", lambda run: kept.append(Memory(run, fail_at=(2, 3))) or kept[0])
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    observed(toy("wandb"), tmp_path, tell=told.append)
    records = read_jsonl(tmp_path / "metrics.jsonl")
    expected = [(r["train_step"], numbers(r)) for r in records]
    assert kept[0].taken == expected[:1] + expected[3:]
    assert kept[0].ended == [False]
    assert told == [
        "tracker wandb failed, training goes on: ConnectionError: no network at 2",
        f"tracker wandb lacks 2 of {len(records)} records; metrics.jsonl has all",
    ]
    staleness = {f"train/{name}" for name in ("staleness", "uses", "buffer_size", "unique_fraction")}
    assert staleness <= {name for _, values in expected for name in values}


def test_tracker_when_it_hangs_holds_up_neither_the_run_nor_its_end():
    told, hold = [], threading.Event()

    class Hanging(Memory):
        def log(self, values, *, train_step):
            hold.wait()

    sender = Sender("wandb", Hanging(None), told.append, close_s=0.05)
    for step in range(WAITING + 10):
        sender.send({"x": 1.0}, step)
    sender.close(failed=False)
    hold.set()
    assert told[0] == "tracker wandb failed, training goes on: it has not taken 1024 records that wait"
    assert told[1] == "tracker wandb has not answered for 0.05 s: it is left alone"
    assert "lacks" in told[2] and sender.lost >= WAITING


def test_tracker_when_the_run_fails_is_told_so_and_when_it_cannot_end_nothing_is_raised(monkeypatch, tmp_path):
    class Stubborn(Memory):
        def close(self, *, failed):
            super().close(failed=failed)
            raise OSError("disk is full")

    kept, told = [], []
    monkeypatch.setitem(KINDS, "wandb", lambda run: kept.append(Stubborn(run)) or kept[0])
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))

    def die():
        with tracked(toy("wandb"), tmp_path, name="n", resume=False, tell=told.append) as track:
            track({"event": "step", "train_step": 1, "compute": 1.0})
            raise RuntimeError("learner died")

    with pytest.raises(RuntimeError, match="learner died"):
        die()
    assert kept[0].ended == [True]
    assert told == ["tracker wandb could not end its run: OSError: disk is full"]


def test_package_when_absent_gives_the_install_line_before_anything_is_opened(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with (
        pytest.raises(MissingExtraError, match=r"trackio is not installed; run: pip install 'ostinato\[trackio\]'"),
        tracked(toy("trackio"), tmp_path, name="n", resume=False, tell=print),
    ):
        raise AssertionError("never entered")
    recipe = tmp_path / "r.toml"
    recipe.write_text('model.backend = "toy"\ntask.name = "toy"\nloop.train_steps = 2\ntracking.to = "trackio"\n')
    assert main(["train", str(recipe), "--out", str(tmp_path / "run")]) == 1
    assert "pip install 'ostinato[trackio]'" in capsys.readouterr().err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_tracker_when_it_refuses_to_begin_ends_the_run_in_one_line(monkeypatch, tmp_path):
    def refuse(run):
        raise ValueError("api key\nis wrong")

    monkeypatch.setitem(KINDS, "wandb", refuse)
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    with pytest.raises(RunError, match=r"tracker wandb cannot begin: api key is wrong; mend it, or leave it out"):
        observed(toy("wandb"), tmp_path)


# -------------------------------------------------------------------- resume


def test_run_when_resumed_goes_on_under_its_id_and_may_change_its_trackers(tmp_path, monkeypatch):
    kept = []
    for kind in ("wandb", "mlflow"):
        monkeypatch.setitem(KINDS, kind, lambda run: kept.append(Memory(run)) or kept[-1])
        monkeypatch.setitem(sys.modules, kind, types.ModuleType(kind))
    observed(toy("wandb"), tmp_path, stop_after=2)
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": "m-1"}
    observed(toy("wandb,mlflow"), tmp_path, resume=True)
    assert [tracker.run.run_id for tracker in kept] == [None, "m-1", None]
    steps = [step for step, values in kept[0].taken + kept[1].taken if "train/reward" in values]
    assert steps == [1, 2, 3, 4]
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"mlflow": "m-1", "wandb": "m-1"}


def test_directory_when_it_holds_a_run_that_is_not_to_go_on_is_left_alone_by_trackers(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setitem(KINDS, "wandb", lambda run: kept.append(Memory(run)) or kept[-1])
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    observed(toy("wandb"), tmp_path)
    with pytest.raises(ConfigError, match="already holds a run"):
        observed(toy("wandb"), tmp_path)
    assert len(kept) == 1


# -------------------------------------------------------------------- the packages themselves


def scalars(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of protobuf and numpy, inside tensorboard
def test_tensorboard_when_read_back_has_every_number_and_after_a_kill_no_step_twice(tmp_path):
    pytest.importorskip("tensorboard")
    observed(toy("tensorboard"), tmp_path, stop_after=3)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000003")  # as after a kill: the last checkpoint is that of step 2
    observed(toy("tensorboard"), tmp_path, resume=True)
    found = scalars(tmp_path / "tensorboard")
    records = read_jsonl(tmp_path / "metrics.jsonl")
    steps = [r for r in records if r["event"] == "step"]
    assert found["train/reward"] == [(r["train_step"], pytest.approx(r["reward"], rel=1e-6)) for r in steps]
    assert [step for step, _ in found["train/staleness"]] == [1, 2, 3, 4]
    evaluations = [r["sampled_accuracy"] for r in records if r["event"] == "evaluation"]
    assert [value for _, value in found["eval/sampled_accuracy"]][-1] == pytest.approx(evaluations[-1])


@pytest.mark.filterwarnings("ignore")  # of third parties
def test_wandb_when_offline_takes_the_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    told = []
    observed(toy("wandb"), tmp_path, tell=told.append)
    assert told == []
    (written,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"train/staleness" in written.read_bytes()
    assert json.loads((tmp_path / "trackers.json").read_text())["wandb"] in written.name


@pytest.mark.filterwarnings("ignore")  # of third parties
def test_trackio_when_read_back_has_the_steps_in_one_run(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    from trackio import sqlite_storage, utils

    for module in (sqlite_storage, utils):
        if hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    told = []
    observed(toy("trackio"), tmp_path / "run", stop_after=2, tell=told.append)
    observed(toy("trackio"), tmp_path / "run", resume=True, tell=told.append)
    assert told == []
    with sqlite3.connect(tmp_path / "trackio" / "p.db") as base:
        rows = base.execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert {row[0] for row in rows} == {"n"}
    assert [step for _, step, values in rows if b"train/reward" in bytes(values)] == [1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore")  # of third parties
def test_mlflow_when_read_back_has_the_steps_in_one_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    told = []
    observed(toy("mlflow"), tmp_path / "run", stop_after=2, tell=told.append)
    observed(toy("mlflow"), tmp_path / "run", resume=True, tell=told.append)
    assert told == []
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("p").experiment_id])
    assert [m.step for m in client.get_metric_history(run.info.run_id, "train/reward")] == [1, 2, 3, 4]
    assert run.info.status == "FINISHED"
    assert run.data.params["loop.batch_size"] == "12"


# -------------------------------------------------------------------- their calls, where they are not installed


class Recorder:
    """Stands in for a package: notes every call, in order."""

    def __init__(self, answers=None):
        self.calls, self._answers = [], answers or {}

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return self._answers.get(name)

        return call


SETTINGS = {"seed": 3, "loop": {"batch_size": 12}}


@pytest.mark.parametrize("run_id", [None, "abc"])
def test_wandb_is_called_as_its_api_says(run_id, monkeypatch):
    run = Recorder()
    run.id = "abc"
    package = Recorder({"init": run})
    monkeypatch.setitem(sys.modules, "wandb", package)
    tracker = Wandb(Run("p", "n", Path("/d"), SETTINGS, run_id))
    tracker.log({"train/loss": 0.5}, train_step=4)
    tracker.close(failed=True)
    resume = "allow" if run_id else None
    given = {"project": "p", "name": "n", "id": run_id, "resume": resume, "dir": "/d", "config": SETTINGS}
    assert package.calls == [("init", (), given)]
    assert run.calls == [
        ("define_metric", ("train_step",), {}),
        ("define_metric", ("*",), {"step_metric": "train_step"}),
        ("log", ({"train/loss": 0.5, "train_step": 4},), {}),
        ("finish", (), {"exit_code": 1}),
    ]
    assert tracker.run_id == "abc"


@pytest.mark.parametrize("run_id", [None, "n-2"])
def test_trackio_is_called_as_its_api_says(run_id, monkeypatch):
    run = Recorder()
    run.name = "n"
    package = Recorder({"init": run})
    monkeypatch.setitem(sys.modules, "trackio", package)
    tracker = Trackio(Run("p", "n", Path("/d"), SETTINGS, run_id))
    tracker.log({"train/loss": 0.5}, train_step=4)
    tracker.close(failed=False)
    flat = {"seed": 3, "loop.batch_size": 12}
    resume = "allow" if run_id else "never"
    assert package.calls == [
        ("init", (), {"project": "p", "name": run_id or "n", "config": flat, "resume": resume, "embed": False})
    ]
    assert run.calls == [("log", ({"train/loss": 0.5},), {"step": 4}), ("finish", (), {})]


def test_mlflow_is_called_as_its_api_says(monkeypatch):
    answers = {
        "get_experiment_by_name": None,
        "create_experiment": "7",
        "create_run": types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc")),
    }
    client = Recorder(answers)
    package = types.ModuleType("mlflow")
    package.MlflowClient = lambda: client
    package.entities = types.SimpleNamespace(
        Metric=lambda key, value, ms, step: (key, value, step), Param=lambda key, value: (key, value)
    )
    monkeypatch.setitem(sys.modules, "mlflow", package)
    many = {"s": {f"k{i}": i for i in range(101)}}
    tracker = Mlflow(Run("p", "n", Path("/d"), many))
    tracker.log({"train/loss": 0.5}, train_step=4)
    tracker.close(failed=True)
    assert [call[0] for call in client.calls] == [
        "get_experiment_by_name",
        "create_experiment",
        "create_run",
        "log_batch",
        "log_batch",
        "log_batch",
        "set_terminated",
    ]
    assert client.calls[2] == ("create_run", ("7",), {"run_name": "n"})
    assert [len(call[2]["params"]) for call in client.calls[3:5]] == [100, 1]
    assert client.calls[4][2]["params"] == [("s.k100", "100")]
    assert client.calls[5] == ("log_batch", ("abc",), {"metrics": [("train/loss", 0.5, 4)]})
    assert client.calls[6] == ("set_terminated", ("abc",), {"status": "FAILED"})
    client.calls.clear()
    assert Mlflow(Run("p", "n", Path("/d"), many, "abc")).run_id == "abc"
    assert client.calls == [("update_run", ("abc",), {"status": "RUNNING"})]
