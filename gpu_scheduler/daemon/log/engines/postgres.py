"""A log in PostgreSQL: one table of items, one of snapshots.

    postgres://[USER@]HOST[:PORT][,HOST…]/DATABASE[?name=LOG&passfile=PATH&sslmode=…]

A password comes from libpq's own places: `passfile`, PGPASSFILE, PGPASSWORD, a certificate.
A put is one INSERT in a transaction of its own, so PostgreSQL's own commit is the durability:
`synchronous_commit` is raised to `on` for the session when the server has less. With several hosts
the writable one is taken. A standby server must replicate synchronously; with an asynchronous one a
failover may lose answered items, which hosts then refuse as an older epoch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from collections.abc import Collection, Iterator
from typing import LiteralString, TypedDict
from urllib.parse import quote, urlencode

import psycopg
from psycopg import errors, sql

from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.log.port import LogAddress, LogLimits, Snapshot
from gpu_scheduler.daemon.log.registry import only_options
from gpu_scheduler.daemon.log.writer import read_again

logger = logging.getLogger(__name__)

LIMITS = LogLimits(item_bytes_max=2**20, snapshot_after=50_000)
#: Rows of one page of `read`; of `item_bytes_max` bytes each at most.
PAGE_ROWS = 64
#: A snapshot's rows have this many bytes: the client holds one of them in memory twice.
PART_BYTES = 8 * 2**20
#: Options of an address that are handed to libpq.
LIBPQ = (
    *("host", "hostaddr", "port", "service", "target_session_attrs", "passfile"),
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl"),
    *("channel_binding", "krbsrvname", "gssencmode"),
)
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}\Z")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS {items} (seq bigint PRIMARY KEY, data bytea NOT NULL);
CREATE TABLE IF NOT EXISTS {snapshots}
  (seq bigint, part int, data bytea NOT NULL, PRIMARY KEY (seq, part));
"""
_PUT = "INSERT INTO {items} (seq, data) VALUES (%s, %s) ON CONFLICT DO NOTHING"
_LAST = "SELECT coalesce(max(seq), %s) FROM {items} WHERE seq > %s"
_READ = "SELECT seq, data FROM {items} WHERE seq >= %s ORDER BY seq LIMIT %s"
_TRIM = "DELETE FROM {items} WHERE seq <= %s AND NOT seq = ANY(%s)"
_PUT_PART = "INSERT INTO {snapshots} (seq, part, data) VALUES (%s, %s, %s)"
_DROP = "DELETE FROM {snapshots} WHERE seq = %s"
_DROP_BEFORE = "DELETE FROM {snapshots} WHERE seq < %s"
_NEWEST = "SELECT coalesce(max(seq), 0) FROM {snapshots}"
_PARTS = "SELECT data FROM {snapshots} WHERE seq = %s ORDER BY part"
#: Of a new session: both limits end a statement that waits, never one that commits; at the levels
#: `off` and `local` a commit may be lost with the server or its standby.
SESSION = """
SELECT set_config('lock_timeout', %(call_ms)s, false),
       set_config('statement_timeout', %(call_ms)s, false),
       CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
            THEN set_config('synchronous_commit', 'on', false) END
"""


