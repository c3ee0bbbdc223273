"""Whole copies of what a log holds, kept in the state folder before some of it goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from corekit.aio.files import write_new
from gpu_scheduler.daemon.log.engines.file import NAME
from gpu_scheduler.daemon.log.port import Log, LogDamage
from gpu_scheduler.daemon.log.records import ITEM, SNAPSHOT, encode_record


def keep_copy(log: Log, state: Path, word: str, lost: bytes | None = None) -> Path:
    """Write the contents of a log as a journal file, `journal.WORD-1`, …; its path.

    `lost`: what an engine found behind the sound items instead of items. Raises OSError.
    """
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    number = 1
    while (kept := state / f"{NAME}.{word}-{number}").exists():
        number += 1
    snapshot = log.newest_snapshot()
    first = 1 if snapshot is None else snapshot.seq + 1
    records = [] if snapshot is None else [encode_record(SNAPSHOT, *snapshot)[0]]
    records += [encode_record(ITEM, seq, data)[0] for seq, data in items_from(log, first)]
    write_new(kept, b"".join([*records, lost or b""]))
    return kept


def items_from(log: Log, seq: int) -> Iterator[tuple[int, bytes]]:
    """The items from a number on, also those behind missing ones, up to what no engine can read."""
    last = log.last_seq(seq - 1)
    try:
        while seq <= last:
            for at, data in log.read(seq):
                yield at, data
                seq = at
            seq += 1
    except LogDamage:
        return
