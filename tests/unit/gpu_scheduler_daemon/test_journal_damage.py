"""Every way to damage a journal is noticed: no entry that was answered is lost in silence.

The journal is a real one: a daemon's history of hosts, leases and jobs, with and without a
compaction. Each variant is opened as a daemon would, and must either be refused or read back whole.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.journal.entries import Entries
from gpu_scheduler.daemon.journal.reader import LogReader
from gpu_scheduler.daemon.log.engines.file import NAME, FileLog
from gpu_scheduler.daemon.log.port import Log
from gpu_scheduler.daemon.log.records import Contents, scan
from gpu_scheduler.daemon.log.sync_marker import NAME as MARKER_NAME
from gpu_scheduler.daemon.log.sync_marker import Mark, read_marker, write_marker
from gpu_scheduler.protocol.changes import Entry, encode_entry
from tests.unit.gpu_scheduler_daemon.journals import (
    check,
    history,
    lines_of,
    opened,
    repair,
    reset_marker,
)

Variant = tuple[str, bytes]


def written(folder: Path, entries: Sequence[Entry], *, compact_after: int | None = None) -> None:
    """A journal with one line per entry; after that many of them it is compacted."""
    journal, _ = opened(folder)

    async def append() -> None:
        for number, entry in enumerate(entries, 1):
            if number == compact_after:
                done = tuple(part for one in entries[:number] for part in one.parts)
                journal.snapshot = iter([done]).__next__
                journal.compact_bytes_min = 0
            await journal.append([entry])
            if number == compact_after:
                journal.compact_bytes_min = 2**40
                assert journal._compacting is not None
                await asyncio.wrap_future(journal._compacting)

    asyncio.run(append())
    assert journal.figures.compactions == (compact_after is not None)
    journal.close()


@pytest.fixture(params=[None, 3], ids=["as written", "compacted"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    written(tmp_path / "whole", history(), compact_after=request.param)
    return tmp_path / "whole"


def parts_of(entries: Sequence[Entry]) -> list[bytes]:
    """The parts of all entries, in their order: a snapshot is one entry of many parts."""
    return [encode_entry(Entry(parts=(part,))) for entry in entries for part in entry.parts]


def read(folder: Path, log: Log | None = None) -> list[bytes]:
    """As a daemon reads it when it starts; nothing is written."""
    reader = LogReader(log or FileLog(folder), str(folder / NAME))
    lines = reader.begin()
    return parts_of(Entries("", reader.wrote).all_of(line.group for line in lines))


def started(folder: Path) -> list[bytes]:
    """As a daemon that starts on it."""
    journal, entries = opened(folder)
    journal.close()
    return parts_of(entries)


class InMemory(FileLog):
    """A file with these bytes beside a marker: no file for each of some thousand variants."""

    def __init__(self, folder: Path, data: bytes) -> None:
        super().__init__(folder)
        self._held = data
        self._contents = scan(data, read_marker(folder), str(folder / NAME))

    def _current(self) -> Contents:
        assert self._contents is not None
        return self._contents

    def _bytes(self, start: int, end: int) -> bytes:
        return self._held[start:end]


def survives(folder: Path, data: bytes, whole: list[bytes]) -> bool:
    """Whether the damage is noticed, or does no harm."""
    try:
        return read(folder, InMemory(folder, data)) == whole
    except AppError as error:
        newer = "version" in error.message
        told = "damaged" in error.message and "journal repair" in error.message
        return error.code in (ErrorCode.INTERNAL, ErrorCode.INVALID) and (told or newer)


def line_variants(data: bytes) -> Iterator[Variant]:
    """Each line dropped, doubled, and every two of them swapped; runs of lines left out."""
    lines = lines_of(data)
    for i in range(len(lines)):
        for j in range(i + 1, len(lines) + 1):
            yield f"lines {i}-{j} dropped", b"".join(lines[:i] + lines[j:])
        yield f"line {i} doubled", b"".join([*lines[: i + 1], *lines[i:]])
        yield f"line {i} said again at the end", b"".join([*lines, lines[i]])
        for j in range(i):
            swapped = list(lines)
            swapped[i], swapped[j] = swapped[j], swapped[i]
            yield f"lines {j} and {i} swapped", b"".join(swapped)


def test_no_line_is_missing_doubled_or_swapped_in_silence(folder: Path) -> None:
    whole, data = read(folder), (folder / NAME).read_bytes()
    lost = [name for name, variant in line_variants(data) if not survives(folder, variant, whole)]
    assert not lost


def test_no_truncation_is_taken_for_an_entry_that_was_never_answered(folder: Path) -> None:
    whole, data = read(folder), (folder / NAME).read_bytes()
    assert [cut for cut in range(len(data)) if not survives(folder, data[:cut], whole)] == []
    zeroed = [
        cut
        for cut in range(len(data))
        if not survives(folder, data[:cut] + bytes(len(data) - cut), whole)
    ]
    assert zeroed == []
    (folder / NAME).unlink()
    with pytest.raises(AppError, match="it is empty, but 5 items were synced"):
        started(folder)


@pytest.mark.parametrize(
    "flipped", [1, pytest.param(8, marks=pytest.mark.soak)], ids=["a bit of each byte", "each bit"]
)
def test_no_changed_byte_is_overlooked(folder: Path, flipped: int) -> None:
    whole, data = read(folder), (folder / NAME).read_bytes()
    lost = [
        (at, value)
        for at in range(len(data))
        for value in {0, ord("\n"), *(data[at] ^ 1 << (at + n) % 8 for n in range(flipped))}
        - {data[at]}
        if not survives(folder, data[:at] + bytes([value]) + data[at + 1 :], whole)
    ]
    assert not lost


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_no_mixture_of_damages_is_overlooked(folder: Path, draw: st.DataObject) -> None:
    whole, data = read(folder), (folder / NAME).read_bytes()
    for _ in range(draw.draw(st.integers(1, 3))):
        kind = draw.draw(st.sampled_from(("cut out", "insert", "overwrite", "copy")))
        start = draw.draw(st.integers(0, len(data)))
        end = draw.draw(st.integers(start, min(len(data), start + 2000)))
        if kind == "cut out":
            data = data[:start] + data[end:]
        elif kind == "insert":
            data = data[:start] + draw.draw(st.binary(max_size=40)) + data[start:]
        elif kind == "overwrite":
            given_bytes = draw.draw(st.binary(max_size=40))
            data = data[:start] + given_bytes + data[start + len(given_bytes) :]
        else:
            data = data[:start] + data[start:end] + data[start:]
    assert survives(folder, data, whole)


def test_a_marker_of_another_journal_or_a_lost_one_is_noticed(folder: Path, tmp_path: Path) -> None:
    """Mixed folders, and a copy without the marker."""
    written(tmp_path / "other", history())
    note = folder / MARKER_NAME
    own = note.read_bytes()
    note.write_bytes((tmp_path / "other" / MARKER_NAME).read_bytes())
    with pytest.raises(AppError, match="another journal"):
        read(folder)
    note.write_bytes(bytes(len(own)))
    with pytest.raises(AppError, match="journal repair"):
        read(folder)
    note.unlink()
    with pytest.raises(AppError, match="whole state folder"):
        read(folder)
    note.write_bytes(own)
    assert read(folder)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_torn_write_of_the_marker_leaves_the_other_slot(folder: Path, slot: int) -> None:
    """At most the newest line is then not known as synced; it is there all the same."""
    whole, note = read(folder), folder / MARKER_NAME
    own = bytearray(note.read_bytes())
    own[slot * 512 + 5] ^= 1
    note.write_bytes(bytes(own))
    assert started(folder) == whole


def test_only_a_group_that_was_never_synced_is_cut_off(folder: Path) -> None:
    """A crash while a group is written: whatever of it reached the disk, all others are there."""
    whole, path = read(folder), folder / NAME
    sound, note = path.read_bytes(), (folder / MARKER_NAME).read_bytes()
    written(folder, history()[:1])
    group = path.read_bytes()[len(sound) :]
    for cut in range(len(group)):
        (folder / MARKER_NAME).write_bytes(note)
        path.write_bytes(sound + group[:cut] + bytes(100))
        assert started(folder) == whole
    path.write_bytes(sound + group)
    (folder / MARKER_NAME).write_bytes(note)
    assert len(started(folder)) == len(whole) + 1, "synced, and the crash came before the note"


def test_a_copy_of_a_state_folder_goes_on(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    assert started(tmp_path / "copy") == read(folder)


def test_the_chain_alone_shows_missing_lines_before_the_end(folder: Path) -> None:
    """Also where a power failure left the marker behind: only whole lines at the end look torn."""
    whole, data = read(folder), (folder / NAME).read_bytes()
    reset_marker(folder)
    lost = []
    for name, variant in line_variants(data):
        is_end = data.startswith(variant) and variant
        if not is_end and not survives(folder, variant, whole) and variant:
            lost.append(name)
    assert not lost


@pytest.mark.parametrize("number", [0, 1, 4, 5, 9])
def test_a_repair_that_was_killed_is_done_again(folder: Path, number: int) -> None:
    """It wrote its marker before its journal: the old journal is beside a foreign marker."""
    whole, path = read(folder), folder / NAME
    compacted = b'"snapshot":true' in path.read_bytes()
    write_marker(folder, Mark(0, number, b"0badc0de"))
    if number == 0 or (compacted and number < 5):  # the marker is an old one
        assert check(folder).damage is None
        assert read(folder) == whole
        return
    assert check(folder).damage is not None
    repair(folder)
    assert check(folder).damage is None
    assert path.with_name(f"{NAME}.damaged-1").exists()
    kept = read(folder)
    assert kept[: len(whole)] == whole, "no entry that is there is dropped"


@pytest.mark.parametrize("left", [b"", b"12345678 {", bytes(4096)])
def test_a_first_start_that_was_killed_is_repeated(tmp_path: Path, left: bytes) -> None:
    """The marker is written first, for no synced line."""
    reset_marker(tmp_path)
    (tmp_path / NAME).write_bytes(left)
    assert started(tmp_path) == []
    written(tmp_path, history())
    assert len(read(tmp_path)) > 3
