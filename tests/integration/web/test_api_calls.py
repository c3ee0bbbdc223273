"""Calls of endpoints over real HTTP, until the endpoint would answer: no host is here."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import pytest_asyncio

from corekit.decode import encode
from corekit.values import replace
from orchgpu.core.function import HostRun
from remote_gpu.wire.calls import CALL_BYTES_MAX
from tests.integration.web.conftest import STATE, Site, asked
from tests.integration.web.programs import inputs, program, put, receive

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/functions/called/calls"


@pytest_asyncio.fixture(loop_scope="module")
async def _deployed(site: Site) -> None:
    run = HostRun(package_bucket=STATE, package_key="p.zip", call_s=5.0)
    function = replace(site.function, name="called", execution="host", host=run, input_prefix="c")
    await put(site, STATE, "functions/called.json", json.dumps(encode(function)).encode())


async def test_what_is_no_endpoint_or_not_for_the_caller_is_refused(site: Site) -> None:
    async with program(site, "lab") as lab, program(site, "other") as other:
        status, found, _ = await lab.ask("POST", "/v1/functions/f/calls", b"x")
        assert (status, found["error"]["code"]) == (400, "invalid")
        assert "endpoint: true" in found["error"]["message"]
        assert (await lab.ask("POST", "/v1/functions/nothing/calls", b"x"))[0] == 404
        assert (await other.ask("POST", "/v1/functions/f/calls", b"x"))[0] in (403, 404)
        assert (await lab.ask("POST", f"{PATH}?name=a/b", b"x"))[0] in (400, 404)


@pytest.mark.usefixtures("_deployed")
async def test_the_first_call_opens_it_by_one_job_whose_end_is_the_answer(site: Site) -> None:
    async with program(site, "lab") as lab, program(site, "other") as other:
        found: Any = {"error": {"details": {}}}
        while "job" not in found["error"]["details"]:
            status, found, headers = await lab.ask("POST", f"{PATH}?wait=0.1", b"x")
            assert (status, headers["Retry-After"]) == (503, "2")
        assert found["error"]["code"] == "unavailable"
        assert "nothing was called" in found["error"]["message"]
        status, again, _ = await lab.ask("POST", f"{PATH}?wait=0", b"x")
        assert (status, again["error"]["details"]) == (503, found["error"]["details"])
        (stored,) = await inputs(site, "c/endpoint-")
        head = await site.cloud(lambda s3: s3.head_object(Bucket="inputs", Key=stored["Key"]))
        assert head["Metadata"]["orchgpu-endpoint"] == "1"
        job = await lab.get(f"/v1/jobs/{found['error']['details']['job']}")
        assert (job["function"], job["state"]) == ("called", "QUEUED")
        too_large = io.BytesIO(bytes(CALL_BYTES_MAX + 1))
        assert (await lab.ask("POST", PATH, too_large))[0] == 422
        assert (await other.ask("POST", PATH, b"x"))[0] == 403
        await _failed(site, job)
        status, found, _ = await lab.ask("POST", PATH, b"x")
        assert (status, found["error"]["code"]) == (503, "unavailable")
        assert f"{job['id']} ended as FAILED" in found["error"]["message"]


async def _failed(site: Site, job: Any) -> None:
    async with site.orchestrator() as peer:
        await receive(site, peer, job)
        answer = await asked(
            peer, op="finish", holder=job["id"], outcome="FAILED", reason="SCRIPT_ERROR"
        )
        assert "ok" in answer, answer
