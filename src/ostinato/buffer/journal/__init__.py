"""An optional write-ahead log: what was acknowledged survives the process, or the loss of power.

`records` frames one operation, `segments` holds records one after the other, `log` keeps snapshots and segments in a
directory, which `lock` guards; `effects` sees what an operation did to a buffer and does it again, `recorder` keeps a
buffer and a log in step, `journaled` is the face.
"""

from ostinato.buffer.journal.journaled import JournaledBuffer, read_journal
from ostinato.buffer.journal.recorder import Recovery

__all__ = ["JournaledBuffer", "Recovery", "read_journal"]
