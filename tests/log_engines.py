"""Every engine of logs, each against a server: PostgreSQL, moto's DynamoDB and S3, embedded S3."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_scheduler.daemon.log.port import Log, LogLimits, Snapshot
from gpu_scheduler.daemon.log.registry import open_log, parse_log_address
from tests.postgres_server import postgres_server

CALL_S = 20.0  #: two loaded cores


@dataclass
class EngineUnderTest:
    """One running engine, and addresses that no other test uses."""

    name: str
    address_of: Callable[[str], str]
    #: Variables with which another process reaches it.
    environment: Mapping[str, str] = field(default_factory=dict)
    opened: list[Log] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self) -> str:
        """The address of a log that does not exist yet."""
        return self.address_of(f"log_{next(self._numbers)}")

    def open(self, address: str) -> Log:
        """A log, closed after the test."""
        log = open_log(parse_log_address(address), CALL_S)
        self.opened.append(log)
        return log

    def close_all(self) -> None:
        while self.opened:
            self.opened.pop().close()


@contextlib.contextmanager
def _postgres() -> Iterator[EngineUnderTest]:
    with postgres_server() as server:
        yield EngineUnderTest("postgres", server.url)


class WrappedLog:
    """A log that passes every call on; tests override some."""

    def __init__(self, log: Log) -> None:
        self.log = log

    @property
    def limits(self) -> LogLimits:
        return self.log.limits

    def put_if_absent(self, seq: int, data: bytes) -> bool:
        return self.log.put_if_absent(seq, data)

    def read(self, from_seq: int) -> Iterator[tuple[int, bytes]]:
        return self.log.read(from_seq)

    def trim(self, to_seq: int, keep: Collection[int] = ()) -> None:
        self.log.trim(to_seq, keep)

    def put_snapshot(self, seq: int, data: bytes) -> None:
        self.log.put_snapshot(seq, data)

    def newest_snapshot(self) -> Snapshot | None:
        return self.log.newest_snapshot()

    def newest_snapshot_seq(self) -> int:
        return self.log.newest_snapshot_seq()

    def interrupt(self) -> None:
        self.log.interrupt()

    def close(self) -> None:
        self.log.close()


ENGINES = {"postgres": _postgres}
