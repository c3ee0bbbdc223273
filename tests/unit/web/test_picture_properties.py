"""The picture equals one that is computed again from everything, after any changes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.model import Health, HostState, Step
from orchgpu.jobs.summary import JobSummary, summary_of
from orchgpu.web.model.fleet import Fleet, FleetQuery
from orchgpu.web.model.jobs import JobQuery, Jobs
from tests.unit.web.console_things import device_view, host_view, lease, record, recounted

HOSTS = ("a", "b", "c")
hosts = st.sampled_from(HOSTS)
health = st.sampled_from(list(Health))
put_host = st.tuples(
    st.just("host"),
    hosts,
    st.sampled_from(list(HostState)),
    st.lists(st.tuples(health, st.booleans(), st.integers(0, 200)), max_size=3),
)
forget_host = st.tuples(st.just("gone"), hosts)
put_lease = st.tuples(
    st.just("lease"),
    st.integers(0, 5),
    st.lists(st.tuples(hosts, st.integers(0, 2)), min_size=1, max_size=2, unique=True),
    st.integers(0, 900),
)
end_lease = st.tuples(st.just("end"), st.integers(0, 5))


@given(st.lists(st.one_of(put_host, forget_host, put_lease, end_lease), max_size=30))
def test_counts_of_the_fleet_are_those_of_all_its_hosts(changes: list[tuple[object, ...]]) -> None:
    fleet = Fleet()
    for change in changes:
        match change:
            case ("host", str() as name, HostState() as state, list() as devices):
                views = [
                    device_view(name, at, health=health, drained=drained, used=used)
                    for at, (health, drained, used) in enumerate(devices)
                ]
                fleet.put_host(host_view(name, *views, state=state), 10.0)
            case ("gone", str() as name):
                fleet.forget_host(name)
            case ("lease", int() as number, list() as places, int() as memory_mib):
                fleet.put_lease(lease(f"l{number}", *places, memory_mib=memory_mib), None)
            case ("end", int() as number):
                fleet.end_lease(f"l{number}")
    assert fleet.counts() == recounted(fleet)
    page = fleet.page(FleetQuery(limit=200))
    assert page.total == len(page.items) == fleet.counts().get("hosts", 0)


jobs = st.tuples(
    st.integers(0, 9),
    st.sampled_from([Step.RECEIVED, Step.WAITING, Step.RUNNING, Step.ENDED]),
    st.sampled_from(["f", "g"]),
    st.integers(0, 5),
    st.booleans(),
)


@given(
    st.lists(jobs, max_size=40),
    st.sampled_from([None, "WAITING", "live", "over"]),
    st.sampled_from([None, "f"]),
    st.sampled_from(["", "j1", "g"]),
    st.integers(1, 4),
)
def test_pages_of_jobs_are_the_matching_jobs_newest_first(
    changes: list[tuple[int, Step, str, int, bool]],
    state: str | None,
    function: str | None,
    text: str,
    limit: int,
) -> None:
    found, known = Jobs(), dict[str, JobSummary]()
    for number, step, name, received, forgotten in changes:
        job = f"j{number}"
        if forgotten:
            assert found.forget(job) is (known.pop(job, None) is not None)
            continue
        outcome = "FAILED" if step is Step.ENDED else None
        new = summary_of(
            record(job, step=step, outcome=outcome, function=name, received_s=received)
        )
        found.put(new)
        known[job] = found.get(job) or new
    assert found.counts() == dict(sorted(Counter(one.state for one in known.values()).items()))
    listed, after = list[object](), None
    while True:
        query = JobQuery(state=state, function=function, text=text, limit=limit, after=after)
        page = found.page(query, lambda one: one)
        assert len(page.items) <= limit
        listed += page.items
        after = page.next
        if after is None:
            break
    expected = [
        one
        for one in sorted(known.values(), key=lambda one: one.order, reverse=True)
        if (
            state in (None, one.state)
            or (state in ("live", "over") and one.over is (state == "over"))
        )
        and function in (None, one.function)
        and one.matches(text)
    ]
    assert listed == expected
    if page.total is not None:
        assert page.total == len(expected)


@given(st.integers(1, 30), st.integers(1, 7))
def test_every_host_is_on_one_page(count: int, limit: int) -> None:
    fleet = Fleet()
    for number in range(count):
        fleet.put_host(host_view(f"h{number:02}", device_view(f"h{number:02}", 0)), 1.0)
    names, after = list[str](), None
    while True:
        page = fleet.summaries(FleetQuery(limit=limit, after=after))
        names += [getattr(one, "host", "") for one in page.items]
        after = page.next
        if after is None:
            break
    assert names == [f"h{number:02}" for number in range(count)]