class PostgresLog:
    """`gpu_scheduler.daemon.log.port.Log` on one connection, opened again after an error."""

    limits = LIMITS

    def __init__(self, conninfo: str, name: str, call_s: float) -> None:
        self._conninfo = conninfo
        self._names = {
            "items": sql.Identifier(name),
            "snapshots": sql.Identifier(f"{name}_snapshots"),
        }
        self._call_s = call_s
        self._connection: psycopg.Connection | None = None

    def put_if_absent(self, seq: int, data: bytes) -> bool:
        if len(data) > LIMITS.item_bytes_max:
            raise invalid(f"an item has at most {LIMITS.item_bytes_max} bytes, got {len(data)}")
        with self._connected() as connection:
            done = connection.execute(self._text(_PUT), (seq, data), prepare=True, binary=True)
            return done.rowcount == 1

    def read(self, from_seq: int) -> Iterator[tuple[int, bytes]]:
        while True:
            found = read_again(self._page, from_seq)
            for seq, data in found:
                if seq != from_seq:
                    return
                yield seq, bytes(data)
                from_seq += 1
            if len(found) < PAGE_ROWS:
                return

    def _page(self, from_seq: int) -> list[tuple[int, bytes]]:
        with self._connected() as connection:
            page = connection.execute(
                self._text(_READ), (from_seq, PAGE_ROWS), prepare=True, binary=True
            )
            return page.fetchall()

    def last_seq(self, after: int) -> int:
        return read_again(self._number, _LAST, after, after)

    def _number(self, query: LiteralString, *values: int) -> int:
        with self._connected() as connection:
            return self._one(connection, query, *values)

    def trim(self, to_seq: int, keep: Collection[int] = ()) -> None:
        with self._connected() as connection, connection.transaction():
            connection.execute(self._text(_TRIM), (to_seq, list(keep)))
            connection.execute(self._text(_DROP_BEFORE), (to_seq,))

    def put_snapshot(self, seq: int, data: bytes) -> None:
        parts = range(0, max(len(data), 1), PART_BYTES)
        with self._connected() as connection, connection.transaction():
            connection.execute(self._text(_DROP), (seq,))
            for number, start in enumerate(parts):
                part = data[start : start + PART_BYTES]
                connection.execute(self._text(_PUT_PART), (seq, number, part), binary=True)

    def newest_snapshot(self) -> Snapshot | None:
        return read_again(self._snapshot)

    def _snapshot(self) -> Snapshot | None:
        with self._connected() as connection, connection.transaction():
            # both statements see the same snapshots, whatever is trimmed between them
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            seq = self._one(connection, _NEWEST)
            if seq == 0:
                return None
            parts = connection.execute(self._text(_PARTS), (seq,), binary=True).fetchall()
            return Snapshot(seq, b"".join(bytes(part) for (part,) in parts))

    def newest_snapshot_seq(self) -> int:
        return read_again(self._number, _NEWEST)

    def _one(self, connection: psycopg.Connection, query: LiteralString, *values: int) -> int:
        row = connection.execute(self._text(query), values).fetchone()
        assert row is not None, "an aggregate has one row"
        return int(row[0])

    def interrupt(self) -> None:
        if (connection := self._connection) is None:
            return
        # the thread in the call wakes up with an error of the connection
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(connection.fileno())) as copy,
        ):
            copy.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _text(self, text: LiteralString) -> sql.Composed:
        return sql.SQL(text).format(**self._names)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[psycopg.Connection]:
        """The connection; after an error the next call has a new one."""
        try:
            if self._connection is None:
                self._connection = self._open()
            yield self._connection
        except psycopg.Error as error:
            with contextlib.suppress(psycopg.Error):
                self.close()
            raise translated(error) from None

    def _open(self) -> psycopg.Connection:
        connection = psycopg.connect(
            self._conninfo, application_name="ssgmd", **connect_arguments(self._call_s)
        )
        try:
            connection.execute(SESSION, session_values(self._call_s))
        except BaseException:
            connection.close()
            raise
        return connection

    def prepare(self) -> None:
        """Create the tables; safe beside others that do the same."""
        with self._connected() as connection:
            fsync = connection.execute("SHOW fsync").fetchone()
            if fsync is not None and fsync[0] != "on":
                text = "PostgreSQL runs with fsync=%s: a power failure may lose answered leases"
                logger.warning(text, fsync[0], extra={"event": "weak_durability"})
            try:
                connection.execute(self._text(_SCHEMA))
            except (errors.UniqueViolation, errors.DuplicateTable):
                connection.execute(self._text(_SCHEMA))  # another one created them just now


