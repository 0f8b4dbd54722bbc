"""With max_staleness 0, one generator and a consume-once queue the loop is the textbook one, bit for bit."""

import numpy as np
import pytest

from ostinato.advantages import score_group
from ostinato.backends.toy import ToyBackend
from ostinato.loop.loop import GROUP_STREAM
from ostinato.protocols import Draw, GroupRequest, Sampling
from ostinato.rollouts import concatenate
from ostinato.telemetry import read_arrays, read_jsonl


def synchronous_table(config, steps: int) -> np.ndarray:
    """Generate a batch, learn from it once, publish: the reference, without clock, buffer or processes."""
    backend = ToyBackend(config)
    trainer, engine, group = backend.trainer(), backend.generator(), 0
    b, g = config.loop.batch_size, config.loop.group_size
    for step in range(steps):
        engine.load(trainer.weights(), step)
        batch = []
        for _ in range(b // g):
            task = backend.tasks.train(group)
            seed = (config.seed, GROUP_STREAM, group)
            request = GroupRequest(task, group, g, seed, Sampling(max_new_tokens=32), birth_step=step)
            (rollouts,) = engine.stream([request])
            batch.append(score_group(rollouts, backend.scorer.score(rollouts, [task] * g)))
            group += 1
        rollouts = concatenate(batch)
        if config.buffer.order == "newest":
            rollouts = rollouts.select(np.arange(b)[::-1])
        zeros = np.zeros(b, np.int64)
        trainer.step(Draw(rollouts, zeros, np.ones(b), zeros, zeros, zeros, zeros - 1))
    return trainer.table


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("loss", ["grpo", "asymre"])
def test_loop_when_synchronous_equals_the_reference_bit_for_bit(toy, run_toy, order, loss) -> None:
    config = toy(
        loop={"generators": 1, "max_staleness": 0, "train_steps": 40},
        buffer={"kind": "queue", "capacity": 120, "order": order},
        loss={"name": loss},
    )
    directory = run_toy(config)
    table = read_arrays(directory / "checkpoints" / "step-00000040" / "trainer" / "table.npz")["table"]
    assert np.array_equal(table, synchronous_table(config, 40))
    assert np.abs(table).max() > 0.5
    steps = read_jsonl(directory / "metrics.jsonl")
    assert {record["staleness"] for record in steps} == {0.0}
    assert [record["groups"] for record in steps] == [5 * (i + 1) for i in range(40)]


@pytest.mark.parametrize(("bound", "publish_every", "generators"), [(0, 1, 3), (1, 1, 5), (2, 3, 2), (4, 2, 8)])
@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_staleness_when_bounded_is_never_exceeded_and_the_run_ends(
    toy, run_toy, bound, publish_every, generators, order
) -> None:
    config = toy(
        loop={"generators": generators, "max_staleness": bound, "publish_every": publish_every, "train_steps": 60},
        buffer={"kind": "queue", "capacity": 240, "order": order},
    )
    directory = run_toy(config)
    records = read_jsonl(directory / "metrics.jsonl")
    assert len(records) == 60
    assert max(record["staleness"] for record in records) <= bound
