"""Output about a job: timeline, JSON, lines for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corekit.ids import DeviceId, HostId
from corekit.values import replace
from gpu_scheduler.model import Device, DeviceKind, Health, HostState, Step
from gpu_scheduler.protocol.answers import DeviceView, HostView
from orchgpu.cli.commands.operation.gpus import DEVICES_WITH_BARS, row_with_bars
from orchgpu.cli.commands.operation.gpus import device_row as row_of
from orchgpu.cli.jobs.report import (
    echo_outcome,
    echo_progress,
    echo_summary,
    echo_timeline,
    job_json,
    timeline,
)
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.following import Followed
from orchgpu.jobs.measures import MOMENTS
from orchgpu.jobs.transfers import OutputFolder
from orchgpu.jobs.uploaded import Submitted
from tests import history_records
from tests.history_records import job_record, job_result

FUNCTION = replace(history_records.FUNCTION, input_prefix="a", input_suffixes=(".fa", ".fasta"))


def followed(**fields: Any) -> Followed:
    submitted = Submitted(
        function=FUNCTION, file=Path("/x/q.fa"), key="a/q.fa", job_ids=("j1",), uploaded_s=100.0
    )
    return Followed(**{"submitted": submitted, "job_id": "j1", **fields})


def ended(**fields: Any) -> Followed:
    times = {"RECEIVED": 100.5, "COMMITTED": 103.5, "ENDED": 104.0}
    record = job_record(step=Step.ENDED, times=times)
    given: dict[str, Any] = {
        "attempt": 1,
        "times": {"EStart": 101.0, "EEnd": 103.0, "committed": 103.4},
        "files": [{"bucket": "out", "key": "q.tsv", "size": 3, "sha256": "ab"}],
        "device": {"host": "gpu-a", "kind": "cpu", "model": "X"},
    }
    result = job_result(**{**given, **fields})
    return followed(record=record, result=result, state=result.state, reason=result.reason)


def test_a_timeline_has_the_papers_moments_in_seconds() -> None:
    times = timeline(ended())
    assert [times[name] for name in MOMENTS] == [0.0, 0.5, 1.0, 3.0, 3.5, 4.0]
    assert (times["RLat"], times["DLat"], times["ELat"]) == (4.0, 1.0, 2.0)
    clock, steps = times["wall_clock"], times["steps"]
    assert isinstance(clock, dict)
    assert isinstance(steps, dict)
    assert clock["RStart"] == 100.0
    assert list(steps.items()) == [("RECEIVED", 0.5), ("COMMITTED", 3.5), ("ENDED", 4.0)]


def test_moments_that_never_came_are_none() -> None:
    times = timeline(followed())
    assert [times[name] for name in MOMENTS] == [0.0, None, None, None, None, None]
    assert (times["RLat"], times["DLat"], times["ELat"]) == (None, None, None)
    assert times["steps"] == {}


def test_a_failed_jobs_result_is_seen_though_its_code_never_ran() -> None:
    job = ended(state="FAILED", reason="NOT_STARTED", times={}, ended_at_s=103.9)
    assert timeline(job)["NEnd"] == pytest.approx(3.5)
    assert timeline(job)["ELat"] is None


def test_the_json_of_a_job_has_the_documented_keys() -> None:
    shown = json.loads(json.dumps(job_json(ended())))
    assert {"job_id", "input", "state", "reason", "outputs", "device", "timeline"} <= set(shown)
    assert shown["input"] == "in/a/q.fa"
    assert shown["outputs"] == [{"bucket": "out", "key": "q.tsv", "size": 3, "sha256": "ab"}]
    assert shown["device"]["kind"] == "cpu"


def test_the_json_of_a_job_without_a_result_is_whole_too() -> None:
    shown = job_json(followed(state="REJECTED", reason="IMPOSSIBLE", sentence="too large"))
    assert (shown["outputs"], shown["device"], shown["detail"]) == ([], {}, "too large")


def test_a_failure_shows_the_end_of_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    job = ended(
        state="FAILED",
        reason="EXIT_NONZERO",
        exit_code=7,
        log_tail="going\nboom",
        detail="the script exited with 7\nj2  SUCCEEDED",
    )
    echo_outcome(job)
    echo_timeline(job)
    shown = capsys.readouterr().out
    assert "FAILED (EXIT_NONZERO)" in shown
    assert "  the script exited with 7\\nj2  SUCCEEDED\n  | going\n  | boom\n" in shown
    assert "RLat 4.000 s" in shown


def test_a_success_without_outputs_has_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    job = ended(notes=["1 file matched no output: a\x1b[2J.txt; nothing was stored"])
    echo_outcome(job)
    shown = capsys.readouterr().out
    assert "note: 1 file matched no output: a" in shown
    assert "\x1b" not in shown
    assert job.result is not None
    assert job_json(job)["notes"] == job.result.notes


def test_progress_is_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    echo_progress(followed(state="WAITING", reason="BUSY", sentence="2 of 2 are lent"))
    shown = capsys.readouterr()
    assert (shown.out, shown.err.split()) == (
        "",
        ["q.fa", "WAITING", "BUSY", "2", "of", "2", "are", "lent"],
    )


@pytest.mark.parametrize("name", ["q.txt", "q", "fa"])
def test_a_file_the_trigger_would_ignore_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(Exception, match="would ignore it"):
        JobCloud.check(FUNCTION, tmp_path / name)
    with pytest.raises(Exception, match="there is no file"):
        JobCloud.check(FUNCTION, tmp_path / "absent.fa")


def test_a_fetched_output_is_shown_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    echo_outcome(ended(), OutputFolder(path=tmp_path))
    assert "->" not in capsys.readouterr().out  # another job wrote over it
    file = tmp_path / "j1" / "q.tsv"
    file.parent.mkdir()
    file.touch()
    echo_outcome(ended(), OutputFolder(path=tmp_path))
    assert f"  out/q.tsv  3 B  -> {file}\n" in capsys.readouterr().out


def test_several_jobs_end_in_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = ended(state="FAILED", reason="KILLED", files=[])
    echo_summary([ended(), ended(), failed, followed()])
    assert capsys.readouterr().out.splitlines() == [
        "",
        "4 jobs: 2 SUCCEEDED, 1 FAILED, 1 not received yet; 2 outputs, 6 B; 4.0 s",
        "  q.fa                     FAILED KILLED  j1",
        "  q.fa                     not received yet  j1",
    ]


def test_nothing_is_free_on_a_lost_host() -> None:
    assert device_row(HostState.UP)[5:7] == ("4096/4096 MiB", "100 %")
    assert device_row(HostState.LOST)[5:7] == ("-/4096 MiB", "-")


def test_a_device_without_new_leases_has_its_reason() -> None:
    assert device_row(HostState.UP)[2] == "0"
    assert device_row(HostState.UP, drained=True)[2] == "0 (drained)"
    assert device_row(HostState.UP, health=Health.BAD)[2] == "0 (BAD)"


def test_a_terminal_shows_what_is_lent_as_bars() -> None:
    def bars(state: HostState) -> list[str]:
        names = [column.name for column in DEVICES_WITH_BARS]
        row = row_with_bars(*host_and_view(state, free_mib=1024, free_pct=87.5))
        return [row[names.index(name)] for name in ("MEMORY", "COMPUTE", "COMPUTE FREE")]

    assert bars(HostState.UP) == ["███████▌··", "█▎········", "87.5 %"]
    assert bars(HostState.LOST) == ["-", "-", "-"]


def device_row(
    state: HostState, *, drained: bool = False, health: Health = Health.OK
) -> tuple[str, ...]:
    return row_of(*host_and_view(state, drained=drained, health=health))


def host_and_view(
    state: HostState,
    *,
    drained: bool = False,
    health: Health = Health.OK,
    free_mib: int = 4096,
    free_pct: float = 100,
) -> tuple[HostView, DeviceView]:
    device = Device(
        id=DeviceId("d"), index=0, kind=DeviceKind.CPU, model="m", memory_mib=4096, health=health
    )
    view = DeviceView(
        device=device,
        memory_free_mib=free_mib,
        compute_free_pct=free_pct,
        leases=(),
        usage=None,
        drained=drained,
    )
    host = HostView(
        host=HostId("a"), state=state, gateway="", incarnation="", silent_s=0.0, devices=(view,)
    )
    return host, view
