"""Store of the history: writes, in transactions that may be repeated, and their bounds.

One writer, in one thread. Every write replaces what it knows better, so a batch that is written
again changes nothing; the position of the event stream is part of the transaction.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import IO

import msgspec

from corekit.errors import AppError, ErrorCode
from corekit.values import Value, replace
from gpu_scheduler.model import Record
from orchgpu.history.rows import (
    Row,
    attempt_rows,
    job_row,
    lease_rows,
    share_rows,
    step_rows,
    wait_rows,
)

#: Form of the tables; a file of another one is refused.
VERSION = 1
#: Part of the jobs that leave a file which is too large, at once.
PRUNED_PART = 20

_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS jobs (
    job TEXT PRIMARY KEY, function TEXT NOT NULL, tenant TEXT NOT NULL, bucket TEXT NOT NULL,
    key TEXT NOT NULL, bytes INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT,
    attempt INTEGER NOT NULL, device TEXT NOT NULL, uploaded_s REAL, received_s REAL,
    waiting_s REAL, reserved_s REAL, running_s REAL, ended_s REAL, changed_s REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS jobs_changed ON jobs (changed_s, job);
CREATE INDEX IF NOT EXISTS jobs_ended ON jobs (ended_s);
CREATE TABLE IF NOT EXISTS leases (
    lease TEXT PRIMARY KEY, job TEXT NOT NULL, attempt INTEGER NOT NULL, function TEXT NOT NULL,
    tenant TEXT NOT NULL, granted_s REAL NOT NULL, active_s REAL, freed_s REAL, ended_s REAL,
    reason TEXT, loading_s REAL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS leases_ended ON leases (ended_s);
CREATE INDEX IF NOT EXISTS leases_job ON leases (job);
CREATE TABLE IF NOT EXISTS waits (
    lease TEXT PRIMARY KEY, since_s REAL NOT NULL, until_s REAL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS shares (
    lease TEXT NOT NULL, device TEXT NOT NULL, host TEXT NOT NULL, position INTEGER NOT NULL,
    kind TEXT NOT NULL, model TEXT NOT NULL, memory_mib INTEGER NOT NULL,
    compute_pct REAL NOT NULL, exclusive INTEGER NOT NULL, PRIMARY KEY (lease, device)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS shares_device ON shares (device);
CREATE TABLE IF NOT EXISTS steps (
    job TEXT PRIMARY KEY, run TEXT NOT NULL, workflow TEXT NOT NULL, step TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS steps_run ON steps (run);
CREATE TABLE IF NOT EXISTS attempts (
    job TEXT NOT NULL, n INTEGER NOT NULL, function TEXT NOT NULL, tenant TEXT NOT NULL,
    outcome TEXT NOT NULL, reason TEXT NOT NULL, ended_s REAL NOT NULL, PRIMARY KEY (job, n)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS attempts_ended ON attempts (ended_s);
CREATE TABLE IF NOT EXISTS presences (
    device TEXT NOT NULL, host TEXT NOT NULL, since_s REAL NOT NULL, until_s REAL,
    removed INTEGER NOT NULL, PRIMARY KEY (device, since_s)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pools (
    pool TEXT NOT NULL, since_s REAL NOT NULL, until_s REAL, hosts INTEGER NOT NULL,
    usd_per_h REAL NOT NULL, PRIMARY KEY (pool, since_s)
) WITHOUT ROWID;
"""


class Bounds(Value):
    """Limits of the store."""

    age_s: float = 30 * 86_400.0
    size_bytes: int = 512 * 2**20


class Presence(Value):
    """A device came or left, as the event stream showed it."""

    device: str
    host: str
    present: bool  #: False: its host is lost, or it is `removed`
    at_s: float
    removed: bool = False  #: it is no longer in the inventory


class PoolSize(Value):
    """The hosts that a pool has from then on; None: not known."""

    pool: str
    hosts: int | None
    usd_per_h: float
    at_s: float


class Batch(Value):
    """Changes to be written in one transaction."""

    records: Sequence[Record] = ()
    presences: Sequence[Presence] = ()
    pools: Sequence[PoolSize] = ()
    #: All devices of the inventory, and `pools` are all; None: as `presences` changes them.
    inventory: Sequence[Presence] | None = None
    at_s: float = 0.0  #: of `inventory`
    position: str | None = None  #: of the event stream, after this batch


