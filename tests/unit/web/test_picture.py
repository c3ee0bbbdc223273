"""Fleet, jobs, batches and pages of the console, change by change."""

from __future__ import annotations

import csv
import io
import json

import pytest

from corekit.errors import AppError, ErrorCode
from corekit.ids import LeaseId
from corekit.values import replace
from gpu_scheduler.floors import FloorView
from gpu_scheduler.model import HostState, Step
from gpu_scheduler.protocol.pools import FleetView
from orchgpu.jobs.summary import JobSummary, summary_of
from orchgpu.web.model import picture as batches
from orchgpu.web.model.fleet import Fleet, FleetQuery
from orchgpu.web.model.jobs import JobQuery, Jobs
from orchgpu.web.model.pages import page_limit, search
from orchgpu.web.model.picture import Picture
from orchgpu.web.routes.views import csv_pieces, json_pieces
from tests.unit.gpu_scheduler_core.views.test_pools import POOL
from tests.unit.web.console_things import device_view, host_view, lease, record, recounted


def test_a_lease_occupies_its_devices_until_it_ends() -> None:
    fleet = Fleet()
    fleet.put_host(host_view("a", device_view("a", 0), device_view("a", 1)), 5.0)
    fleet.put_lease(lease("l", ("a", 1), memory_mib=300, pct=25), 99.0)
    first, second = fleet.host("a").devices
    assert (first.state, second.state) == ("idle", "busy")
    assert (second.memory_used_mib, second.compute_used_pct) == (300, 25)
    assert [(one.lease, one.ends_s) for one in second.leases] == [("l", 99.0)]
    assert fleet.end_lease("l") is not None
    assert fleet.device("a", "a/1") == fleet.host("a").devices[1]
    assert fleet.host("a").devices[1].state == "idle"
    assert fleet.end_lease("l") is None


def test_a_lease_granted_ahead_occupies_its_device_from_its_booking() -> None:
    fleet = Fleet()
    fleet.put_host(host_view("a", device_view("a", 0)), 5.0)
    booked = lease("l", ("a", 0))
    ahead = replace(booked, after=(LeaseId("before"),))
    for put, state in ((ahead, "idle"), (booked, "busy"), (ahead, "idle"), (booked, "busy")):
        fleet.put_lease(put, 99.0)
        assert fleet.host("a").devices[0].state == state
    fleet.put_lease(ahead, 99.0)
    fleet.end_lease("l")
    assert fleet.host("a").devices[0].state == "idle"
    assert fleet.counts() == recounted(fleet)


def test_a_drained_device_drains_until_its_leases_have_ended() -> None:
    fleet = Fleet()
    fleet.put_host(host_view("a", device_view("a", 0, drained=True), device_view("a", 1)), 5.0)
    fleet.put_lease(lease("l", ("a", 0)), 99.0)
    assert [one.state for one in fleet.host("a").devices] == ["draining", "idle"]
    assert fleet.host("a").state == "UP", "only a device of it"
    assert len(fleet.page(FleetQuery(state="drained")).items) == 1
    fleet.end_lease("l")
    assert [one.state for one in fleet.host("a").devices] == ["drained", "idle"]
    assert fleet.counts() == recounted(fleet)


def test_a_drained_host_drains_until_its_leases_have_ended() -> None:
    fleet = Fleet()
    views = device_view("a", 0), device_view("a", 1)
    fleet.put_host(host_view("a", *views, state=HostState.DRAINED), 5.0)
    fleet.put_lease(lease("l", ("a", 0)), 99.0)
    assert fleet.host("a").state == "DRAINING"
    assert [one.state for one in fleet.host("a").devices] == ["draining", "drained"]
    fleet.end_lease("l")
    assert fleet.host("a").state == "DRAINED"
    assert fleet.counts() == recounted(fleet)


def test_a_change_of_a_host_names_the_devices_that_differ() -> None:
    fleet = Fleet()
    views = device_view("a", 0), device_view("a", 1)
    assert fleet.put_host(host_view("a", *views), 5.0) == ("a/0", "a/1")
    assert fleet.put_host(host_view("a", *views, silent_s=3.0), 6.0) == (), "only its silence"
    assert fleet.put_host(host_view("a", views[0], device_view("a", 1, used=7)), 7.0) == ("a/1",)
    drained = host_view("a", views[0], state=HostState.DRAINED)
    assert fleet.put_host(drained, 8.0) == ("a/0", "a/1"), "the second one is gone"
    assert fleet.drained() == ["a"]


