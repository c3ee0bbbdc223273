"""Notices of the ends of jobs and runs, on virtual time: targets that fail, replicas that die."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from contract.run import retry_key
from corekit.aio.supervise import Nursery
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from orchgpu.core.notify import Target
from orchgpu.core.runs.messages import advance_body
from orchgpu.core.runs.records import Retry
from orchgpu.replica.notices import IN_HAND_MAX
from simulator.faults.memory_cloud import Faults
from tests.unit.orchgpu.runs.run_bench import Bench, on_virtual_time
from tests.unit.orchgpu.runs.run_world import BUCKET, step
from tests.unit.orchgpu.runs.test_replica_runs import parts

FILM = (step("cut"), step("small", "cut", each=True), step("table", "small"))
HOOK = Target(webhook="https://hooks.example/x", secret="ssm:/hook")
TOPIC = Target(topic="arn:aws:sns:eu-west-1:123456789012:ends")
QUEUE = Target(queue="ends")
COUNT = 6
JOBS = COUNT + 2


class Receivers:
    """A `NoticeSender` in memory: targets that answer, or do not, as a test has it."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.published: list[dict[str, Any]] = []
        self.dead = False  #: no webhook answers
        self.broken = False  #: no address of a webhook can be read
        self.gone = False  #: no webhook wants more
        self.tries = 0
        self.at_once = 0
        self.most_at_once = 0

    async def publish(self, topic: str, body: str) -> None:
        assert topic == TOPIC.topic
        self.published.append(json.loads(body))

    async def post(self, url: str, body: str, headers: Mapping[str, str], within_s: float) -> None:
        assert url == HOOK.webhook
        self.tries += 1
        if self.broken:
            raise UnicodeError("label empty")
        if self.gone:
            raise AppError(ErrorCode.UNAVAILABLE, "https://hooks.example answered 410", gone=True)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await asyncio.sleep(within_s if self.dead else 0.01)
        finally:
            self.at_once -= 1
        if self.dead:
            raise AppError(ErrorCode.TIMEOUT, "https://hooks.example: no answer")
        self.posts.append(json.loads(body))
        self.headers.append(headers)

    async def secret(self, reference: str) -> bytes:
        assert reference == HOOK.secret
        return b"key"


def prepared(bench: Bench, jobs: tuple[Target, ...], runs: tuple[Target, ...]) -> Receivers:
    bench.notify, bench.flow = jobs, replace(bench.flow, notify=runs)
    bench.notices = receivers = Receivers()
    bench.cloud.queues.create(0.0, "ends", {})
    return receivers


