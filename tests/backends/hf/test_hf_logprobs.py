"""What a trainer recomputes of rollouts is what its model says, in the order of their tokens."""

import numpy as np
import pytest
import torch

from ostinato.backends.hf.trainer import HFTrainer
from ostinato.config import LossConfig, OptimizerConfig
from ostinato.protocols import Recomputer
from ostinato.rollouts import Rollouts


def rollouts() -> Rollouts:
    rng = np.random.default_rng(3)
    prompts = [rng.integers(2, 20, size=n).tolist() for n in (3, 1, 4, 2, 3)]
    completions = [rng.integers(2, 20, size=n).tolist() for n in (2, 7, 1, 5, 3)]
    mask = [[True] * 2, [True, False, True, True, False, True, True], [False], [True] * 5, [True] * 3]
    found = Rollouts.from_completions(
        prompts, completions, [[-1.0] * len(c) for c in completions], temperature=[1.0, 0.5, 1.0, 2.0, 0.7]
    )
    trained = found.loss_mask.copy()
    trained[found.loss_mask] = np.concatenate(mask)
    return found.replace(loss_mask=trained)


def expected(model, group: Rollouts) -> np.ndarray:
    said = []
    for i in range(len(group)):
        own = slice(group.offsets[i], group.offsets[i + 1])
        tokens = torch.from_numpy(group.tokens[own]).long()
        with torch.no_grad():
            logits = model(input_ids=tokens[None]).logits[0, :-1] / float(group.temperature[i])
        logprobs = logits.log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
        said.append(logprobs[torch.from_numpy(group.loss_mask[own][1:])].numpy())
    return np.concatenate(said)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("tokens", [10, 4096])
def test_logprobs_are_the_models_in_the_order_of_tokens(qwen, tokenizer, make_draw, packing, tokens) -> None:
    settings = OptimizerConfig(packing=packing, tokens_per_microbatch=tokens)
    trainer = HFTrainer(qwen, tokenizer, loss=LossConfig(), optimizer=settings)
    assert isinstance(trainer, Recomputer)
    group, before = rollouts(), trainer.weights()
    found = trainer.logprobs(make_draw(group))
    assert found.dtype == np.float32 and found.shape == (int(group.loss_mask.sum()),) == (15,)
    assert np.abs(found - expected(qwen, group)).max() < 1e-5
    assert found.std() > 0.5
    assert all(torch.equal(value, before[name]) for name, value in trainer.weights().items())
