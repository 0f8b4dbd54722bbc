"""Replay in TRL, on a CPU: the same run with `GRPOTrainer` and with `ReplayGRPOTrainer`. A notebook in cells (# %%).

    pip install 'ostinato[hf,trl]'
    python recipes/trl/quickstart.py

A Qwen3 of 0.1 M parameters sorts six digits. It prints how much each run generated, and what it learned.
"""

# %% A policy that is right now and then: built and fine-tuned on a few answers, kept in ~/.cache/ostinato
import tempfile
import time
from pathlib import Path
from typing import Any

import transformers
from datasets import Dataset
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from ostinato.cli.backends import open_backend
from ostinato.evaluation import evaluate
from ostinato.integrations.trl import ReplayConfig, ReplayGRPOTrainer
from ostinato.protocols import Generator, Sampling
from ostinato.recipe import config_from_dict

STEPS, BATCH, GROUP, USES = 45, 48, 8, 3

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
backend = open_backend(
    config_from_dict(
        {
            "threads": 1,
            "model": {"hidden_size": 64, "layers": 2, "intermediate_size": 128},
            "task": {"name": "sort", "options": {"digits": 6}, "test_prompts": 256},
            "sampling": {"max_new_tokens": 7},
            "loop": {"train_steps": 1},
        }
    )
)
print(f"policy: {backend.describe()}")

# %% Prompts and a reward, as TRL wants them
tasks = [backend.tasks.train(i) for i in range(STEPS * BATCH // GROUP)]
prompts = Dataset.from_list([{"prompt": task.prompt, "answer": task.answer} for task in tasks])


class Reward:
    """1 for the digits in order and nothing else. Counts, too: TRL scores what it generates, once."""

    __name__ = "sorted_right"

    def __init__(self) -> None:
        self.generated = 0

    def __call__(self, completions: list[str], answer: list[str], **_: Any) -> list[float]:
        self.generated += len(completions)
        return [float(text == right) for text, right in zip(completions, answer, strict=True)]


# %% The two runs. The second differs in two lines: the class, and `replay=`
def train(name: str, folder: Path, replay: ReplayConfig | None) -> None:
    """Train from the same policy on the same prompts, and print what it took and gave."""
    reward = Reward()
    args = GRPOConfig(
        output_dir=str(folder / name),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        num_generations=GROUP,
        max_completion_length=7,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        beta=0.0,
        cache_implementation="static",  # the fastest of TRL's ways to generate on a CPU
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    given = {"model": str(folder / "model"), "reward_funcs": reward, "args": args, "train_dataset": prompts}
    trainer = GRPOTrainer(**given) if replay is None else ReplayGRPOTrainer(**given, replay=replay)
    trainer.remove_callback(PrinterCallback)
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    engine = backend.generator()
    engine.load(dict(trainer.model.named_parameters()), STEPS)
    took = f"{STEPS} steps  {reward.generated:>5} completions generated  {seconds:5.1f} s"
    print(f"{name:<20} {took}  held-out accuracy {accuracy(engine):.3f}", flush=True)


def accuracy(engine: Generator) -> float:
    """Sampled, on 256 prompts that are not trained on, 4 completions each."""
    sampling, tasks = Sampling(max_new_tokens=7), backend.tasks.test
    return evaluate(engine, backend.scorer, tasks, sampling=sampling, samples=4, seed=(0,)).accuracy


# %% Run both
def main() -> None:
    """Save the policy, train twice."""
    with tempfile.TemporaryDirectory() as directory:
        backend.trainer().save(Path(directory))
        print(f"{'before':<20} held-out accuracy {accuracy(backend.generator()):.3f}")
        train("GRPOTrainer", Path(directory), None)
        train("ReplayGRPOTrainer", Path(directory), ReplayConfig(capacity=480, uses=USES))


if __name__ == "__main__":
    main()
