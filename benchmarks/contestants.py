"""One training run of each side, on the same policy and prompts, with a time stamp after every optimizer step."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
import trl

from ostinato.config import RunConfig
from ostinato.loop import Session
from ostinato.protocols import Backend, Task

PHASES = ("generate", "score", "train")


@dataclass(slots=True)
class Trace:
    """What a run did, one entry an optimizer step.

    When the step ended (seconds of real time and of CPU time of the process, any origin), mean reward, completion
    tokens trained on, and (ostinato) seconds spent so far in each of `PHASES`.
    """

    ended_s: list[float] = field(default_factory=list)
    ended_cpu_s: list[float] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    busy_s: list[tuple[float, ...]] = field(default_factory=list)

    def step_ended(self) -> None:
        """Take the time."""
        self.ended_s.append(time.perf_counter())
        self.ended_cpu_s.append(time.process_time())


def run_ostinato(config: RunConfig, backend: Backend) -> Trace:
    """`config.loop.train_steps` optimizer steps from the backend's initial policy, in a throw-away run directory."""
    trace = Trace()

    def observe(record: Mapping[str, Any]) -> None:
        trace.step_ended()
        trace.reward.append(record["reward"])
        trace.tokens.append(int(record["tokens"]))
        trace.busy_s.append(tuple(record[f"busy_{phase}_s"] for phase in PHASES))

    torch.set_num_threads(config.threads)
    with tempfile.TemporaryDirectory() as directory:
        Session(config, backend, Path(directory) / "run", observer=observe).run()
    return trace


def run_trl(
    config: RunConfig,
    backend: Backend,
    model: Path,
    settings: Mapping[str, Any],
    trainer_of: Callable[..., trl.GRPOTrainer] = trl.GRPOTrainer,
    callbacks: Sequence[transformers.TrainerCallback] = (),
) -> Trace:
    """As many optimizer steps of a trainer of TRL, from the policy saved in `model`.

    `settings`: besides the common ones. `reward` and `tokens`: an entry a generation, not a step.
    """
    trace = Trace()
    tasks = [backend.tasks.train(i) for i in range(config.loop.train_steps * prompts_per_step(config))]
    with tempfile.TemporaryDirectory() as directory:
        trainer = trainer_of(
            model=str(model),
            reward_funcs=_reward(backend, tasks, trace),
            args=_trl_settings(config, directory, settings),
            train_dataset=datasets.Dataset.from_list([{"prompt": t.prompt, "task": i} for i, t in enumerate(tasks)]),
            callbacks=[_StepEnds(trace), *callbacks],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        torch.set_num_threads(config.threads)
        trainer.train()
    return trace


def prompts_per_step(config: RunConfig) -> int:
    """Prompts behind the rollouts of one optimizer step."""
    return config.loop.batch_size // config.loop.group_size


def _reward(backend: Backend, tasks: Sequence[Task], trace: Trace) -> Any:
    def verifier(completions: list[str], completion_ids: list[list[int]], task: list[int], **_: Any) -> list[float]:
        scored = zip(task, completions, strict=True)
        rewards = [backend.tasks.answer_score(tasks[index], text) for index, text in scored]
        trace.reward.append(sum(rewards) / len(rewards))
        trace.tokens.append(sum(map(len, completion_ids)))
        return rewards

    return verifier


def _trl_settings(config: RunConfig, directory: str, changes: Mapping[str, Any]) -> trl.GRPOConfig:
    loop, optimizer, sampling = config.loop, config.optimizer, config.sampling
    return trl.GRPOConfig(
        output_dir=directory,
        max_steps=loop.train_steps,
        per_device_train_batch_size=loop.batch_size,
        gradient_accumulation_steps=1,
        num_generations=loop.group_size,
        shuffle_dataset=False,
        max_completion_length=sampling.max_new_tokens,
        temperature=sampling.temperature,
        loss_type="dapo",  # the mean over all tokens of the batch, as in `ostinato.losses.grpo`
        beta=0.0,
        learning_rate=optimizer.learning_rate,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        adam_beta1=optimizer.beta1,
        adam_beta2=optimizer.beta2,
        adam_epsilon=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.grad_clip,
        seed=config.seed,
        # What costs time and is not asked for: recomputation, half precision, logs, checkpoints, checks, pinning.
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **changes,
    )


class _StepEnds(transformers.TrainerCallback):
    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._trace.step_ended()
