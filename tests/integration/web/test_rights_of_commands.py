"""Commands that change a job: a key that may not is refused before anything has changed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from corekit.errors import EXIT_STATUS, ErrorCode
from gpu_scheduler.client.access import KEY_VARIABLE
from tests.commandline import Done, done
from tests.integration.web.conftest import Site, asked
from tests.integration.web.test_web_routes import finished, put

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: A key's name, the key of the job's orchestrator, and what a cancel by the first one lacks.
REFUSED = [
    ("lab", "unbound", "an operator may cancel it"),
    ("other", "orchestrator", "an operator may cancel it"),
    ("labreader", "orchestrator", "needs a key of role requester"),
    ("reader", "orchestrator", "needs a key of role requester"),
]


async def command(site: Site, patch: pytest.MonkeyPatch, key: str, *words: str) -> Done:
    """The end of a command of `orchgpu` with the key of that name."""
    patch.setenv(KEY_VARIABLE, site.keys[key])
    arguments = [*words, "--scheduler", site.scheduler.daemon.socket]
    return await asyncio.to_thread(done, arguments)


async def results(site: Site) -> str:
    """The keys of all results."""
    listed = await site.cloud(lambda s3: s3.list_objects_v2(Bucket="middle", Prefix="results/"))
    return json.dumps([one["Key"] for one in listed.get("Contents", [])])


async def messages(site: Site) -> int:
    """The number of messages in the job queue of the function."""

    def call(sqs: Any) -> int:
        name = "ApproximateNumberOfMessages"
        url = site.function.queue_url
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])
        return int(found["Attributes"][name])

    return int(await site.cloud(call, "sqs"))


@pytest.mark.parametrize(("key", "owner", "lacks"), REFUSED)
async def test_a_cancel_that_the_scheduler_would_refuse_writes_no_result(
    site: Site, monkeypatch: pytest.MonkeyPatch, key: str, owner: str, lacks: str
) -> None:
    async with site.orchestrator(owner) as peer:
        job = await site.begun(peer, f"cancel-{key}")
        refused = await command(site, monkeypatch, key, "cancel", job)
        assert (refused.exit_code, lacks in refused.stderr) == (
            EXIT_STATUS[ErrorCode.DENIED],
            True,
        ), refused.output
        assert job not in await results(site)
        await asked(peer, op="finish", holder=job, outcome="FAILED", reason="NONE")


@pytest.mark.parametrize("key", ["lab", "op"])
async def test_a_key_that_may_act_for_a_job_cancels_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    async with site.orchestrator() as peer:
        job = await site.begun(peer, f"cancelled-{key}")
        cancelled = await command(site, monkeypatch, key, "cancel", job)
        assert (cancelled.exit_code, cancelled.stdout) == (0, f"{job} CANCELLED\n")
        assert job in await results(site)


@pytest.mark.parametrize(
    ("key", "lacks"),
    [
        ("other", "an operator may run it again"),
        ("labreader", "needs a key of role requester"),
        ("lab", ""),
    ],
)
async def test_a_job_runs_again_by_a_key_that_may_change_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, key: str, lacks: str
) -> None:
    async with site.orchestrator() as peer:
        job = await site.begun(peer, f"retry-{key}", file="bad.txt")
        failed = finished(job, state="FAILED", reason="EXIT_NONZERO")
        await put(site, "middle", f"results/{job}.json", failed)
        await asked(peer, op="finish", holder=job, outcome="FAILED", reason="EXIT_NONZERO")
        before = await messages(site)
        again = await command(site, monkeypatch, key, "retry", job)
        assert lacks in again.stderr, again.output
        assert again.exit_code == (EXIT_STATUS[ErrorCode.DENIED] if lacks else 0), again.output
        assert await messages(site) == before + (not lacks)


@pytest.mark.parametrize(("key", "code"), [("other", ErrorCode.DENIED), ("lab", None)])
async def test_a_job_without_a_record_follows_the_tenant_of_its_function(
    site: Site, monkeypatch: pytest.MonkeyPatch, key: str, code: ErrorCode | None
) -> None:
    job = "j" + ("a" if code is None else "b") * 25  # its message waits in the queue
    ended = await command(site, monkeypatch, key, "cancel", job, "--function", "f")
    assert ended.exit_code == (0 if code is None else EXIT_STATUS[code]), ended.output
    assert (job in await results(site)) is (code is None)
