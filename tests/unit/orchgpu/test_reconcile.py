"""The reconciler: the uploads that it looks for, the times of its passes, and a replica's work."""

from __future__ import annotations

import asyncio
import json
import random
from itertools import pairwise

import pytest

from contract.keys import job_id, result_key
from corekit.budget import Budget
from corekit.values import replace
from orchgpu.core.reconcile import Cursor, Interval, ObjectVersion, Passes, uploads
from orchgpu.core.routing import InputEvent, classify
from tests.unit.orchgpu.jobs import FUNCTION
from tests.unit.orchgpu.test_replica import Bench, played

BUDGET = Budget()
DEPLOYED_S = 1_700_000_000.0
DEPLOYED = replace(FUNCTION, deployed_at_s=DEPLOYED_S, input_prefix="seqs", input_suffixes=(".fa",))
ALWAYS = Interval(since_s=0.0, until_s=2e9)


def version(key: str, modified_s: float = DEPLOYED_S, name: str | None = "v") -> ObjectVersion:
    return ObjectVersion(key=key, version_id=name, etag="e", size=1, modified_s=modified_s)


@pytest.mark.parametrize(
    ("key", "starts"),
    [
        ("seqs/a b+%ü.fa", True),
        ("seqs/deep/a.fa", True),
        ("seqs/a.txt", False),
        ("seqs2/a.fa", False),
        ("a.fa", False),
        ("seqs/folder.fa/", False),
    ],
)
def test_an_upload_is_one_that_the_trigger_matches(key: str, starts: bool) -> None:
    found = uploads(DEPLOYED, [version(key)], ALWAYS)
    assert [one.key for one in found] == ([key] if starts else [])


def test_a_message_names_the_job_of_the_event() -> None:
    (found,) = uploads(DEPLOYED, [version("seqs/a b+%ü.fa")], ALWAYS)
    event = classify(found.body, DEPLOYED)
    assert isinstance(event, InputEvent)
    assert (event.key, event.version_id) == ("seqs/a b+%ü.fa", "v")
    assert found.job == job_id("in", "seqs/a b+%ü.fa", "v", "search")


def test_an_unversioned_upload_is_named_by_etag_and_date() -> None:
    (found,) = uploads(DEPLOYED, [version("seqs/a.fa", name=None)], ALWAYS)
    assert found.job == job_id("in", "seqs/a.fa", "e@2023-11-14T22:13:20+00:00", "search")
    assert "versionId" not in json.loads(found.body)["Records"][0]["s3"]["object"]


@pytest.mark.parametrize(
    ("modified_s", "considered"), [(9, False), (10, True), (20, True), (21, False)]
)
def test_an_interval_includes_both_ends(modified_s: float, considered: bool) -> None:
    one = version("seqs/a.fa", modified_s)
    found = uploads(DEPLOYED, [one], Interval(since_s=10.0, until_s=20.0))
    assert bool(found) is considered


# ---------------------------------------------------------------------- times


def passes(at_s: float = 0.0, after_deploy_s: float = 1e6) -> Passes:
    """At time `at_s` the function was deployed so long ago."""
    wall_s = DEPLOYED_S + after_deploy_s
    return Passes(DEPLOYED, BUDGET, random.Random(1), at_s=at_s, wall_s=wall_s)


def due_times(of: Passes, until_s: float, after_deploy_s: float) -> list[float]:
    """The times of the passes, to 10 s."""
    found, at_s = [], 0.0
    while at_s < until_s:
        if of.due(at_s):
            interval = of.interval(at_s, DEPLOYED_S + after_deploy_s + at_s, backlog=0)
            assert interval is not None
            of.passed(interval, None, at_s)
            found.append(at_s)
        at_s += 10.0
    return found


def test_passes_begin_at_start_and_every_quarter_of_an_hour() -> None:
    times = due_times(passes(), 3600.0, 1e6)
    assert times[0] == 0.0
    assert all(700 <= b - a <= 1100 for a, b in pairwise(times))
    assert len(times) in (4, 5)


