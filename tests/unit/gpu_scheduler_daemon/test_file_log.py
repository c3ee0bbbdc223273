"""A log in a file: what its writer knows is what another opening scans."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.daemon.log.engines.file import FileLog

#: Numbers of puts; of snapshots, by their distance from the newest item; of trims, likewise.
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "snapshot", "trim"]), st.integers(0, 5)),
    max_size=25,
)


def contents(log: FileLog) -> tuple[object, ...]:
    snapshot = log.newest_snapshot()
    first = 1 if snapshot is None else snapshot.seq + 1
    return snapshot, list(log.read(first)), log.last_seq(0), log.torn_bytes


@settings(max_examples=40)  # each step waits for the disk
@given(STEPS, st.booleans())
def test_a_writer_knows_what_another_opening_scans(
    steps: list[tuple[str, int]], is_alone: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        log, seq = FileLog(Path(name)), 0
        log.put_if_absent(seq := seq + 1, b"the first")
        if is_alone:
            log.be_alone()
        for step, back in steps:
            match step:
                case "put":
                    seq += 1
                    assert log.put_if_absent(seq, b"item %d " % seq * back)
                case "snapshot":
                    log.put_snapshot(max(seq - back, 1), b"snapshot of %d" % seq)
                case "trim":
                    log.trim(min(seq - back, log.newest_snapshot_seq()))
            other = FileLog(Path(name))
            assert contents(log) == contents(other)
            other.close()
        log.close()
        assert not Path(name, "journal.new").exists()


def test_a_snapshot_written_in_parts_hides_nothing_put_meanwhile(tmp_path: Path) -> None:
    log = FileLog(tmp_path)
    for seq in (1, 2, 3):
        log.put_if_absent(seq, b"%d" % seq)
    log.be_alone()
    take = log.write_snapshot(2, b"1, 2")
    log.put_if_absent(4, b"4")
    reader = FileLog(tmp_path)
    assert contents(reader) == (None, [(n, b"%d" % n) for n in (1, 2, 3, 4)], 4, 0)
    take()
    log.put_if_absent(5, b"5")
    for opening in (log, reader):
        assert contents(opening) == ((2, b"1, 2"), [(3, b"3"), (4, b"4"), (5, b"5")], 5, 0)
    reader.close()
    log.close()
