"""Which groups of a worker have arrived: what a resumed asynchronous run need not ask for again."""

import pytest

pytest.importorskip("trl")

from ostinato.integrations.trl.async_queue import ArrivedGroups


@pytest.mark.parametrize(
    ("samples", "first_missing", "largest"),
    [
        ([], 0, -1),
        ([0, 0, 0, 0], 0, 0),  # there may be more of it
        ([0, 0, 0, 0, 1], 1, 1),
        ([1, 1, 1, 1, 2, 2, 2, 2], 0, 2),  # 0 was tried again
        ([1, 1, 1, 1, 0, 0, 0, 0, 2], 2, 2),
        ([0, 0, 0, 1, 1, 1], 1, 1),  # a worker that dropped one of 0
        ([0, 0, 0, 0, 0, 1, 1, 1, 1], 1, 1),  # or made one more, of a conversation that forked
    ],
)
def test_groups_when_their_samples_arrive_are_there_once_they_are_whole(samples, first_missing, largest) -> None:
    for batch in (1, 3, len(samples) or 1):  # however the samples come in
        groups = ArrivedGroups()
        for first in range(0, len(samples), batch):
            groups.note(samples[first : first + batch])
        assert (groups.first_missing, groups.largest) == (first_missing, largest)