class Store:
    """The file of the history, open for its one writer."""

    def __init__(self, path: Path, bounds: Bounds | None = None) -> None:
        """Open or create it. Raises CONFLICT when another process writes it, UNAVAILABLE."""
        self.path = path
        self._bounds = bounds or Bounds()
        self._lock = _locked(path)
        try:
            with errors_of(path):
                self._db = _opened(path)
        except AppError:
            self._lock.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self._db.close()
        self._lock.close()

    @property
    def position(self) -> str | None:
        """The position of the event stream up to which everything is written."""
        with errors_of(self.path):
            row = self._db.execute("SELECT value FROM facts WHERE name = 'position'").fetchone()
        return None if row is None else str(row[0])

    def write(self, batch: Batch) -> None:
        """Write a batch as a whole. May be repeated."""
        with errors_of(self.path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for record in batch.records:
                self._replace("jobs", (msgspec.structs.asdict(job_row(record)),))
                self._replace("steps", step_rows(record))
                self._replace("leases", lease_rows(record))
                self._replace("waits", wait_rows(record))
                self._replace("shares", share_rows(record))
                self._replace("attempts", attempt_rows(record))
            for one in batch.presences:
                self._presence(one)
            if batch.inventory is not None:
                self._only(batch.inventory)
                self._only_pools(batch.pools, batch.at_s)
            for pool in batch.pools:
                self._pool(pool)
            if batch.position is not None:
                self._db.execute(
                    "INSERT OR REPLACE INTO facts VALUES ('position', ?)", (batch.position,)
                )

    def _replace(self, table: str, rows: Iterable[Row]) -> None:
        for row in rows:
            self._db.execute(_insertion(table, len(row)), tuple(row.values()))

    def _presence(self, one: Presence) -> None:
        here = self._db.execute(
            "SELECT 1 FROM presences WHERE device = ? AND until_s IS NULL", (one.device,)
        ).fetchone()
        if one.present and here is None:
            self._db.execute(
                "INSERT OR REPLACE INTO presences VALUES (?, ?, ?, NULL, 0)",
                (one.device, one.host, one.at_s),
            )
        elif not one.present:
            self._db.execute(
                "UPDATE presences SET until_s = ? WHERE device = ? AND until_s IS NULL",
                (one.at_s, one.device),
            )
        if one.removed:
            self._db.execute("UPDATE presences SET removed = 1 WHERE device = ?", (one.device,))

    def _only(self, inventory: Sequence[Presence]) -> None:
        """The inventory has these devices, and no others."""
        names = {one.device for one in inventory}
        for one in self.latest_presences():
            if one.device not in names:
                at_s = max([one.at_s, *(known.at_s for known in inventory)])
                self._presence(replace(one, present=False, removed=True, at_s=at_s))
        for one in inventory:
            self._presence(one)

    def _pool(self, one: PoolSize) -> None:
        here = self._db.execute(
            "SELECT hosts, usd_per_h FROM pools WHERE pool = ? AND until_s IS NULL", (one.pool,)
        ).fetchone()
        if here == (one.hosts, one.usd_per_h):
            return
        self._db.execute(
            "UPDATE pools SET until_s = ? WHERE pool = ? AND until_s IS NULL", (one.at_s, one.pool)
        )
        if one.hosts is not None:
            self._db.execute(
                "INSERT OR REPLACE INTO pools VALUES (?, ?, NULL, ?, ?)",
                (one.pool, one.at_s, one.hosts, one.usd_per_h),
            )

    def _only_pools(self, pools: Sequence[PoolSize], at_s: float) -> None:
        """There are these pools, and no others: what the others have is not known any more."""
        names = {one.pool for one in pools}
        rows = self._db.execute("SELECT pool FROM pools WHERE until_s IS NULL").fetchall()
        for pool in [name for (name,) in rows if name not in names]:
            self._pool(PoolSize(pool=pool, hosts=None, usd_per_h=0.0, at_s=at_s))

    def latest_presences(self) -> list[Presence]:
        """Each device that was not removed from the inventory, as it was seen last."""
        with errors_of(self.path):
            rows = self._db.execute(
                "SELECT device, host, until_s IS NULL, max(since_s) FROM presences "
                "WHERE removed = 0 GROUP BY device ORDER BY device"
            ).fetchall()
        return [
            Presence(device=device, host=host, present=bool(open_), at_s=since_s)
            for device, host, open_, since_s in rows
        ]

    def prune(self, now_s: float) -> int:
        """Remove what is too old, and the oldest jobs of a file that is too large; their number."""
        with errors_of(self.path):
            removed = self._remove_before(now_s - self._bounds.age_s)
            while self.size_bytes > self._bounds.size_bytes and (part := self._oldest_part()):
                removed += part
            self._db.execute("PRAGMA incremental_vacuum")
        return removed

    @property
    def size_bytes(self) -> int:
        """Bytes of the pages in use."""
        pages, free, size = (
            int(self._db.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def _oldest_part(self) -> int:
        (count,) = self._db.execute("SELECT count(*) FROM jobs").fetchone()
        if not count:
            return 0
        row = self._db.execute(
            "SELECT changed_s FROM jobs ORDER BY changed_s LIMIT 1 OFFSET ?",
            (count // PRUNED_PART,),
        ).fetchone()
        return self._remove_before(row[0], inclusive=True)

    def _remove_before(self, before_s: float, *, inclusive: bool = False) -> int:
        """Remove the jobs that changed before, with all that belongs to them."""
        compared = "<=" if inclusive else "<"
        old = f"SELECT job FROM jobs WHERE changed_s {compared} ?"
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            lease = f"SELECT lease FROM leases WHERE job IN ({old})"
            for table in ("shares", "waits"):
                self._db.execute(f"DELETE FROM {table} WHERE lease IN ({lease})", (before_s,))
            for table in ("leases", "attempts", "steps"):
                self._db.execute(f"DELETE FROM {table} WHERE job IN ({old})", (before_s,))
            for table in ("presences", "pools"):
                self._db.execute(f"DELETE FROM {table} WHERE until_s < ?", (before_s,))
            done = self._db.execute(f"DELETE FROM jobs WHERE changed_s {compared} ?", (before_s,))
        return done.rowcount


@cache
def _insertion(table: str, columns: int) -> str:
    return f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * columns)})"


def _locked(path: Path) -> IO[str]:
    """The lock of the file's writer, which ends with the process."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = path.with_name(path.name + ".lock").open("a")
    except OSError as error:
        text = f"cannot write the history {path}: {error.strerror or error}"
        raise AppError(ErrorCode.UNAVAILABLE, text) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        text = f"another process writes the history {path}; one is enough, or name another --store"
        raise AppError(ErrorCode.CONFLICT, text) from None
    return lock


def _opened(path: Path) -> sqlite3.Connection:
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o640))
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.executescript(_TABLES)
        db.execute("INSERT OR IGNORE INTO facts VALUES ('version', ?)", (str(VERSION),))
        check_version(db, path)
    except BaseException:
        db.close()
        raise
    return db


def opened_for_reading(path: Path) -> sqlite3.Connection:
    """A connection that needs no right to write to the folder.

    Without a writer the files of the log are missing, and SQLite would create them to read; a
    database without a log does not change either.
    """
    has_log = path.with_name(f"{path.name}-wal").exists()
    fixed = "" if has_log or os.access(path.parent, os.W_OK) else "&immutable=1"
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{fixed}", uri=True)


def check_version(db: sqlite3.Connection, path: Path) -> None:
    """Raise INVALID for a file of another form."""
    row = db.execute("SELECT value FROM facts WHERE name = 'version'").fetchone()
    if row is None or row[0] != str(VERSION):
        text = f"{path} is a history of form {row and row[0]}; this version reads {VERSION}"
        raise AppError(ErrorCode.INVALID, f"{text}: name another --store, or remove the file")


@contextlib.contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Errors of SQLite as AppErrors: UNAVAILABLE, and INVALID for a file of another kind."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        unavailable = isinstance(error, sqlite3.OperationalError)
        code = ErrorCode.UNAVAILABLE if unavailable else ErrorCode.INVALID
        raise AppError(code, f"history {path}: {error}") from None