@pytest.mark.parametrize(
    ("target", "found"), [("a", ("a", None)), ("a/1", ("a", "a/1")), ("x", None), ("a/9", None)]
)
def test_a_target_is_a_host_or_a_device(target: str, found: tuple[str, str] | None) -> None:
    fleet = Fleet()
    fleet.put_host(host_view("a", device_view("a", 0), device_view("a", 1)), 5.0)
    if found is None:
        with pytest.raises(AppError) as caught:
            fleet.target_of(target)
        assert caught.value.code is ErrorCode.NOT_FOUND
    else:
        assert fleet.target_of(target) == found


def test_hosts_are_found_by_state_name_and_model() -> None:
    fleet = Fleet()
    fleet.put_host(host_view("gpu-a", device_view("gpu-a", 0, drained=True)), 5.0)
    fleet.put_host(host_view("gpu-b", device_view("gpu-b", 0)), 5.0)
    for query, names in [
        (FleetQuery(state="drained"), ["gpu-a"]),
        (FleetQuery(state="UP"), ["gpu-a", "gpu-b"]),
        (FleetQuery(text="PU-B"), ["gpu-b"]),
        (FleetQuery(host="gpu-b"), ["gpu-b"]),
        (FleetQuery(host="gpu-c"), []),
    ]:
        assert [getattr(one, "host", "") for one in fleet.page(query).items] == names


def test_a_host_names_its_data_sets_and_programs() -> None:
    fleet = Fleet()
    view = host_view("a")
    fleet.put_host(replace(view, data={"nr": "", "db": "ab"}, programs={"blast": ""}), now_s=1.0)
    fleet.put_host(host_view("b"), now_s=1.0)
    assert fleet.host("a").offers == "data db, nr; programs blast"
    assert fleet.host("b").offers == ""


def test_a_job_keeps_its_place_whatever_changes() -> None:
    jobs = Jobs()
    jobs.put(summary_of(record("j1", received_s=1.0)))
    jobs.put(summary_of(record("j2", received_s=2.0)))
    changed = record("j1", outcome="SUCCEEDED", received_s=9.0, updated_s=9.0)
    assert jobs.put(summary_of(changed))
    assert not jobs.put(summary_of(changed)), "nothing changed"
    ids = [getattr(one, "job", "") for one in jobs.page(JobQuery(), lambda one: one).items]
    assert ids == ["j2", "j1"]
    assert jobs.counts() == {"RUNNING": 1, "SUCCEEDED": 1}


def of_three() -> Jobs:
    """Jobs with functions, tenants and durations in different orders."""
    jobs = Jobs()
    for number, (function, tenant, duration_s) in enumerate(
        (("b", "x", 3.0), ("a", "y", 9.0), ("c", "x", 1.0))
    ):
        begun = replace(summary_of(record(f"j{number}")), received_s=100.0 + number)
        changed_s = begun.received_s + duration_s
        jobs.put(replace(begun, function=function, tenant=tenant, changed_s=changed_s))
    return jobs


@pytest.mark.parametrize(
    ("sort", "descending", "expected"),
    [
        ("function", False, ["j1", "j0", "j2"]),
        ("function", True, ["j2", "j0", "j1"]),
        ("tenant", False, ["j2", "j0", "j1"]),
        ("duration", True, ["j1", "j0", "j2"]),
        ("submitted", False, ["j0", "j1", "j2"]),
    ],
)
def test_jobs_are_sorted_by_a_column(sort: str, descending: bool, expected: list[str]) -> None:
    jobs, found, after = of_three(), [], None
    while True:
        query = JobQuery(sort=sort, descending=descending, limit=2, after=after)
        page = jobs.page(query, lambda one: one)
        assert page.total == 3
        found += [one.job for one in page.items if isinstance(one, JobSummary)]
        if (after := page.next) is None:
            break
    assert found == expected


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (JobQuery(sort="nothing"), "sort by state"),
        (JobQuery(sort="state", after="x"), "'x' is not a cursor"),
    ],
)
def test_an_unknown_order_is_refused(query: JobQuery, why: str) -> None:
    with pytest.raises(AppError, match=why):
        of_three().page(query, lambda one: one)


def test_an_export_has_what_the_filter_matches_and_no_formula() -> None:
    jobs = of_three()
    jobs.put(replace(summary_of(record("j9")), function="=cmd()", key='a,"b"\n', tenant="z"))
    found = list(jobs.matching(JobQuery(), lambda one: one))
    rows = list(csv.DictReader(io.StringIO(b"".join(csv_pieces(found)).decode(), newline="")))
    assert {row["job"] for row in rows} == {"j0", "j1", "j2", "j9"}
    hostile = next(row for row in rows if row["job"] == "j9")
    assert (hostile["function"], hostile["key"], hostile["reason"]) == ("'=cmd()", 'a,"b"\n', "")
    as_json = json.loads(b"".join(json_pieces(found)))["jobs"]
    assert [one["job"] for one in as_json] == [row["job"] for row in rows]
    assert next(one for one in as_json if one["job"] == "j9")["function"] == "=cmd()"
    redacted = list(jobs.matching(JobQuery(function="a"), lambda one: one.redacted()))
    assert redacted == [], "what is hidden is not found"
    assert json.loads(b"".join(json_pieces([]))) == {"jobs": []}


