"""Runs of a workflow over real HTTP: what is listed and shown, to whom, and what may be changed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from contract.result import Result
from contract.run import (
    cancel_key,
    retry_key,
    run_key,
    run_result_key,
    started_key,
    step_job_id,
)
from contract.states import RunState, StepState
from corekit.decode import encode_json
from corekit.values import replace
from gpu_scheduler.promises import Slo
from orchgpu.core.routing import InputEvent
from orchgpu.core.runs.newest import newest_key
from orchgpu.core.runs.records import EndedStep, Frozen, RunResult
from orchgpu.core.runs.workflow import Feed, Workflow, WorkflowStep
from tests.integration.web.conftest import STATE, Site

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUN, OVER = "r" + "a" * 25, "r" + "b" * 25


def film(site: Site) -> Workflow:
    """Its first step is the function of the site; its second one is not deployed."""
    return Workflow(
        name="film",
        revision="1",
        queue_url=site.function.completion_url,
        dead_letter_url=site.function.dead_letter_url,
        bucket="middle",
        input_bucket="inputs",
        steps=(
            WorkflowStep(name="f"),
            WorkflowStep(name="g", feeds=(Feed(step="f", bucket="outputs", prefix="hits"),)),
        ),
    )


def frozen(workflow: Workflow, run: str, at_s: float) -> Frozen:
    source = InputEvent(
        bucket="inputs",
        key="a.mp4",
        version_id="v",
        etag="e",
        size=1,
        event_name="ObjectCreated:Put",
        event_time="2026-11-22T10:00:00Z",
    )
    return Frozen(run=run, workflow=workflow, input=source, stored_at_s=at_s, frozen_at_s=at_s)


def done(job: str) -> Result:
    return Result(
        job_id=job,
        state="SUCCEEDED",
        reason="NONE",
        attempt=1,
        nonce="",
        exit_code=0,
        files=[],
        times={"EStart": 110.0, "EEnd": 113.0},
        log_tail="",
        device={"kind": "cuda", "host": "h"},
        ended_at_s=114.0,
    )


SLO = Slo(latency_s=60.0, cost_usd=0.5)


async def put(site: Site, bucket: str, key: str, body: bytes) -> None:
    await site.cloud(lambda s3: s3.put_object(Bucket=bucket, Key=key, Body=body))


@pytest_asyncio.fixture(loop_scope="module", scope="module", autouse=True)
async def _runs(site: Site) -> AsyncIterator[None]:
    """One run whose first step runs, and one that ended."""
    workflow = film(site)
    await put(site, STATE, "workflows/film.json", encode_json(workflow))
    for run, at_s in ((RUN, 200.0), (OVER, 100.0)):
        await put(site, "middle", newest_key("film", run, at_s), b"{}")
        of = workflow if run == RUN else replace(workflow, slo=SLO)
        await put(site, "middle", run_key(run), encode_json(frozen(of, run, at_s)))
        await put(site, "middle", started_key(run, 0, "f"), b"{}")
    job = step_job_id(OVER, "f")
    await put(site, "middle", f"results/{job}.json", done(job).to_json())
    ended = RunResult(
        run=OVER,
        workflow="film",
        state=RunState.SUCCEEDED,
        reason="NONE",
        detail="",
        retries=0,
        started_at_s=100.0,
        ended_at_s=115.0,
        steps=(
            EndedStep(name="f", state=StepState.DONE, jobs=1),
            EndedStep(name="g", state=StepState.SKIPPED),
        ),
        cost_usd=0.75,
    )
    await put(site, "middle", run_result_key(OVER), encode_json(ended))
    yield
    await site.cloud(lambda s3: s3.delete_object(Bucket=STATE, Key="workflows/film.json"))


async def test_a_workflow_has_its_runs(site: Site) -> None:
    async with site.browser("op") as browser:
        assert (await browser.get("/api/functions/f"))["workflow"] == "film"
        items = (await browser.get("/api/workflows/film/runs"))["items"]
        shown = [(one["run"], one["state"], one["steps_ended"], one["ended_s"]) for one in items]
        assert shown == [(RUN, "RUNNING", 0, None), (OVER, "SUCCEEDED", 2, 115.0)]
        status, value, _ = await browser.ask("GET", "/api/workflows/none/runs")
        assert (status, value["error"]["code"]) == (404, "not_found")


async def test_a_run_has_its_steps_its_jobs_and_its_graph(site: Site) -> None:
    async with site.browser("op") as browser:
        run = await browser.get(f"/api/runs/{OVER}")
        first, second = run["steps"]
        assert (first["state"], first["seconds"], first["device"]) == ("DONE", 3.0, "cuda on h")
        assert [job["key"] for job in first["jobs"]] == ["a.mp4"]
        assert (second["state"], second["jobs"]) == ("SKIPPED", [])
        assert run["edges"] == [{"from": "f", "to": "g"}]
        assert run["promise"] == "slo missed COST: 15.0 s of 60 s, 0.75 of 0.5 USD"
        assert (await browser.get(f"/api/runs/{RUN}"))["promise"] is None
        assert run["may_change"]
        for wrong in ("r" + "0" * 25, "r0", "<b>"):
            assert (await browser.ask("GET", f"/api/runs/{wrong}"))[0] == 404


async def test_a_run_is_shown_to_keys_of_its_functions_alone(site: Site) -> None:
    async with site.browser("other") as other:
        for path in (f"/api/runs/{OVER}", "/api/workflows/film/runs"):
            assert (await other.ask("GET", path))[0] == 403
    async with site.browser("reader") as reader:
        status, value, _ = await reader.ask("POST", f"/api/runs/{RUN}/cancel", {})
        assert (status, value["error"]["needs"]) == (403, "requester")


async def test_a_run_is_cancelled_and_another_runs_again(site: Site) -> None:
    def keys(s3: Any) -> list[str]:
        return [one["Key"] for one in s3.list_objects_v2(Bucket="middle")["Contents"]]

    async with site.browser("op") as browser:
        status, value, _ = await browser.ask("POST", f"/api/runs/{OVER}/retry", {})
        assert (status, value["error"]["code"]) == (400, "invalid"), "it succeeded"
        assert (await browser.ask("POST", f"/api/runs/{RUN}/cancel", {}))[0] == 200
        assert cancel_key(RUN) in await site.cloud(keys)
        ended = json.loads(await site.cloud(lambda s3: _body(s3, run_result_key(OVER))))
        ended = {**ended, "state": "FAILED", "reason": "EXIT_NONZERO"}
        await put(site, "middle", run_result_key(OVER), json.dumps(ended).encode())
        assert (await browser.ask("POST", f"/api/runs/{OVER}/retry", {}))[0] == 200
        assert retry_key(OVER, 1) in await site.cloud(keys)


def _body(s3: Any, key: str) -> bytes:
    found: bytes = s3.get_object(Bucket="middle", Key=key)["Body"].read()
    return found


async def test_a_file_for_the_first_step_starts_a_run(site: Site) -> None:
    async with site.browser("op") as browser:
        shown = await browser.get("/api/functions/f")
        assert shown["may_upload"]
        status, value, _ = await browser.ask("PUT", "/api/functions/f/files/b.mp4", b"film")
        assert (status, value["key"]) == (201, "b.mp4")
        assert value["run"].startswith("r")
