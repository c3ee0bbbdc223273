"""Connections to the database of queues and rules: one for commands, a pool for the orchestrator.

The address is `ORCHGPU_QUEUES`, in the form of a scheduler's log: a password stands in libpq's own
places (a passfile, PGPASSWORD, a certificate), never in the address, a record or a log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, LiteralString

import psycopg
from psycopg import errors

from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.log.engines.postgres import (
    LIBPQ,
    SESSION,
    connect_arguments,
    conninfo_of,
    session_values,
    translated,
)
from gpu_scheduler.daemon.log.registry import only_options, parse_log_address
from orchgpu.adapters.own import statements
from orchgpu.adapters.own.settings import QUEUES_VARIABLE

#: The longest time of one statement: a receive of a queue of a million messages takes 10 ms.
CALL_S = 10.0
CONNECTIONS_MAX = 8
_NAME = "orchgpu"

Row = tuple[Any, ...]
Values = Mapping[str, object]
NO_VALUES: Values = {}


def conninfo(address: str) -> str:
    """libpq's form of `ORCHGPU_QUEUES`. Raises INVALID."""
    parsed = parse_log_address(address, QUEUES_VARIABLE)
    if parsed.scheme != "postgres":
        raise invalid(
            f"{QUEUES_VARIABLE}: {parsed.scheme}:// holds no queues; write"
            " postgresql://[USER@]HOST[:PORT]/DATABASE[?passfile=PATH]"
        )
    only_options(parsed, LIBPQ, QUEUES_VARIABLE)
    return conninfo_of(parsed)


@contextlib.contextmanager
def _errors_translated() -> Iterator[None]:
    try:
        yield
    except errors.UndefinedTable:
        raise AppError(
            ErrorCode.NOT_FOUND,
            f"the database of {QUEUES_VARIABLE} has no queues yet: `orchgpu deploy` makes them",
        ) from None
    except psycopg.Error as error:
        raise translated(error) from None


class Database:
    """One connection, opened when it is first needed, and again after an error."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: psycopg.Connection | None = None

    def rows(self, statement: LiteralString, values: Values = NO_VALUES) -> list[Row]:
        """Run one statement; its rows. Raises AppError."""
        with _errors_translated():
            cursor = self._run(statement, values)
            return cursor.fetchall() if cursor.description else []

    def make_tables(self) -> None:
        """Create what is missing; safe beside others that do the same."""
        with _errors_translated():
            try:
                self._run(statements.SCHEMA, None)
            except (errors.UniqueViolation, errors.DuplicateTable):
                self._run(statements.SCHEMA, None)  # another one created them just now

    def _run(self, statement: LiteralString, values: Values | None) -> psycopg.Cursor[Row]:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                self._conninfo, application_name=_NAME, **connect_arguments(CALL_S)
            )
            self._connection.execute(SESSION, session_values(CALL_S))
        return self._connection.execute(statement, values)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Pool:
    """At most `CONNECTIONS_MAX` connections, opened as they are needed.

    An error closes the connection of its call and all idle ones: those of a server that was started
    again are lost, too.
    """

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._idle: list[psycopg.AsyncConnection] = []
        self._free = asyncio.Semaphore(CONNECTIONS_MAX)

    async def rows(self, statement: LiteralString, values: Values = NO_VALUES) -> list[Row]:
        """Run one statement; its rows. Raises AppError."""
        async with self._connection() as connection:
            cursor = await connection.execute(statement, values)
            return await cursor.fetchall() if cursor.description else []

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[psycopg.AsyncConnection]:
        async with self._free:
            with _errors_translated():
                connection = self._idle.pop() if self._idle else await self.connect()
                try:
                    yield connection
                except errors.UndefinedTable:
                    self._idle.append(connection)
                    raise
                except psycopg.Error:
                    await connection.close()
                    await self.close()
                    raise
                except BaseException:  # a call that was cancelled may leave an answer behind
                    await connection.close()
                    raise
                self._idle.append(connection)

    async def connect(self) -> psycopg.AsyncConnection:
        """A connection of the caller's own. Raises psycopg's errors."""
        connection = await psycopg.AsyncConnection.connect(
            self._conninfo, application_name=_NAME, **connect_arguments(CALL_S)
        )
        try:
            await connection.execute(SESSION, session_values(CALL_S))
        except BaseException:
            await connection.close()
            raise
        return connection

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()
