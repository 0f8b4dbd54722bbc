"""Every sampler, retention and limiter by name, as a buffer of a few rollouts would use them."""

from ostinato.buffer import (
    BoundedQueue,
    KeepBest,
    MaxStaleness,
    MaxUses,
    MinSize,
    NewestPerPrompt,
    PositiveBias,
    Reservoir,
    SamplesPerInsert,
    SmartEviction,
)
from ostinato.buffer.sampling import (
    Buckets,
    Epoch,
    Exponential,
    FreshAnchored,
    Groups,
    Mixture,
    NeverUsedFirst,
    Newest,
    Oldest,
    Prioritized,
    Quotas,
    Uniform,
)
from ostinato.buffer.schedule import Linear

SAMPLERS = {
    "uniform": (Uniform, 1.0),
    "uniform, different": (lambda: Uniform(False), 1.0),
    "newest": (Newest, 1.0),
    "oldest": (Oldest, 1.0),
    "epoch": (Epoch, 1.0),
    "never used first": (NeverUsedFirst, 1.0),
    "groups": (Groups, 1.0),
    "buckets": (lambda: Buckets(group_size=3), 1.0),
    "quotas": (lambda: Quotas({"math": 0.75, "code": 0.25}), 1.0),
    "quotas of epochs": (lambda: Quotas({"math": 0.5, "code": 0.5}, Epoch()), 1.0),
    "prioritized": (lambda: Prioritized(beta=0.4), None),
    "prioritized, different": (lambda: Prioritized(replacement=False, new_priority=0.25), 0.25),
    "freshness": (lambda: Prioritized("reward", eps=1e-6, beta=0.4, normalize="batch", decay=Exponential(3.0)), None),
    "another decay": (lambda: Prioritized(stratified=False, decay=lambda age: 1 / (1 + age)), None),
    "mixture": (lambda: Mixture((Prioritized(), Uniform()), Linear(0, 0.5, 20), beta=1.0), None),
    "fresh anchored": (lambda: FreshAnchored(Prioritized("advantage", eps=1e-6, replacement=False), 0.5), None),
}
"""By name: a sampler, and what a rollout without a priority gets (None: the greatest held)."""

RETENTIONS = {
    "oldest leave": lambda: [],
    "positive bias": lambda: [PositiveBias(0.5, 0.5)],
    "best stay": lambda: [KeepBest()],
    "reservoir": lambda: [Reservoir(3)],
    "smart": lambda: [SmartEviction(2.0)],
    "staleness": lambda: [MaxStaleness(2)],
    "uses": lambda: [MaxUses(2)],
    "newest per prompt": lambda: [NewestPerPrompt(2)],
    "several": lambda: [MaxUses(3), MaxStaleness(4), NewestPerPrompt(5), PositiveBias(0.3, 0.5)],
}

LIMITERS = {
    "nobody waits": lambda: MinSize(1),
    "min size": lambda: MinSize(4),
    "queue": lambda: BoundedQueue(batch_size=2, group_size=3),
    "samples per insert": lambda: SamplesPerInsert(2.0, batch_size=4, group_size=3),
}
