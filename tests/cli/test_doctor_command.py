"""`ostinato doctor`: the machine, a recipe on it, and its model at work."""

import json
import math
import socket
from pathlib import Path

import numpy as np
import pytest

from ostinato.backends.hf.generator import HFGenerator
from ostinato.cli import doctor, doctor_machine
from ostinato.cli.check_facts import GIB
from ostinato.cli.doctor_machine import Gpu, Machine, device_findings, disk_finding, thread_findings
from ostinato.cli.doctor_packages import package_findings
from ostinato.cli.doctor_probe import probed
from ostinato.cli.doctor_recipe import computing, need_here, recipe_facts, recipe_findings
from ostinato.cli.main import main
from ostinato.config import LossConfig
from ostinato.recipe import load_recipe

ROOT = Path(__file__).parent.parent.parent
RECIPES = sorted((ROOT / "recipes").glob("**/*.toml"))
LAPTOP = Machine(8, 16 * GIB, 12 * GIB, 0.5, (), 8)
TINY = """
[model]
hidden_size = 16
layers = 1
heads = 2
kv_heads = 1
intermediate_size = 32
[task]
name = "sort"
options = { digits = 3 }
test_prompts = 16
[sampling]
temperature = 0.7
max_new_tokens = 6
[loop]
batch_size = 24
group_size = 6
train_steps = 12
[buffer]
capacity = 60
"""


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", "/nowhere")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(doctor, "this_machine", lambda: LAPTOP)


