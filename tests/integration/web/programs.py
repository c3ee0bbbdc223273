"""A program that calls the console's API, and the orchestrator's part in its jobs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from contract.keys import OUTPUT_JOB
from tests.history_records import job_result
from tests.integration.ssgmd.conftest import Peer
from tests.integration.web.conftest import Site, asked, job_known, until


@dataclass
class Program:
    """One program with its key."""

    http: aiohttp.ClientSession
    url: str

    async def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, JSON or bytes, and headers; `body`: bytes, or a form of aiohttp."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.request(method, self.url + path, data=body, headers=sent) as answer:
            content = await answer.read()
            is_json = answer.content_type == "application/json" and answer.status != 206
            return answer.status, json.loads(content) if is_json else content, answer.headers

    async def submit(self, body: bytes = b"content", query: str = "", **headers: str) -> Any:
        """The job of a request that must be taken."""
        status, job, _ = await self.ask("POST", f"/v1/functions/f/jobs{query}", body, **headers)
        assert status in (200, 202), job
        return job

    async def get(self, path: str) -> Any:
        status, value, _ = await self.ask("GET", path)
        assert status == 200, value
        return value


@contextlib.asynccontextmanager
async def program(site: Site, key: str | None, url: str = "") -> AsyncIterator[Program]:
    headers = {} if key is None else {"Authorization": f"Bearer {site.keys.get(key, key)}"}
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as http:
        yield Program(http, url or site.url)


async def receive(site: Site, peer: Peer, job: Mapping[str, Any], *, count: int = 1) -> None:
    """The orchestrator opens an attempt of a job that was submitted; of none: without a device."""
    bucket, _, key = job["input"].removeprefix("s3://").partition("/")
    source = {
        "bucket": bucket,
        "key": key,
        "event_name": "ObjectCreated:Put",
        "event_time": "2026-11-22T10:00:00Z",
        "version_id": None,
        "etag": "e",
        "size": 1,
    }
    answer = await asked(
        peer,
        op="attempt",
        holder=job["id"],
        n=1,
        revision=0,
        handle="no-handle",
        request={"sharing": "exclusive", "tenant": "lab", "kinds": ["cuda"], "count": count},
        block={"function": "f", "input": source},
    )
    assert "ok" in answer, answer
    await until(lambda: job_known(site, job["id"]))


async def end(
    site: Site, peer: Peer, job: str, outputs: Mapping[str, bytes], state: str = "SUCCEEDED"
) -> None:
    """The runner stores outputs and the result, and the orchestrator finishes the job."""
    files = []
    for name, body in outputs.items():
        key = f"hits/{name}"
        await put(site, "outputs", key, body, job)
        files.append({"bucket": "outputs", "key": key, "size": len(body), "sha256": ""})
    result = job_result(
        job_id=job,
        state=state,
        attempt=1,
        files=files,
        times={"EStart": 1.0, "EEnd": 2.0, "committed": 3.0},
        log_tail="the last line",
        ended_at_s=9.0,
    )
    await put(site, "middle", f"results/{job}.json", result.to_json())
    answer = await asked(peer, op="finish", holder=job, outcome=state, reason="NONE")
    assert "ok" in answer, answer


async def put(site: Site, bucket: str, key: str, body: bytes, job: str | None = None) -> None:
    of = {} if job is None else {OUTPUT_JOB: job}
    await site.cloud(lambda s3: s3.put_object(Bucket=bucket, Key=key, Body=body, Metadata=of))


async def inputs(site: Site, beginning: str = "") -> Sequence[Any]:
    """Every version of every input that begins so."""
    found = await site.cloud(lambda s3: s3.list_object_versions(Bucket="inputs", Prefix=beginning))
    return list(found.get("Versions", ()))


async def curl(*arguments: str, sent: bytes = b"") -> tuple[int, bytes]:
    """Status and body of a request by curl, which any shell has."""
    child = await asyncio.create_subprocess_exec(
        *("curl", "-sS", "-w", "\n%{http_code}", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await child.communicate(sent)
    body, _, status = out.rpartition(b"\n")
    return int(status), body