async def sent_to_queue(bench: Bench, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        messages = await bench.queue.receive(
            "http://sqs/ends", count_max=10, wait_s=1, visibility_s=43200
        )
        found += [json.loads(one.body) for one in messages]
    return found


async def until(look: Any, within_s: float = 3600.0) -> None:
    async with asyncio.timeout(within_s):
        while not look():  # noqa: ASYNC110 – on virtual time
            await asyncio.sleep(0.5)


def test_each_target_is_notified_of_every_job_and_of_the_run() -> None:
    async def test(bench: Bench) -> None:
        receivers = prepared(bench, (HOOK, QUEUE), (TOPIC, QUEUE))
        await bench.replica(bench.nursery)
        run = await bench.upload()
        await bench.end_of(run)
        await until(lambda: len(receivers.posts) == JOBS and receivers.published)
        jobs = {one["data"]["job"]: one["data"] for one in receivers.posts}
        assert set(jobs) == set(bench.commits)
        assert Counter(one["step"] for one in jobs.values()) == {"cut": 1, "small": 6, "table": 1}
        assert {one["state"] for one in jobs.values()} == {"SUCCEEDED"}
        assert all(one["result"]["job_id"] == job for job, one in jobs.items())
        assert {one["webhook-id"] for one in receivers.headers} == {
            one["id"] for one in receivers.posts
        }
        assert all("webhook-signature" in one for one in receivers.headers)
        [ended] = receivers.published
        assert (ended["type"], ended["data"]["run"], ended["data"]["state"]) == (
            "run.ended",
            run,
            "SUCCEEDED",
        )
        assert ended["data"]["result"]["files"][0]["key"] == "table/table.csv"
        kinds = Counter(one["type"] for one in await sent_to_queue(bench, JOBS + 1))
        assert kinds == {"job.ended": JOBS, "run.ended": 1}

    on_virtual_time(FILM, partial(parts, COUNT), test)


def test_a_target_may_take_events_of_cloudevents() -> None:
    async def test(bench: Bench) -> None:
        hook = replace(HOOK, format="cloudevents")
        receivers = prepared(bench, (hook,), (replace(TOPIC, format="cloudevents"),))
        await bench.replica(bench.nursery)
        await bench.end_of(await bench.upload())
        await until(lambda: len(receivers.posts) == JOBS and receivers.published)
        assert {one["type"] for one in receivers.posts} == {"orchgpu.job.succeeded"}
        assert {one["webhook-id"] for one in receivers.headers} == {
            one["id"] for one in receivers.posts
        }
        kinds = {one["content-type"] for one in receivers.headers}
        assert kinds == {"application/cloudevents+json"}
        assert receivers.published[0]["type"] == "orchgpu.run.succeeded"

    on_virtual_time(FILM, partial(parts, COUNT), test)


def test_a_failed_job_and_run_are_ends_too() -> None:
    async def test(bench: Bench) -> None:
        receivers = prepared(bench, (HOOK,), (TOPIC,))
        await bench.replica(bench.nursery)
        await bench.end_of(await bench.upload())
        await until(lambda: receivers.posts and receivers.published)
        assert [one["data"]["state"] for one in receivers.posts] == ["FAILED"]
        assert [one["data"]["state"] for one in receivers.published] == ["FAILED"]

    on_virtual_time(FILM, lambda _: None, test)


def test_a_dead_webhook_holds_no_job_and_is_notified_when_it_is_back() -> None:
    async def test(bench: Bench) -> None:
        receivers = prepared(bench, (HOOK,), (HOOK, TOPIC))
        receivers.dead = True
        replica = await bench.replica(bench.nursery)
        await bench.upload()
        await until(lambda: receivers.published, within_s=60.0)
        await until(lambda: receivers.tries > 3 * JOBS)
        assert not receivers.posts
        receivers.dead = False
        await until(lambda: len(receivers.posts) == JOBS + 1)
        assert len({one["id"] for one in receivers.posts}) == JOBS + 1
        counts = replica.metrics.notices
        assert counts["table", "failed"] > 0
        assert counts["table", "delivered"] == 1

    on_virtual_time(FILM, partial(parts, COUNT), test)


def test_a_webhook_that_never_answers_is_given_up() -> None:
    async def test(bench: Bench) -> None:
        receivers = prepared(bench, (HOOK,), (HOOK,))
        receivers.dead = True
        bench.budget = dataclasses.replace(bench.budget, notice_age_s_max=900.0)
        replica = await bench.replica(bench.nursery)
        await bench.upload()
        counts = replica.metrics.notices
        await asyncio.sleep(800.0)
        assert not sum(n for (_, outcome), n in counts.items() if outcome == "dropped")
        assert receivers.tries < 20 * (JOBS + 1), "pauses grow"
        await asyncio.sleep(900.0)
        dropped = sum(n for (_, outcome), n in counts.items() if outcome == "dropped")
        assert dropped == JOBS + 1
        tries = receivers.tries
        await asyncio.sleep(600.0)
        assert receivers.tries == tries

    on_virtual_time(FILM, partial(parts, COUNT), test)


def test_a_webhook_that_cannot_be_called_is_given_up_too() -> None:
    async def test(bench: Bench) -> None:
        receivers = prepared(bench, (), (HOOK,))
        receivers.broken = True
        bench.budget = dataclasses.replace(bench.budget, notice_age_s_max=900.0)
        replica = await bench.replica(bench.nursery)
        await bench.upload()
        await until(lambda: ("films", "dropped") in replica.metrics.notices)

    on_virtual_time(FILM, partial(parts, COUNT), test)


def test_a_webhook_that_wants_no_more_is_tried_once_for_each_end() -> None:
    async def test(bench: Bench) -> None:
        receivers = prepared(bench, (), (HOOK,))
        receivers.gone = True
        replica = await bench.replica(bench.nursery)
        await bench.upload()
        await until(lambda: ("films", "dropped") in replica.metrics.notices)
        assert receivers.tries == 1

    on_virtual_time(FILM, partial(parts, COUNT), test)


def test_a_notice_that_a_retry_overtakes_is_of_the_end_before_it() -> None:
    repaired: list[bool] = []

    async def test(bench: Bench) -> None:
        receivers = prepared(bench, (), (HOOK, TOPIC))
        receivers.dead = True
        await bench.replica(bench.nursery)
        run = await bench.upload()
        await until(lambda: len(receivers.published) == 1)
        repaired.append(True)
        retry = Retry(at_s=bench.clock.wall_s())
        await bench.store.put(BUCKET, retry_key(run, 1), retry.to_json())
        await bench.queue.send(bench.flow.queue_url, [advance_body(run)])
        await until(lambda: len(receivers.published) == 2 and not receivers.at_once)
        assert not receivers.posts
        receivers.dead = False
        await until(lambda: len(receivers.posts) == 2)
        shown = {one["data"]["state"]: one for one in receivers.posts}
        assert set(shown) == {"FAILED", "SUCCEEDED"}
        failed = shown["FAILED"]["data"]["result"]
        assert (failed["reason"], failed["retries"], failed["files"]) == ("EXIT_NONZERO", 0, [])
        assert {one["id"] for one in receivers.posts} == {one["id"] for one in receivers.published}

    on_virtual_time(FILM, lambda job: parts(COUNT, job) if repaired else None, test)


def test_a_dead_webhook_has_few_requests_at_once() -> None:
    async def test(bench: Bench) -> None:
        receivers = prepared(bench, (HOOK, QUEUE), ())
        receivers.dead = True
        await bench.replica(bench.nursery)
        await bench.end_of(await bench.upload())
        await sent_to_queue(bench, 102)
        assert receivers.most_at_once <= IN_HAND_MAX
        receivers.dead = False
        await until(lambda: len({one["id"] for one in receivers.posts}) == 102)

    on_virtual_time(FILM, partial(parts, 100), test)


def test_a_target_that_was_taken_out_is_left_out() -> None:
    async def test(bench: Bench) -> None:
        receivers = prepared(bench, (HOOK,), ())
        receivers.dead = True
        with contextlib.suppress(TimeoutError):
            async with Nursery("replica") as nursery:
                await bench.replica(nursery)
                await bench.end_of(await bench.upload())
                raise TimeoutError  # killed
        bench.notify = (QUEUE,)
        replica = await bench.replica(bench.nursery)
        await until(lambda: sum(replica.metrics.notices.values()) >= JOBS)
        assert {outcome for _, outcome in replica.metrics.notices} == {"dropped"}

    on_virtual_time(FILM, partial(parts, COUNT), test)


@pytest.mark.parametrize("seed", range(6))
def test_no_end_is_lost_while_replicas_die_and_the_cloud_fails(seed: int) -> None:
    async def test(bench: Bench) -> None:
        stream = random.Random(seed)
        receivers = prepared(bench, (HOOK,), (TOPIC,))
        run = await bench.upload()
        for _ in range(8):
            faults = Faults(rate=0.05, stream=random.Random(stream.random()), delay_s_max=0.05)

            async def live(weather: Faults = faults) -> None:
                async with Nursery("replica") as nursery:
                    await bench.replica(nursery, weather)
                    await asyncio.sleep(stream.uniform(0.1, 6.0))
                    raise TimeoutError  # killed

            with contextlib.suppress(AppError, TimeoutError):
                await live()
        await bench.replica(bench.nursery)
        await bench.end_of(run)
        await until(lambda: {one["data"]["job"] for one in receivers.posts} == set(bench.commits))
        await until(lambda: receivers.published)
        assert len({one["id"] for one in receivers.posts}) == len(bench.commits)
        assert len({one["id"] for one in receivers.published}) == 1

    on_virtual_time(FILM, partial(parts, COUNT), test)