class ConnectArguments(TypedDict):
    """Of psycopg's `connect`, synchronous or not."""

    autocommit: bool
    connect_timeout: int
    tcp_user_timeout: int
    keepalives_idle: int
    keepalives_interval: int
    keepalives_count: int


def connect_arguments(call_s: float) -> ConnectArguments:
    """A connection on which each statement is a transaction, and that notices a lost server."""
    return ConnectArguments(
        autocommit=True,
        connect_timeout=max(2, round(call_s)),
        tcp_user_timeout=round(call_s * 1000),
        keepalives_idle=max(1, round(call_s)),
        keepalives_interval=1,
        keepalives_count=3,
    )


def session_values(call_s: float) -> dict[str, str]:
    """The parameters of `SESSION`; `call_s`: the longest time of one statement."""
    return {"call_ms": str(round(call_s * 1000))}


def translated(error: psycopg.Error) -> AppError:
    """The error of a call, with the server's own text: libpq puts no password into it."""
    text = f"PostgreSQL: {' '.join(str(error).split()) or type(error).__name__}"
    match error:
        case errors.DiskFull() | errors.TooManyConnections() | errors.OutOfMemory():
            return AppError(ErrorCode.EXHAUSTED, text)
        case errors.QueryCanceled() | errors.LockNotAvailable():
            return AppError(ErrorCode.TIMEOUT, text)
        case errors.InsufficientPrivilege() | errors.InvalidPassword():
            return AppError(ErrorCode.DENIED, text)
        case errors.InvalidAuthorizationSpecification():
            return AppError(ErrorCode.DENIED, text)
        case errors.InvalidCatalogName():
            return AppError(ErrorCode.NOT_FOUND, text)
        case errors.ReadOnlySqlTransaction() | errors.SerializationFailure():
            return AppError(ErrorCode.UNAVAILABLE, text)  # a failover is under way
        case psycopg.OperationalError() if error.sqlstate is None and _is_refused(text):
            missing = "database" in text and "does not exist" in text
            return AppError(ErrorCode.NOT_FOUND if missing else ErrorCode.DENIED, text)
        case psycopg.OperationalError() if error.sqlstate is None or error.sqlstate[:2] in _PASSING:
            return AppError(ErrorCode.UNAVAILABLE, text)
        case psycopg.InterfaceError():
            return AppError(ErrorCode.UNAVAILABLE, text)
    return AppError(ErrorCode.INTERNAL, text)


def _is_refused(text: str) -> bool:
    """Whether the server refused a new connection for good; libpq gives no SQLSTATE then."""
    words = ("authentication failed", "no password", "does not exist", "not permitted to log in")
    return any(word in text for word in words)


#: Classes of SQLSTATE that pass: connection, resources, rollback, an operator's action.
_PASSING = ("08", "40", "53", "57", "58")


class PostgresEngine:
    """Engine of `postgres://` and `postgresql://`."""

    summary = "postgres://[USER@]HOST[:PORT]/DATABASE[?name=LOG&passfile=PATH&sslmode=verify-full]"

    def open(self, address: LogAddress, call_s: float) -> PostgresLog:
        only_options(address, ("name", *LIBPQ))
        name = address.options.get("name", "orchgpu_log")
        if not _NAME.match(name):
            raise invalid(f"--log: name={name} must be a table's name of a-z, 0-9 and _, up to 41")
        log = PostgresLog(conninfo_of(address), name, call_s)
        try:
            log.prepare()
        except UnicodeError:  # of a host name; nothing was opened
            raise invalid(f"--log: {address.text} names a host that is not a host name") from None
        except BaseException:
            log.close()
            raise
        return log


def conninfo_of(address: LogAddress) -> str:
    options = {k: v for k, v in address.options.items() if k != "name"}
    options.setdefault("target_session_attrs", "read-write")
    user = f"{quote(address.user, safe='')}@" if address.user else ""
    return f"postgresql://{user}{address.host}/{quote(address.path)}?{urlencode(options)}"


ENGINE = PostgresEngine()
