"""The host's own evidence: never in the way of a lease's end, whole again when there is room."""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corekit.ids import LeaseId
from remote_gpu.host.leases.lease_log import LeaseLog
from remote_gpu.host.leases.steps import LeaseStep, LeaseStepKind
from tests.installs import share_of
from tests.lease_overlaps import read_overlaps

SHARE = share_of("d", memory_mib=600)


def write(log: LeaseLog, kind: LeaseStepKind, number: int) -> None:
    step = LeaseStep(kind=kind, lease=LeaseId(f"l{number}"), fence=number, shares=(SHARE,))
    log.write(step, kind.value, 1.0)


def events(path: Path) -> list[tuple[str, str]]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["event"], line["lease"]) for line in lines]


@contextlib.contextmanager
def full_at(size: int) -> Iterator[None]:
    """No file of this process grows beyond so much, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_stops_no_step_and_loses_no_line(tmp_path: Path) -> None:
    path = tmp_path / "leases.jsonl"
    log = LeaseLog(path)
    write(log, LeaseStepKind.PLACED, 1)
    with full_at(path.stat().st_size + 10):  # half a line fits
        write(log, LeaseStepKind.KILL, 1)
        write(log, LeaseStepKind.CUT, 1)
        assert read_overlaps(path.read_text().splitlines(), {"d": 1000}) == []
    write(log, LeaseStepKind.PLACED, 2)
    written = [("started", ""), ("placed", "l1"), ("kill", "l1"), ("cut", "l1"), ("placed", "l2")]
    assert events(path) == written
    log.close()


def test_leases_placed_before_a_restart_ended_with_its_run(tmp_path: Path) -> None:
    path = tmp_path / "leases.jsonl"
    log = LeaseLog(path)
    write(log, LeaseStepKind.PLACED, 1)
    log.close()
    with path.open("a") as file:
        file.write('{"event": "ki')  # the rest was not written
    log = LeaseLog(path)
    write(log, LeaseStepKind.PLACED, 2)
    assert read_overlaps(path.read_text().splitlines(), {"d": 1000}) == []
    write(log, LeaseStepKind.PLACED, 3)
    [overlap] = read_overlaps(path.read_text().splitlines(), {"d": 1000})
    assert "d held by l2, l3: more memory than the device has" in overlap
    log.close()


def test_the_log_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "leases.jsonl"
    log = LeaseLog(path, bytes_max=1000)
    for number in range(40):
        write(log, LeaseStepKind.PLACED, number)
    log.close()
    both = [*events(tmp_path / "leases.jsonl.1"), *events(path)]
    last = [f"l{number}" for number in range(40)][-len(both) :]
    assert [lease for _, lease in both] == last, "the newest, in their order"
    assert {one.name for one in tmp_path.iterdir()} == {"leases.jsonl", "leases.jsonl.1"}
    assert all(one.stat().st_size < 2000 for one in tmp_path.iterdir())


def line(event: str, lease: str, memory_mib: int = 600, pct: float = 0, alone: bool = False) -> str:
    share = {"device": "d", "memory_mib": memory_mib, "compute_guarantee_pct": pct}
    shares = [share | {"exclusive": alone}]
    return json.dumps({"event": event, "at_s": 1.0, "lease": lease, "shares": shares})


EIGHT = [line("placed", f"l{number}", 1, 12.5) for number in range(8)]


@pytest.mark.parametrize(
    ("lines", "memory_mib", "overlaps"),
    [
        ([line("placed", "a"), line("placed", "b")], 1000, 1),
        ([line("placed", "a"), line("placed", "b")], 1200, 0),
        ([line("placed", "a"), line("cut", "a"), line("placed", "b")], 1000, 0),
        ([line("placed", "a"), line("placed", "b", 1, alone=True)], 1000, 1),
        ([line("placed", "a", 1, 51), line("placed", "b", 1, 51)], 1000, 1),
        (EIGHT, 1000, 0),
        ([*EIGHT, line("placed", "l8", 1, 0.1)], 1000, 1),
    ],
)
def test_the_check_of_the_log_sees_overlaps(
    lines: list[str], memory_mib: int, overlaps: int
) -> None:
    assert len(read_overlaps(lines, {"d": memory_mib})) == overlaps
