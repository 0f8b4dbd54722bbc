"""Settings of vLLM that contradict others are refused, with the setting to change."""

from __future__ import annotations

import pytest

from ostinato.config import VllmConfig
from ostinato.errors import ConfigError
from ostinato.recipe import config_from_dict

WALL = {"clock": "wall", "train_steps": 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"generator": "vllm"}, "generator = vllm needs loop.clock = wall or turns"),
        (
            {"generator": "vllm", "model": {"backend": "toy"}, "task": {"name": "toy"}, "loop": WALL},
            "generator = vllm needs model.backend = hf",
        ),
        (
            {"generator": "vllm", "sampling": {"temperature": 0.005}, "loop": WALL},
            r"generator = vllm draws at temperatures from 0\.01, got 0\.005",
        ),
        (
            {"generator": "vllm", "lora": {"rank": 4, "sync": "adapter"}, "loop": WALL},
            r"lora.sync = adapter is for generator = hf.*set lora.sync = merged",
        ),
        (
            {
                "runtime": "ray",
                "generator": "vllm",
                "vllm": {"tensor_parallel_size": 2},
                "ray": {"gpus_per_generator": 1},
                "loop": WALL,
            },
            r"ray.gpus_per_generator 1.0 is fewer than vllm.tensor_parallel_size 2",
        ),
        (
            {"generator": "vllm", "vllm": {"max_model_len": 64}, "sampling": {"max_new_tokens": 64}, "loop": WALL},
            "vllm.max_model_len 64 leaves no prompt beside sampling.max_new_tokens 64",
        ),
        ({"loop": {"requests_per_generator": 2}}, "loop.requests_per_generator 2 needs loop.clock = wall"),
        (
            {"loop": {**WALL, "requests_per_generator": 2}},
            "loop.requests_per_generator 2 needs generator = vllm: hf does one request after the other",
        ),
        ({"vllm": {"pause": "stop"}}, "vllm.pause"),
        ({"vllm": {"sleep_level": 3}}, "vllm.sleep_level"),
        ({"generator": "sglang"}, "generator"),
    ],
)
def test_settings_when_they_cannot_work_are_refused(settings, message) -> None:
    loop = {"train_steps": 1, **settings.get("loop", {})}
    with pytest.raises(ConfigError, match=message):
        config_from_dict({**settings, "loop": loop})


def test_settings_when_given_arrive() -> None:
    config = config_from_dict(
        {
            "generator": "vllm",
            "vllm": {"dtype": "bfloat16", "pause": "keep"},
            "loop": {**WALL, "requests_per_generator": 4},
        }
    )
    assert config.vllm == VllmConfig(dtype="bfloat16", pause="keep")
    assert config.loop.requests_per_generator == 4
