"""The buffer between processes, threads and asyncio tasks of one machine."""

from ostinato.sharing.asynchronous import AsyncBuffer
from ostinato.sharing.directory import remove_abandoned, shared_directory
from ostinato.sharing.failures import BufferClosed, CircularWait, EndOfStream, ProducerDied, WaitTimeout
from ostinato.sharing.locked import LockedBuffer
from ostinato.sharing.producer import SharedProducer
from ostinato.sharing.reader import SharedReader
from ostinato.sharing.watch import ProducerStatus

__all__ = [
    "AsyncBuffer",
    "BufferClosed",
    "CircularWait",
    "EndOfStream",
    "LockedBuffer",
    "ProducerDied",
    "ProducerStatus",
    "SharedProducer",
    "SharedReader",
    "WaitTimeout",
    "remove_abandoned",
    "shared_directory",
]
