"""A buffer in another process does what it does in this one."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
import ray

from ostinato.cluster import connect
from ostinato.cluster.actors import GROUP, StoreActor, launched
from ostinato.cluster.holders import DrawElsewhere
from ostinato.cluster.store import RemoteStore
from ostinato.errors import CheckpointError, ConfigError, DataError, StateLostError
from ostinato.loop.stores import build_store
from ostinato.recipe import config_from_dict
from ostinato.rollouts import Rollouts

SHARDED = {
    "loop": {"trainers": 2, "shards": True, "batch_size": 8},
    "buffer": {"capacity": 40, "sampler": "never_used_first"},
    "ray": {"store": "shards"},
}


def rollouts_of(first: int, n: int) -> Rollouts:
    lengths = [1 + (first + i) % 5 for i in range(n)]
    return Rollouts.from_completions(
        [[7, first + i] for i in range(n)],
        [[first + i] * length for i, length in enumerate(lengths)],
        [[-0.5] * length for length in lengths],
        reward=np.arange(first, first + n, dtype=np.float64),
        group_id=0,
    )


@pytest.fixture
def remote(cluster: None, toy: Any) -> Any:
    actors: list[Any] = []

    def build(config: Any, holders: int) -> RemoteStore:
        new = [launched(StoreActor, num_cpus=0) for _ in range(holders)]
        actors.extend(new)
        return RemoteStore(new, config)

    yield build
    for actor in actors:
        ray.kill(actor)


def test_shards_elsewhere_when_used_do_what_a_sharded_buffer_does(toy, remote) -> None:
    config = toy(**SHARDED)
    here, there = build_store(config.buffer, config.loop), remote(config, 2)
    for first in (0, 15, 30):
        assert there.can_add(15)
        np.testing.assert_array_equal(
            there.add(rollouts_of(first, 15), train_step=0), here.add(rollouts_of(first, 15), train_step=0)
        )
    assert len(there) == len(here) == 40
    assert there.metrics() == here.metrics()
    np.testing.assert_array_equal(np.sort(there.departures()), np.sort(here.departures()))
    ids = np.array([41, 30, 12, 999])
    assert there.remove(ids) == here.remove(ids) == 3
    mine, theirs = here.state_arrays(), there.state_arrays()
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)

    again = remote(config, 2)
    again.load_state_arrays(theirs)
    draw = again.sample(8, train_step=3, rng=np.random.default_rng(0))
    assert isinstance(draw, DrawElsewhere)
    assert (draw.rollout_ids % 2).tolist() == [0] * 4 + [1] * 4  # half from each
    payload = [ray.get(ref) for ref in draw.payload]
    rollouts = draw.rollouts
    np.testing.assert_array_equal(rollouts.reward, np.concatenate([part.rollouts.reward for part in payload]))
    np.testing.assert_array_equal(rollouts.lengths, np.concatenate([part.rollouts.lengths for part in payload]))
    np.testing.assert_array_equal(draw.residence, [3] * 8)
    for part in payload:  # the tokens that belong to these rewards
        for i, reward in enumerate(part.rollouts.reward):
            assert set(part.rollouts.completion(i).tolist()) == {int(reward)}
    assert rollouts.tokens.strides == (0,)  # no memory for what is not here
    with pytest.raises(CheckpointError, match="buffer state of 2 shards, expected 0"):
        remote(toy(), 1).load_state_arrays(theirs)


def test_store_elsewhere_when_it_refuses_or_dies_says_which(toy, remote) -> None:
    store = remote(toy(ray={"store": "actor"}), 1)
    with pytest.raises(DataError):
        store.sample(8, train_step=0, rng=np.random.default_rng(0))
    os.kill(ray.get(store._holders[0].process_id.options(concurrency_group=GROUP).remote()), signal.SIGKILL)
    with pytest.raises(StateLostError, match="the buffer's process is lost"):
        len(store)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"loop": {"clock": "virtual"}}, "runtime = ray works in real time: set loop.clock = wall, got virtual"),
        ({"ray": {"store": "shards"}}, "ray.store = shards needs loop.shards = true"),
        (SHARDED | {"ray": {"store": "actor"}}, "ray.store = actor is one buffer"),
        ({"ray": {"store": "actor"}, "buffer": {"journal": True}}, "set ray.store = driver"),
        ({"buffer": {"kind": "queue", "journal": True}}, "buffer.journal needs buffer.kind = replay"),
        ({"ray": {"address": "ray://head:10001"}}, "ray.address must be auto, the host:port"),
        ({"ray": {"address": "head:65536"}}, "ray.address must be auto, the host:port .* got 'head:65536'"),
        (
            {"ray": {"address": "auto", "object_store_bytes": 1 << 28}},
            "ray.object_store_bytes 268435456 is for a Ray of this run's own",
        ),
        (
            {"ray": {"gpus_per_trainer": 1.5}},
            "ray.gpus_per_trainer must be a whole number or a part of one GPU, got 1.5",
        ),
        ({"ray": {"cpus_per_generator": 1e-5}}, "ray.cpus_per_generator must be 0 or at least 0.0001, got 1e-05"),
        ({"ray": {"train_timeout_s": 1e9}}, "ray.train_timeout_s must be between 1 and"),
        ({"ray": {"store": "moon"}}, "ray.store must be one of driver, actor, shards"),
    ],
)
def test_recipe_when_it_contradicts_itself_is_refused(toy, sections, message) -> None:
    with pytest.raises(ConfigError, match=message):
        toy(**sections)


def test_cluster_when_it_is_too_small_or_not_there_is_refused_before_anything_starts(toy, on_ray, monkeypatch) -> None:
    with pytest.raises(ConfigError, match=r"2 generators with 1 GPUs and 1 trainers with 0 need 2 GPUs, .* has 0"):
        on_ray(toy(ray={"gpus_per_generator": 1}))
    with pytest.raises(ConfigError, match=r"need 201 CPUs, the cluster has .*: lower loop.generators"):
        on_ray(toy(loop={"generators": 200}))
    with pytest.raises(ConfigError, match=r"loop.trainers = 2: trainers of model.backend = toy work alone"):
        on_ray(toy(loop={"trainers": 2}))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match=r"ray.address '127.0.0.1:1': nobody answers"):
        connect(toy(ray={"address": "127.0.0.1:1", "object_store_bytes": "none"}))


def test_ray_when_it_refuses_to_start_is_told_with_its_setting(toy, monkeypatch) -> None:
    def refuse(**settings: Any) -> None:
        raise ValueError("After taking into account object store memory,\nthe amount is less than -3862%")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(
        ConfigError, match=r"Ray did not start with ray.object_store_bytes = 134217728: After .* memory, the"
    ):
        connect(toy())


def test_settings_when_read_from_a_dictionary_have_the_defaults_of_the_help() -> None:
    config = config_from_dict({"loop": {"train_steps": 1}})
    assert (config.runtime, config.ray.store, config.ray.max_restarts) == ("local", "driver", 3)
