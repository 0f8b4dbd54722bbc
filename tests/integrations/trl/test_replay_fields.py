"""Fields that TRL gives with some generations only."""

import pytest
import torch

pytest.importorskip("trl")

import numpy as np
from replaying import Scripted, run

from ostinato.errors import DataError
from ostinato.integrations.trl import ReplayConfig
from ostinato.integrations.trl.fields import packed_fields, unpacked_fields
from ostinato.rollouts import Rollouts, concatenate


class Sometimes(Scripted):
    """A rollout function that tells tokens of tools and log-probs with the first generation and every second after."""

    def __call__(self, prompts, of):
        told = super().__call__(prompts, of)
        return (
            told
            if self.calls % 2
            else {name: told[name] for name in ("prompt_ids", "completion_ids")} | {"logprobs": None}
        )


def test_mask_of_tools_and_engine_logprobs_when_absent_stand_for_no_tools_and_the_model(
    model_directory, tmp_path
) -> None:
    told = Sometimes(lambda call, row: [9 + call, 20 + row, 7], lambda call, row, ids: {"env_mask": [1, 0, 1]})
    done = run(model_directory, tmp_path, ReplayConfig(capacity=64, uses=3), rollouts=told, max_steps=12)
    seen = set()
    for batch in done.batches:
        for ids, tools, engine, old in zip(
            batch["completion_ids"],
            batch.get("tool_mask", torch.ones(4, 3)).tolist(),
            batch.get("sampling_per_token_logps", batch["old_per_token_logps"]),
            batch["old_per_token_logps"],
            strict=True,
        ):
            by_function = (int(ids[0]) - 9) % 2 == 0
            seen.add((by_function, "tool_mask" in batch))
            assert tools == ([1, 0, 1] if by_function else [1, 1, 1])
            assert torch.equal(engine, torch.full((3,), -1.0) if by_function else old)
    assert len(done.generated) == 4 and {(True, True), (False, True)} <= seen
    assert np.isfinite(done.losses).all()


def test_any_other_field_that_only_some_rollouts_have_is_refused() -> None:
    def rollouts(**more):
        ids = torch.tensor([[5, 6]])
        batch = {"prompt_ids": torch.tensor([[3]]), "completion_ids": ids, "old_per_token_logps": ids * -0.1, **more}
        extras = packed_fields(batch, [1], [2], sequence_ratio=False)
        return Rollouts.from_completions([[3]], [[5, 6]], [[-0.5, -0.6]], group_id=0, extras=extras)

    one, other = rollouts(), rollouts(ref_per_token_logps=torch.tensor([[-1.0, -2.0]]))
    assert unpacked_fields(other, (1, 2))["ref_per_token_logps"].tolist() == [[-1.0, -2.0]]
    with pytest.raises(DataError, match="only some rollouts of the batch have the field 'completion/ref_per_token"):
        unpacked_fields(concatenate([one, other]), (1, 2))