def test_passes_follow_each_other_closely_after_a_deploy() -> None:
    young = due_times(passes(after_deploy_s=0.0), 600.0, 0.0)
    assert len(young) in (8, 9, 10, 11, 12)
    again = passes()
    assert due_times(again, 100.0, 1e6) == [0.0]
    again.changed(replace(DEPLOYED, revision="2"), 100.0)
    assert not again.due(100.0)
    assert again.due(160.0)


def test_an_upload_is_considered_when_it_is_old_enough_and_newer_than_the_deploy() -> None:
    found = passes(after_deploy_s=500.0).interval(0.0, DEPLOYED_S + 500.0, backlog=0)
    assert found == Interval(since_s=DEPLOYED_S, until_s=DEPLOYED_S + 440.0)


def test_no_upload_older_than_a_message_can_be_is_considered() -> None:
    later_s = 30 * 86400.0
    found = passes(after_deploy_s=later_s).interval(0.0, DEPLOYED_S + later_s, backlog=0)
    assert found is not None
    assert found.since_s == DEPLOYED_S + 16 * 86400.0


def test_the_next_pass_begins_a_day_before_the_end_of_the_last() -> None:
    of, wall_s = passes(), DEPLOYED_S + 10 * 86400.0
    first = of.interval(0.0, wall_s, backlog=0)
    assert first is not None
    of.passed(first, None, 0.0)
    second = of.interval(900.0, wall_s + 900.0, backlog=0)
    assert second is not None
    assert second.since_s == first.until_s - 86400.0


def test_a_pass_waits_for_an_empty_queue_but_not_for_ever() -> None:
    of, wall_s = passes(), DEPLOYED_S + 1e6
    assert of.interval(0.0, wall_s, backlog=5) is None
    assert not of.due(30.0)
    assert of.due(60.0)
    assert of.interval(3599.0, wall_s, backlog=5) is None
    assert of.interval(3600.0, wall_s, backlog=5) is not None


def test_a_long_listing_continues_where_it_ended() -> None:
    of, cursor = passes(), Cursor(key="seqs/m.fa", version_id="v")
    first = of.interval(0.0, DEPLOYED_S + 1e6, backlog=0)
    assert first is not None
    of.passed(first, cursor, 0.0)
    assert of.interval(900.0, DEPLOYED_S + 1e6 + 900.0, backlog=0) == replace(first, after=cursor)


def test_each_upload_is_looked_for_once() -> None:
    of = passes()
    (upload,) = uploads(DEPLOYED, [version("seqs/a.fa")], ALWAYS)
    assert of.unsettled([upload]) == [upload]
    of.settle(upload)
    assert of.unsettled([upload]) == []
    of.passed(Interval(since_s=0.0, until_s=DEPLOYED_S + 2 * 86400.0), None, 0.0)
    assert of.unsettled([upload]) == [upload]  # forgotten: no later pass goes back so far


def test_a_function_deployed_by_an_older_version_is_left_out() -> None:
    of = Passes(FUNCTION, BUDGET, random.Random(1), at_s=0.0, wall_s=DEPLOYED_S)
    assert not of.due(0.0)


def test_a_failed_pass_begins_again_soon() -> None:
    of = passes()
    of.failed(0.0)
    assert not of.due(59.0)
    assert of.due(60.0)


# ---------------------------------------------------------------------- a replica


def test_an_upload_without_an_event_gets_exactly_one_result() -> None:
    """The first upload is older than the deploy; the second one's event never came."""

    async def story(bench: Bench) -> None:
        deployed_at_s = bench.clock.wall_s() + 5.0
        bench.registry.deployed = {"search": replace(FUNCTION, deployed_at_s=deployed_at_s)}
        await bench.upload(0)
        await bench.store.put("in", "before", b"input")
        await asyncio.sleep(10.0)
        await bench.store.put("in", "lost", b"input")
        await bench.replica.start()
        await asyncio.sleep(4 * 3600.0)  # it is settled, and later passes do not reach it
        known = await bench.store.head("in", "lost")
        job = job_id("in", "lost", f"{known.etag}@{known.last_modified}", "search")
        assert list(await bench.store.etags("mid", "results/")) == [result_key(job)]
        assert bench.count("jobs") == (0, 0)
        assert bench.count("dlq") == (1, 0)  # its scheduler has no host: refused, once

    played(story, budget=replace(BUDGET, reconcile_overlap_s=3600.0))