def test_a_search_looks_at_a_bounded_number_of_keys() -> None:
    looked: list[str] = []
    keys = iter([f"{number:03}" for number in range(100)])

    def matching(key: str) -> str | None:
        looked.append(key)
        return None

    found, more = search(keys, 5, matching, scanned_max=10)
    assert (found, more, len(looked)) == ([], "009", 10)


def test_a_cursor_of_another_list_is_refused() -> None:
    with pytest.raises(AppError, match="not a cursor"):
        Jobs().page(JobQuery(after="x"), lambda one: one)


@pytest.mark.parametrize("text", ["0", "201", "-1", "ten", "9" * 30, "½"])
def test_a_wrong_limit_is_refused(text: str) -> None:
    with pytest.raises(AppError, match="limit"):
        page_limit(text)


def test_a_browser_gets_what_it_missed_while_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "KEPT_MAX", 2)
    kept = batches.Batches("run")
    for number in range(3):
        kept.note("job", f"j{number}", {"job": f"j{number}"})
        assert kept.close() is not None
    assert kept.close() is None, "nothing changed"
    assert [kept.resumable(kept.id_of(number)) for number in (1, 3)] == [1, 3]
    for lost in (kept.id_of(0), kept.id_of(4), "other-3", "nonsense", "run-"):
        assert kept.resumable(lost) is None
    read = [kept.after(number) for number in (0, 2, 3)]
    assert [None if one is None else (one.number, one.overflow) for one in read] == [
        (3, True),  # too slow: the page loads its views again
        (3, False),
        None,
    ]


def test_changes_of_one_thing_are_one_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "CHANGES_MAX", 2)
    kept = batches.Batches("run")
    kept.note("job", "j", {"n": 1})
    kept.note("job", "j", {"n": 2})
    batch = kept.close()
    assert batch is not None
    assert batch.changes == ({"event": "job", "n": 2},)
    for number in range(3):
        kept.note("job", f"j{number}", {})
    batch = kept.close()
    assert batch is not None
    assert batch.overflow


def test_the_picture_notes_what_browsers_need() -> None:
    picture = Picture("run")
    picture.put_hosts([host_view("a", device_view("a", 0))], 5.0)
    picture.put_leases([lease("l", ("a", 0))], {}, 5.0)
    picture.put_record(record("j1", step=Step.WAITING))
    picture.set_connected(True)
    batch = picture.batches.close()
    assert batch is not None
    assert {one["event"] for one in batch.changes} == {"device", "lease", "job", "scheduler"}
    overview = picture.overview()
    assert (overview.hosts, overview.leases, overview.jobs) == (1, 1, 1)
    assert overview.devices_by_state == {"busy": 1}
    assert overview.hosts_by_state == {"UP": 1}
    picture.end_lease("l")
    picture.forget_job("j1")
    picture.forget_host("a")
    overview = picture.overview()
    assert (overview.hosts, overview.leases, overview.jobs, overview.devices) == (0, 0, 0, 0)


def test_pools_are_shown_with_the_time_of_their_next_host_and_their_ages_are_no_change() -> None:
    picture = Picture("run")
    assert picture.pools().pools == ()
    fleet = FleetView(pools=(POOL,), notices=("80 USD are spent",))
    picture.put_pools(fleet, 1000.0)
    (entry,) = picture.pools().pools
    assert (entry.pool, entry.hosts, entry.expected_s) == ("a10g", 1, 1050.0)
    assert picture.pools().notices == ("80 USD are spent",)
    assert picture.batches.close() is not None
    picture.put_pools(replace(fleet, pools=(POOL.aged(2.0),)), 1002.0)
    assert picture.pools().pools[0].expected_s == 1050.0
    assert picture.batches.close() is None
    floor = FloorView(tenant="t", workload="w", workers_min=2, workers=1, why="no room")
    picture.put_floors((floor,), 3)
    assert picture.batches.close() is not None
    picture.put_floors((floor,), 3)
    assert picture.batches.close() is None
    assert (picture.pools().floors, picture.pools().floors_left_out) == ((floor,), 3)
    picture.put_pools(None, 1004.0)
    batch = picture.batches.close()
    assert batch is not None
    assert [one["event"] for one in batch.changes] == ["pool"]
