"""The tables, commands and pages of `orchgpu top`, without a screen."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.cli.chart import ASCII, BLOCKS
from corekit.cli.screen import Coloured, Line
from corekit.cli.table import fitted
from corekit.cli.text import cells
from corekit.ids import AttemptId, DeviceId, HostId, JobId, LeaseId, SessionId
from corekit.values import replace
from gpu_scheduler.model import (
    Device,
    DeviceKind,
    HostState,
    Lease,
    LeaseState,
    Record,
    Request,
    Step,
    Usage,
)
from gpu_scheduler.protocol.answers import DeviceView, HostView, QueueAnswer, QueuedView
from gpu_scheduler.verdicts import Explanation, HeldBack
from orchgpu.cli.top.dialogs import drain_question
from orchgpu.cli.top.rows import (
    COLUMNS,
    TableRow,
    TableState,
    Typed,
    ViewName,
    fleet_rows,
    job_rows,
    queue_rows,
    typed,
)
from orchgpu.cli.top.snapshot import ScreenData, Story
from orchgpu.cli.top.story import story_lines
from orchgpu.jobs.joblog import Line as LogLine
from orchgpu.jobs.known import Known, Scheduled
from tests.history_records import job_record, job_result, share


def device(index: int, host: str = "gpu-a", **fields: Any) -> DeviceView:
    return DeviceView(
        device=Device(
            id=DeviceId(f"{host}/d{index}"),
            index=index,
            kind=DeviceKind.CUDA,
            model="Tesla V100",
            memory_mib=1000,
        ),
        memory_free_mib=fields.pop("free_mib", 1000),
        compute_free_pct=fields.pop("free_pct", 100),
        leases=fields.pop("leases", ()),
        usage=fields.pop("usage", None),
        **fields,
    )


def host(name: str, *devices: DeviceView, state: HostState = HostState.UP) -> HostView:
    return HostView(
        host=HostId(name), state=state, gateway=None, incarnation="", silent_s=0.0, devices=devices
    )


def lease(name: str, device_id: str, job: str | None) -> Lease:
    return Lease(
        id=LeaseId(name),
        attempt=AttemptId(f"{job or name}:1"),
        holder=None if job is None else JobId(job),
        fence=1,
        state=LeaseState.ACTIVE,
        shares=(share(device_id, "gpu-a"),),
    )


def record(job: str, step: Step = Step.RUNNING, **fields: Any) -> Record:
    given: dict[str, Any] = {
        "owner": "o",
        "block": {"function": "read", "input": {"bucket": "in", "key": "a.png"}},
        "updated_s": 90.0,
    }
    return job_record(job, step, **{**given, **fields})


def explanation(**fields: Any) -> Explanation:
    given: dict[str, Any] = {
        "devices_known": 1,
        "devices_fitting": 0,
        "counts": {},
        "position": 1,
        "largest_fit": "",
        "sentence": "number 1 in the queue",
    }
    return Explanation(**{**given, **fields})


SNAPSHOT = ScreenData(
    hosts=(
        host(
            "gpu-a",
            device(
                0,
                free_mib=250,
                free_pct=50,
                leases=(LeaseId("l1"), LeaseId("l2")),
                usage=Usage(device=DeviceId("gpu-a/d0"), memory_used_mib=1, utilisation_pct=37),
            ),
            device(1, drained=True),
        ),
        host("gpu-b", device(0, "gpu-b"), state=HostState.LOST),
    ),
    leases=(
        lease("l1", "gpu-a/d0", "j1"),
        lease("l2", "gpu-a/d0", None),
        replace(lease("l3", "gpu-a/d0", "j4"), after=(LeaseId("l1"),)),  # waits for the device
    ),
    queue=QueueAnswer(
        queue=(
            QueuedView(
                attempt=AttemptId("j2:1"),
                holder=JobId("j2"),
                request=Request(memory_mib=512, tenant="lab"),
                position=1,
                waiting_since_s=40.0,
                session=SessionId("s"),
            ),
            QueuedView(
                attempt=AttemptId("x"),
                holder=None,
                request=Request(priority=5),
                position=None,
                waiting_since_s=95.0,
                session=None,
            ),
        ),
        left_out=3,
    ),
    waits={AttemptId("j2:1"): explanation(expected_s=12.0)},
    records=(
        record("j3", Step.ENDED, outcome="FAILED", reason="KILLED", updated_s=99.0),
        record("j2", Step.WAITING, waiting_since_s=40.0),
        record("j1"),
    ),
)


ROWS = {
    ViewName.FLEET: fleet_rows(SNAPSHOT, BLOCKS),
    ViewName.QUEUE: queue_rows(SNAPSHOT, 100.0),
    ViewName.JOBS: job_rows(SNAPSHOT, 100.0),
}


def column(rows: list[TableRow], view: ViewName, name: str) -> list[str]:
    at = [one.name for one in COLUMNS[view]].index(name)
    return [row.cells[at] for row in rows]


def test_the_fleet_has_a_row_per_device_with_its_job_and_bars() -> None:
    rows = fleet_rows(SNAPSHOT, BLOCKS)
    assert [row.key for row in rows] == ["gpu-a/gpu-a/d0", "gpu-a/gpu-a/d1", "gpu-b/gpu-b/d0"]
    assert column(rows, ViewName.FLEET, "MEMORY") == ["███████▌··", "··········", "-"]
    assert column(rows, ViewName.FLEET, "COMPUTE") == ["█████·····", "··········", "-"]
    assert column(rows, ViewName.FLEET, "JOB") == ["j1 +1", "", ""]
    assert column(rows, ViewName.FLEET, "DEVICE") == ["0", "1 (drained)", "0"]
    assert column(rows, ViewName.FLEET, "USE") == ["37 %", "-", "-"]
    assert [(row.host, row.index, row.drained) for row in rows] == [
        ("gpu-a", 0, False),
        ("gpu-a", 1, True),
        ("gpu-b", 0, False),
    ]
    assert column(fleet_rows(SNAPSHOT, ASCII), ViewName.FLEET, "MEMORY")[0] == "#######=.."


def test_the_queue_has_the_reason_and_the_expected_time_of_a_wait() -> None:
    rows = queue_rows(SNAPSHOT, now_s=100.0)
    assert [row.cells for row in rows] == [
        (
            "1",
            "j2:1",
            "read",
            "lab",
            "0",
            "1 min",
            "BUSY",
            "in 12 s",
            "1 × device with 512 MiB",
        ),
        ("-", "x", "-", "default", "5", "5 s", "", "-", "1 × device"),
    ]
    assert [row.job for row in rows] == ["j2", None]


def test_equal_requests_behind_have_the_rules_reason_and_others_their_place() -> None:
    quota = explanation(held_back=HeldBack.QUOTA)
    (first, _) = SNAPSHOT.queue.queue if SNAPSHOT.queue is not None else ()
    behind = replace(first, attempt=AttemptId("j4:1"), position=2)
    other = replace(behind, attempt=AttemptId("j5:1"), request=Request(memory_mib=9))
    queue = QueueAnswer(queue=(first, behind, other), left_out=0)
    rows = queue_rows(replace(SNAPSHOT, queue=queue, waits={AttemptId("j2:1"): quota}), now_s=100.0)
    assert column(rows, ViewName.QUEUE, "REASON") == ["QUOTA", "QUOTA", "QUEUED_BEHIND"]


def test_jobs_have_their_states_and_reasons() -> None:
    rows = job_rows(SNAPSHOT, now_s=100.0)
    assert [row.cells for row in rows] == [
        ("j3", "read", "FAILED", "KILLED", "1", "1 s ago", "in/a.png"),
        ("j2", "read", "WAITING", "BUSY", "1", "10 s ago", "in/a.png"),
        ("j1", "read", "RUNNING", "", "1", "10 s ago", "in/a.png"),
    ]


@pytest.mark.parametrize("view", COLUMNS)
def test_every_row_has_a_text_and_an_order_for_each_column(view: ViewName) -> None:
    rows, columns = ROWS[view], COLUMNS[view]
    assert rows
    assert {(len(row.cells), len(row.order)) for row in rows} == {(len(columns), len(columns))}
    for at in range(len(columns)):
        assert len(TableState(column=at).shown(rows)) == len(rows)
        assert TableState(column=at, descending=True).shown(rows)[0] in rows


@pytest.mark.parametrize("view", COLUMNS)
def test_a_table_has_its_most_important_columns_at_80(view: ViewName) -> None:
    table = fitted(COLUMNS[view], [row.cells for row in ROWS[view]], 80)
    shown = {one.name for one in table.columns}
    assert sum(table.widths) + 2 * (len(table.widths) - 1) <= 80
    assert {
        ViewName.FLEET: {"HOST", "STATE", "DEVICE", "MEMORY", "COMPUTE", "JOB", "USE"},
        ViewName.QUEUE: {"PLACE", "ATTEMPT", "WAITED", "REASON"},
        ViewName.JOBS: {"JOB", "FUNCTION", "STATE", "REASON", "CHANGED", "INPUT"},
    }[view] <= shown


def test_texts_of_others_are_written_out() -> None:
    evil = replace(SNAPSHOT, records=(record("j1", block={"function": "\x1b[2J"}),))
    assert job_rows(evil, 100.0)[0].cells[1] == "\\x1b[2J"


def row(name: str, size: float) -> TableRow:
    return TableRow(key=name, cells=(name, "WAITING"), order=(name, size))


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (TableState(), "b a C"),
        (TableState(filter="c"), "C"),
        (TableState(filter="WAIT a"), "b a C"),
        (TableState(filter="nothing"), ""),
        (TableState(column=0), "C a b"),
        (TableState(column=1), "C b a"),
        (TableState(column=1, descending=True), "a b C"),
        (TableState(column=1, filter="a b"), "b"),
    ],
)
def test_rows_are_filtered_and_sorted(state: TableState, shown: str) -> None:
    rows = [row("b", 2.0), row("a", 3.0), row("C", 1.0)]
    assert " ".join(one.key for one in state.shown(rows)) == shown


def test_the_key_of_the_order_goes_over_all_columns_and_back() -> None:
    state, seen = TableState(), []
    for _ in range(4):
        seen.append(state.column)
        state = state.sorted_by_next(3)
    assert seen == [None, 0, 1, 2]
    assert state == TableState()
    words = TableState(filter="x", column=1).reversed().words(COLUMNS[ViewName.JOBS])
    assert words == "/x  by FUNCTION ↓"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("fleet", Typed(view=ViewName.FLEET)),
        ("qu", Typed(view=ViewName.QUEUE)),
        ("jobs", Typed(view=ViewName.JOBS)),
        ("gpus", Typed(view=ViewName.FLEET)),
        ("job j12", Typed(job="j12")),
        (" quit ", Typed(leave=True)),
        ("q", Typed(leave=True)),
    ],
)
def test_typed_commands(text: str, command: Typed) -> None:
    assert typed(text) == command


@pytest.mark.parametrize("text", ["", "flet", "nix"])
def test_an_unknown_command_is_a_problem(text: str) -> None:
    assert "is not a view" in typed(text).problem


def test_the_overview_counts_what_was_read() -> None:
    assert ScreenData().overview() == ""
    assert SNAPSHOT.overview() == (
        "2 hosts  1/3 devices lent  5 waiting  1 FAILED  1 RUNNING  1 WAITING"
    )


def test_a_question_names_the_place() -> None:
    first, second, _ = fleet_rows(SNAPSHOT, BLOCKS)
    assert drain_question(first, whole_host=False).startswith("Drain gpu-a/0?")
    assert drain_question(first, whole_host=True).startswith("Drain gpu-a?")
    assert drain_question(second, whole_host=False) == "Grant leases on gpu-a/1 again?"


# ---------------------------------------------------------------------- one job


def texts(lines: list[Line]) -> list[str]:
    return [
        "".join(part.word if isinstance(part, Coloured) else part for part in line)
        for line in lines
    ]


def story(**fields: Any) -> Story:
    times = {"RECEIVED": 50.0, "RESERVED": 51.0, "STAGED": 52.0, "RUNNING": 53.0, "ENDED": 60.0}
    ended = record("j1", Step.ENDED, outcome="FAILED", times=times)
    result = job_result(
        state="FAILED",
        reason="EXIT_NONZERO",
        attempt=1,
        exit_code=3,
        times={"EStart": 54.0, "EEnd": 58.0},
        detail="the script exited with 3",
    )
    given: dict[str, Any] = {
        "job": "j1",
        "function": None,
        "scheduled": Scheduled(record=ended),
        "result": result,
        "reports": {},
    }
    lines = tuple(LogLine(at_s=57.0, where="function", text=f"line {n}\x1b[2J") for n in range(30))
    return Story(known=Known(**{**given, **fields}), lines=lines)


@pytest.mark.parametrize("width", [40, 78, 120])
def test_the_page_of_a_job_has_gantt_failure_and_last_lines(width: int) -> None:
    shown = texts(story_lines(story(), width, 100.0, BLOCKS))
    assert shown[1].startswith("EXIT_NONZERO: "), "the reason comes first"
    assert shown[0] == "j1  read  FAILED  attempt 1"
    assert any(line.startswith("function") and "cold start" in line for line in shown)
    assert any("█" in line for line in shown)
    assert "EXIT_NONZERO: the script exited with 3" in shown
    assert shown[-1].endswith("line 29\\x1b[2J")
    assert not any("line 9\\x1b" in line for line in shown)
    assert all(cells(line) <= width for line in shown)


def test_the_page_of_a_waiting_job_has_the_reason() -> None:
    waiting = Scheduled(
        record=record("j1", Step.WAITING, times={"RECEIVED": 50.0, "WAITING": 51.0}),
        waits=explanation(sentence="number 2 in the queue, behind j9"),
    )
    shown = texts(story_lines(story(scheduled=waiting), 78, 100.0, BLOCKS))
    assert shown[1] == "number 2 in the queue, behind j9"
    assert any("waits" in line and "49 s so far" in line for line in shown)
