"""Real GRPO trainers of TRL on a tiny model, with generations written by the test where it needs them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import torch
import trl
from transformers.trainer_callback import PrinterCallback

from ostinato.backends.hf.models import build_model
from ostinato.backends.hf.tokenizer import character_tokenizer
from ostinato.config import ModelConfig
from ostinato.integrations.trl import ReplayConfig, ReplayGRPOTrainer

torch.set_num_threads(1)

PROMPTS = [{"prompt": text} for text in ("1+1=", "22+5=", "3=", "14+14=", "5+5=", "6=", "7+71=", "8+8=")]
EOS = 1


def save_tiny_model(directory: Path) -> str:
    tokenizer = character_tokenizer()
    model = build_model(ModelConfig(hidden_size=16, layers=2, heads=2, kv_heads=1, intermediate_size=32), tokenizer, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5.0)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


class Rewards:
    """A different reward for each completion scored, and what was scored: `seen` holds (prompt, completion ids)."""

    __name__ = "rewards"

    def __init__(self, value: Callable[[int, list[int]], float | None] | None = None) -> None:
        self.seen: list[tuple[str, tuple[int, ...]]] = []
        self.value = value or (lambda number, ids: float((number * 7) % 16))

    def __call__(self, prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        first = len(self.seen)
        self.seen += [(prompt, tuple(ids)) for prompt, ids in zip(prompts, completion_ids, strict=True)]
        return [self.value(first + i, ids) for i, ids in enumerate(completion_ids)]


def settings(output: Path | str, **given: Any) -> trl.GRPOConfig:
    """2 micro-batches of 4 rollouts a step, groups of 4."""
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 4, "max_steps": 6}
    return trl.GRPOConfig(
        output_dir=str(output),
        **{
            "max_completion_length": 6,
            "report_to": "none",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "logging_steps": 1,
            "save_strategy": "no",
            "learning_rate": 5e-3,
            "disable_tqdm": True,
            **sizes,
            **given,
        },
    )


class Watched:
    """Counts generations, keeps the micro-batches that the loss is given, and the losses. Stands before a trainer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.generated: list[dict[str, Any]] = []
        self.batches: list[dict[str, Any]] = []
        self.drawn: list[Any] = []
        self.losses: list[float] = []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self.generated.append(batch)
        return batch

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        loss = super()._compute_loss(model, inputs)
        if self.model.training:
            self.batches.append(inputs)
            self.losses.append(loss.item())
            if getattr(self, "_window", None) is not None and self._part == 0:
                self.drawn.append(self._window.draw)
        return loss


class Plain(Watched, trl.GRPOTrainer):
    pass


class Replaying(Watched, ReplayGRPOTrainer):
    pass


def trainer(
    directory: str, output: Path, replay: ReplayConfig | None, *, kind: Any = None, rewards: Any = None, **given: Any
) -> Any:
    """A trainer on the tiny model: TRL's own without `replay`. `prompts`, `rollouts`: data set, `rollout_func`."""
    prompts, rollouts = given.pop("prompts", PROMPTS), given.pop("rollouts", None)
    arguments = {
        "model": directory,
        "reward_funcs": Rewards() if rewards is None else rewards,
        "train_dataset": datasets.Dataset.from_list(prompts),
        "rollout_func": rollouts,
    }
    if replay is None:
        made = (kind or Plain)(args=settings(output, **given), **arguments)
    else:
        made = (kind or Replaying)(args=settings(output, **given), replay=replay, **arguments)
    made.remove_callback(PrinterCallback)
    return made


def run(*args: Any, **given: Any) -> Any:
    """A trainer that has trained; made just before, for making it sets the seed."""
    made = trainer(*args, **given)
    made.train()
    return made


def weights(of: Any) -> torch.Tensor:
    """All parameters one after the other."""
    return torch.cat([parameter.detach().flatten() for parameter in of.model.parameters()])


def log_of(of: Any, name: str) -> list[float]:
    """A metric as logged, step by step."""
    return [entry[name] for entry in of.state.log_history if name in entry]


class Scripted:
    """A `rollout_func` that gives completions made from a rule: call and row number to token ids, and more fields.

    `fields(call, row, ids)`: what TRL gets besides of that row, by name: `env_mask`, any other; `logprobs` too.
    """

    def __init__(
        self,
        completion: Callable[[int, int], list[int]],
        fields: Callable[[int, int, list[int]], dict[str, Any]] | None = None,
    ) -> None:
        self.completion, self.fields, self.calls = completion, fields or (lambda call, row, ids: {}), 0

    def __call__(self, prompts: list[str], of: Any) -> dict[str, Any]:
        call, self.calls = self.calls, self.calls + 1
        prompt_ids = of.processing_class(prompts, add_special_tokens=False)["input_ids"]
        completions = [self.completion(call, row) for row in range(len(prompts))]
        rows = [self.fields(call, row, ids) for row, ids in enumerate(completions)]
        logprobs = [row.pop("logprobs", [-1.0] * len(ids)) for row, ids in zip(rows, completions, strict=True)]
        more = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
        return {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": logprobs, **more}
