"""What one of two processes does in `test_replay_processes`: three runs, told as JSON.

Arguments: directory of the model, of the runs, of the answers.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from replaying import Rewards, Scripted, log_of, trainer, weights

from ostinato.integrations.trl import ReplayConfig

LENGTHS = (1, 6, 3, 5)
SHAPE = {"num_generations": 16, "max_steps": 6, "ddp_backend": "gloo", "save_strategy": "steps", "save_steps": 2}


def by_content(rank: int) -> Any:
    return Rewards(lambda number, ids: float((sum(ids) + rank) % 16))


def completion(rank: int) -> Any:
    return Scripted(lambda call, row: [10 + call + 8 * rank] * LENGTHS[(row + rank) % 4])


def told(of: Any) -> dict[str, Any]:
    buffer = of.replay_store.buffer
    return {
        "capacity": buffer.capacity,
        "generations": len(of.generated),
        "losses": of.losses,
        "ids": [draw.rollout_ids.tolist() for draw in of.drawn],
        "staleness": [draw.staleness.tolist() for draw in of.drawn],
        "items": [int(batch["num_items_in_batch"]) for batch in of.batches],
        "tokens": [int(batch["completion_mask"].sum()) for batch in of.batches],
        "weights": float(weights(of).double().square().sum()),
        **{name: buffer.columns[name].tolist() for name in ("group_id", "group_reward_mean", "reward", "rollout_id")},
        "borrowed": log_of(of, "replay/borrowed_batches"),
        "size": log_of(of, "replay/size"),
    }


def main(model: str, output: Path, answers: Path) -> None:
    made = trainer(model, output / "whole", ReplayConfig(capacity=32, uses=3), **SHAPE)
    rank = made.accelerator.process_index
    made.reward_funcs[0], made.rollout_func = by_content(rank), completion(rank)
    made.train()
    result = {"whole": told(made)}

    resumed = trainer(model, output / "resumed", ReplayConfig(capacity=32, uses=3), **SHAPE)
    resumed.reward_funcs[0], resumed.rollout_func = by_content(rank), completion(rank)
    resumed.rollout_func.calls = 2
    resumed.train(resume_from_checkpoint=str(output / "whole" / "checkpoint-4"))
    result["resumed"] = told(resumed)

    lame = trainer(model, output / "lame", ReplayConfig(capacity=32, uses=3), **SHAPE | {"save_strategy": "no"})
    generate = lame._generate_and_score_completions

    def spoiled(inputs: Any) -> Any:
        batch = generate(inputs)
        if rank == 1:  # half of what this process generates cannot be trained on
            batch["old_per_token_logps"][::2] = float("nan")
        return batch

    lame._generate_and_score_completions = spoiled
    lame.train()
    result["lame"] = told(lame)
    (answers / f"{rank}.json").write_text(json.dumps(result))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