@pytest.fixture
def tiny(tmp_path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def asked(capsys, *words: object) -> tuple[int, dict[str, dict]]:
    """Exit code and findings by topic, the last of each."""
    code = main(["doctor", *map(str, words), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["level"] == max((f["level"] for f in said["findings"]), key=["OK", "WARNING", "FAULT"].index)
    return code, {finding["topic"]: finding for finding in said["findings"]}


def test_a_tiny_transformer_is_in_order_and_its_weights_arrive(capsys, tiny) -> None:
    code, topics = asked(capsys, tiny)
    assert code == 0 and {f["level"] for f in topics.values()} <= {"OK"}
    parity, weights = topics["parity"]["figures"], topics["weights"]["figures"]
    assert parity["precision"] == "float32" and parity["max_abs"] < 1e-4
    assert 16 <= parity["tokens"] <= 16 * 6
    assert weights["versions"] == [weights["steps"] + 1]
    assert weights["after"]["max_abs"] < 1e-4 < 0.05 < weights["moved"]["max_abs"]
    assert "without its warm start" in topics["model"]["text"]


def test_an_engine_that_keeps_its_old_weights_is_a_fault(capsys, tiny, monkeypatch) -> None:
    load = HFGenerator.load

    def stale(self, weights, version):
        load(self, weights if version == 0 else dict(self._model.named_parameters()), version)

    monkeypatch.setattr(HFGenerator, "load", stale)
    code, topics = asked(capsys, tiny)
    assert code == 1 and topics["parity"]["level"] == "OK"
    assert topics["weights"]["level"] == "FAULT" and "still has the old weights" in topics["weights"]["text"]


def test_an_engine_that_raises_is_a_fault_in_one_line(capsys, tiny, monkeypatch) -> None:
    def broken(self, requests):
        raise RuntimeError("CUDA out of memory.\n Tried to allocate")

    monkeypatch.setattr(HFGenerator, "stream", broken)
    assert main(["doctor", str(tiny)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "FAULT    parity    RuntimeError: CUDA out of memory. Tried to allocate" in lines
    assert lines[-1] == "FAULT: 1 FAULT, 0 WARNING"


def test_the_toy_is_checked_as_far_as_it_applies(capsys) -> None:
    code, topics = asked(capsys, "recipes/toy.toml")
    assert code == 0 and "memory" not in topics
    assert topics["parity"]["level"] == topics["weights"]["level"] == "OK"


def test_without_a_recipe_only_the_machine_is_looked_at(capsys) -> None:
    code, topics = asked(capsys)
    assert code == 0 and {"versions", "packages", "cpu", "threads", "cache", "runs"} <= topics.keys()
    assert not {"parity", "task", "memory"} & topics.keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["recipes/demo.toml", "--loop.batch_size", "9999"], "loop.batch_size 9999 > buffer.capacity 1020"),
        (["recipes/demo.toml", "--task.name", "sorts"], "unknown task 'sorts'"),
        (["recipes/demo.toml", "--model.path", "./none"], "'./none' is no directory"),
        (["none.toml"], "none.toml"),
        (["--loop.batch_size=9"], "--loop.batch_size=9 is a setting of a recipe, and none is given"),
    ],
)
def test_a_recipe_that_would_not_run_is_refused_with_code_2(capsys, words, message) -> None:
    assert main(["doctor", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_probed_with_a_plain_loss(path) -> None:
    config = load_recipe(path, [])
    changed = probed(config, Path("/a/model"))
    assert changed.loss == LossConfig(clip_low=0.0) and changed.warm_start.target_accuracy == 0
    assert changed.model.path in ("", "smollm2", "/a/model")
    assert (changed.sampling, changed.task, changed.vllm) == (config.sampling, config.task, config.vllm)


def test_a_model_that_is_not_here_is_not_fetched(capsys) -> None:
    code, topics = asked(capsys, "recipes/demo.toml", "--model.path", "somebody/something")
    assert code == 0
    assert topics["download"]["text"] == "a run would fetch model: somebody/something from the hub"
    assert topics["parity"]["level"] == "WARNING" and "not on this machine" in topics["parity"]["text"]


def test_a_missing_package_stops_the_probe_with_its_install_line(capsys, tiny, monkeypatch) -> None:
    monkeypatch.setattr("ostinato.cli.doctor_recipe.missing_packages", lambda config: [("peft", "lora")])
    code = main(["doctor", str(tiny)])
    text = capsys.readouterr().out
    assert code == 1 and "FAULT    packages  peft is not installed" in text
    assert "change: pip install 'ostinato[lora]'" in text and "not checked, because of the faults above" in text


def test_a_model_that_does_not_fit_is_not_loaded(capsys, tiny, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "this_machine", lambda: Machine(8, GIB, 50_000, 0.5, (), 8))
    code, topics = asked(capsys, tiny)
    assert code == 1 and topics["memory"]["level"] == "FAULT" and "model" not in topics


def test_memory_is_that_of_the_formulas() -> None:
    config = load_recipe(ROOT / "recipes/demo.toml", ["--loop.clock", "wall", "--loop.generators", "2"])
    facts = recipe_facts(config, LAPTOP)
    trainer, generator = facts.memory.trainer, facts.memory.generator
    need = need_here(facts, LAPTOP)
    # The start of the run, the trainer, and two engines in processes of their own.
    parameters = 4 * facts.model.sizes.parameters
    assert need.sure == parameters + 16 * facts.model.sizes.parameters + 2 * generator.weights
    assert need.whole - need.sure == trainer.activations
    node = Machine(8, GIB, GIB, 0.5, (Gpu("H100", 80 * GIB, 79 * GIB),), 8)
    engine = [
        "--generator",
        "vllm",
        "--loop.clock",
        "turns",
        "--loop.generators",
        "1",
        "--buffer.samples_per_insert",
        "2",
    ]
    asleep = need_here(recipe_facts(load_recipe(ROOT / "recipes/demo.toml", engine), node), node)
    assert asleep.whole == parameters + int(0.9 * 80 * GIB)
    awake = load_recipe(ROOT / "recipes/demo.toml", [*engine, "--vllm.sleep_level", "0"])
    assert need_here(recipe_facts(awake, node), node).whole == asleep.whole + trainer.total


@pytest.mark.parametrize(
    ("words", "threads"),
    [
        ([], 1),
        (["--threads", "3"], 3),
        (["--loop.clock", "wall", "--threads", "2"], 2 * (5 + 1)),
        (["--runtime", "ray", "--loop.clock", "wall", "--threads", "2"], 2 * (5 + 3)),
        (["--runtime", "ray", "--loop.clock", "wall", "--ray.address", "auto"], 0),
    ],
)
def test_threads_are_those_that_compute_at_once(words, threads) -> None:
    assert computing(load_recipe(ROOT / "recipes/demo.toml", words))[0] == threads


def test_more_threads_than_cores_and_a_busy_machine_are_warned_of(monkeypatch) -> None:
    (calm,) = thread_findings(LAPTOP, 8, "a run")
    assert calm.level == "OK"
    crowded, load = thread_findings(Machine(8, GIB, GIB, 12.5, (), 8), 9, "a run")
    assert (crowded.level, load.level) == ("WARNING", "WARNING") and "load 12.5 on 8 cores" in load.text
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    assert next(thread_findings(LAPTOP, 1, "a run")).level == "WARNING"


def test_a_gpu_that_others_use_is_warned_of() -> None:
    findings = list(device_findings(Machine(8, GIB, GIB, 0, (Gpu("a", 8 * GIB, 7 * GIB), Gpu("b", 8, 3)), 8)))
    assert [finding.level for finding in findings] == ["OK", "OK", "WARNING"]


def test_a_container_is_no_larger_than_its_limits(monkeypatch, tmp_path) -> None:
    files = {
        "cpu.max": "150000 100000",
        "memory.max": "1000",
        "memory.current": "900",
        "memory.stat": "inactive_file 5",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(doctor_machine, "CGROUP", tmp_path)
    machine = doctor_machine.this_machine()
    assert machine.cores <= 1.5 and (machine.memory_bytes, machine.free_bytes) == (1000, 105)
    (tmp_path / "cpu.max").write_text("max 100000")
    (tmp_path / "memory.max").write_text("max")
    assert doctor_machine.this_machine().memory_bytes > 1000


def test_a_directory_is_looked_at_and_not_made(tmp_path) -> None:
    fine = disk_finding("runs", tmp_path / "a" / "b", 1000, "--out")
    assert fine.level == "OK" and not (tmp_path / "a").exists()
    assert fine.figures["needed_bytes"] == 1000
    assert disk_finding("runs", tmp_path, 1 << 60, "--out").level == "FAULT"
    (tmp_path / "file").write_text("")
    blocked = disk_finding("runs", tmp_path / "file" / "b", 0, "--out")
    assert blocked.level == "FAULT" and "cannot be written" in blocked.text


def test_packages_are_told_apart_as_here_too_old_and_absent() -> None:
    declared = [
        "numpy>=1.26",
        'ostinato[hf]; extra == "all"',
        'rich>=999; extra == "cli"',
        'no-such-thing>=1; extra == "trl"',
        'pytest>=8; extra == "dev"',
    ]
    findings = list(package_findings(declared))
    assert [f.level for f in findings] == ["OK", "WARNING", "OK", "OK"]
    assert "rich" in findings[1].text and findings[1].change == "pip install 'ostinato[cli]' --upgrade"
    assert findings[2].figures["versions"].keys() == {"numpy", "rich"}
    assert findings[3].text == "no-such-thing not installed; where wanted: pip install 'ostinato[trl]'"


@pytest.mark.parametrize("listening", [True, False])
def test_the_address_of_a_cluster_is_knocked_at(listening) -> None:
    pytest.importorskip("ray")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listening:
            server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        words = ["--runtime", "ray", "--loop.clock", "wall", "--ray.address", address]
        config = load_recipe(ROOT / "recipes/demo.toml", words)
        found = {f.topic: f for f in recipe_findings(recipe_facts(config, LAPTOP), LAPTOP)}
    assert found["ray"].level == ("OK" if listening else "FAULT")
    assert address in found["ray"].text


def test_levels_are_finite_numbers_in_json(capsys, tiny, monkeypatch) -> None:
    decode = HFGenerator.stream

    def nothing(self, requests):
        for group in decode(self, requests):
            said = np.where(group.loss_mask, -math.inf, group.behavior_logprobs).astype(np.float32)
            object.__setattr__(group, "behavior_logprobs", said)
            yield group

    monkeypatch.setattr(HFGenerator, "stream", nothing)
    code, topics = asked(capsys, tiny)
    assert code == 1 and topics["parity"]["level"] == "FAULT"
