"""What vLLM cannot do is an error of one line; an engine that has died is one, too, and never a wait without end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch
import transformers

from ostinato.backends.hf.models import build_model, snapshot
from ostinato.config import ModelConfig, VllmConfig
from ostinato.errors import ConfigError, RunError

pytest.importorskip("ostinato.backends.vllm", exc_type=ImportError)
from tests.backends.vllm.conftest import request


@pytest.fixture
def save(tokenizer, tmp_path):
    from ostinato.backends.vllm.initial_model import saved_model

    return lambda model: saved_model(model, tokenizer, tmp_path)


def test_directory_without_a_model_is_refused(tmp_path) -> None:
    from ostinato.backends.vllm.generator import VLLMGenerator

    with pytest.raises(ConfigError, match="vLLM needs a model directory with a tokenizer, got"):
        VLLMGenerator(tmp_path)


def test_heads_that_have_no_kernel_are_refused_before_the_engine_starts(save, tokenizer) -> None:
    from ostinato.backends.vllm.generator import VLLMGenerator

    model = build_model(ModelConfig(hidden_size=64, layers=1, heads=4, kv_heads=4), tokenizer, 0)
    with pytest.raises(
        ConfigError, match=r"attention heads of size 16: vLLM on a CPU takes \[32, 64, .*choose model.h"
    ):
        VLLMGenerator(save(model)).start()


def test_context_beyond_the_model_is_refused_by_vllm_in_one_line(save, make_model) -> None:
    from ostinato.backends.vllm.generator import VLLMGenerator

    engine = VLLMGenerator(save(make_model(1)), VllmConfig(max_model_len=4096))
    with pytest.raises(ConfigError, match=r"vLLM refuses .*max_model_len \(4096\) is greater than") as refused:
        engine.start()
    assert "\n" not in str(refused.value)


def test_setting_that_vllm_refuses_is_named(save, make_model, monkeypatch) -> None:
    from ostinato.backends.vllm.generator import VLLMGenerator

    engine = VLLMGenerator(save(make_model(1)))
    arguments = engine._arguments()
    monkeypatch.setattr(engine, "_arguments", lambda: arguments | {"max_num_seqs": 0})
    with pytest.raises(ConfigError, match=r"vLLM refuses .*: max_num_batched_tokens: Input should be greater"):
        engine.start()


def test_engine_of_two_processes_is_refused_on_a_cpu_where_it_would_wait_for_ever(save, make_model) -> None:
    from ostinato.backends.vllm.generator import VLLMGenerator

    if torch.cuda.is_available():
        pytest.skip("a GPU is at hand")
    engine = VLLMGenerator(save(make_model(1)), VllmConfig(tensor_parallel_size=2))
    with pytest.raises(ConfigError, match=r"vllm\.tensor_parallel_size 2 is for GPUs"):
        engine.start()


def test_engine_that_is_killed_is_an_error_for_all_who_wait(save, make_model) -> None:
    from ostinato.backends.vllm.generator import VLLMGenerator

    model = make_model(1, endless=True)
    engine = VLLMGenerator(save(model), VllmConfig(kv_cache_gib=0.25, pause="wait"))
    engine.start()
    errors = []

    def failing(work) -> None:
        try:
            work()
        except RunError as error:
            errors.append(str(error))

    works = [
        lambda: list(engine.stream([request(0, size=8, max_new_tokens=2000)])),
        lambda: engine.load(snapshot(model), 1),  # waits for those
    ]
    threads = [threading.Thread(target=failing, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
        while engine._engine.engine.get_num_unfinished_requests() == 0:
            time.sleep(0.01)
    time.sleep(0.1)
    mine = {process.pid for process in psutil.Process().children() if "EngineCore" in process.name()}
    newest = max(mine, key=lambda pid: psutil.Process(pid).create_time())
    psutil.Process(newest).kill()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    assert len(errors) == 2 and all("engine process has died" in error for error in errors)
    with pytest.raises(RunError, match="has died"):
        list(engine.stream([request(0)]))
    engine.close()
    with pytest.raises(RunError, match="has been closed, or failed at its weights: make a new one"):
        engine.load(snapshot(model), 1)
    gc.collect()


def test_engine_when_its_owner_is_killed_ends_too(save, make_model) -> None:
    code = (
        "import sys, time\n"
        "from ostinato.backends.vllm.generator import VLLMGenerator\n"
        "from ostinato.config import VllmConfig\n"
        "if __name__ == '__main__':\n"
        "    engine = VLLMGenerator(sys.argv[1], VllmConfig(kv_cache_gib=0.25))\n"
        "    engine.start()\n"
        "    print('started', flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(save(make_model(1)))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        children = [child for child in psutil.Process(owner.pid).children() if "EngineCore" in child.name()]
        assert children
        owner.kill()
        _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


def test_saved_model_is_written_once_and_found_again(save, make_model) -> None:
    one, two = make_model(1), make_model(2)
    directory = save(one)
    written = (directory / "model.safetensors").stat().st_mtime_ns
    assert save(one) == directory and (directory / "model.safetensors").stat().st_mtime_ns == written
    assert save(two) != directory
    loaded = transformers.AutoModelForCausalLM.from_pretrained(directory)
    assert all((value == snapshot(loaded)[name]).all() for name, value in snapshot(one).items())
