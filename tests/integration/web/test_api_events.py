"""The events of a job, and which pages of browsers may call the API."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from contract.keys import progress_key
from contract.progress import Progress
from corekit.budget import Budget
from corekit.errors import AppError
from gpu_scheduler.client.access import Access
from orchgpu.web import job_visits
from orchgpu.web.app import check_listen, running
from orchgpu.web.console import ConsoleSettings
from orchgpu.web.doors import SchedulerDoor
from orchgpu.web.stories import story_of
from tests.integration.ssgmd.conftest import serving
from tests.integration.web.conftest import Site, asked, until
from tests.integration.web.programs import Program, end, program, put, receive

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = "https://lab.example"


class Events:
    """An event stream that may break off."""

    def __init__(self, caller: Program, job: Any) -> None:
        self._caller = caller
        self._url = caller.url + job["links"]["events"]
        self.last = ""

    @contextlib.asynccontextmanager
    async def open(self, last: str | None = None) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
        """The events after the last one that was read."""
        self.last = self.last if last is None else last
        headers = {"Last-Event-ID": self.last} if self.last else {}
        async with self._caller.http.get(self._url, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.content_type == "text/event-stream"
            yield self._events(answer)

    async def _events(self, answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
        fields: dict[str, str] = {}
        async for raw in answer.content:
            name, _, value = raw.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "data" in fields:
                self.last = fields.get("id", self.last)
                yield fields["event"], json.loads(fields["data"])
                fields = {}


async def test_a_stream_continues_after_a_disconnect_until_the_end(site: Site) -> None:
    async with program(site, "lab") as lab, site.orchestrator() as peer, asyncio.timeout(60):
        job = await lab.submit()
        events = Events(lab, job)
        async with events.open() as stream:
            assert (await anext(stream))[1]["state"] == "QUEUED"
            await receive(site, peer, job)
            kind, value = await anext(stream)
            while kind != "line":
                assert value["state"] in ("RECEIVED", "WAITING", "RESERVED")
                kind, value = await anext(stream)
            first = value
        seen = []
        async with events.open() as stream:
            kind, value = await anext(stream)
            assert kind == "state", "the present one, first"
            await end(site, peer, job["id"], {"a.txt": b"1"})
            async for kind, value in stream:
                assert kind != "reset"
                seen.append((kind, value))
        assert seen[-1] == ("end", {})
        lines = [value["text"] for kind, value in seen if kind == "line"]
        assert first["text"] not in lines
        assert "the last line" in lines
        states = [value["state"] for kind, value in seen if kind == "state"]
        assert states[-1] == "SUCCEEDED"
        status, _, _ = await lab.ask("GET", job["links"]["events"], Last_Event_ID=events.last)
        assert status == 204, "an EventSource stops then"
        for unknown in ("9.0_7_1", "nonsense"):
            async with events.open(unknown) as stream:
                kinds = [kind async for kind, _ in stream]
            assert (kinds[0] == "reset") is (unknown != "nonsense")
            assert kinds.count("line") > len(lines)

    async def is_empty() -> bool:
        return len(site.console.streams) == 0

    await until(is_empty)


async def test_a_job_that_ends_while_it_is_read_ends_the_stream(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with program(site, "lab") as lab, site.orchestrator() as peer, asyncio.timeout(60):
        job = await lab.submit()
        await receive(site, peer, job)
        where = "orchgpu.web.job_visits.story_of"

        async def is_over() -> bool:
            summary = site.console.picture.jobs.get(job["id"])
            return summary is not None and summary.over

        async def read_before_the_end(*about: Any) -> Any:
            known = await story_of(*about)
            monkeypatch.setattr(where, story_of)
            await end(site, peer, job["id"], {"a.txt": b"1"})
            await until(is_over)
            return known

        monkeypatch.setattr(where, read_before_the_end)
        async with Events(lab, job).open() as stream:
            assert [kind async for kind, _ in stream][-1] == "end"


async def test_progress_is_of_the_state_and_breaks_no_place(site: Site) -> None:
    async with program(site, "lab") as lab, site.orchestrator() as peer, asyncio.timeout(60):
        job = await lab.submit()
        events = Events(lab, job)
        await receive(site, peer, job, count=0)
        assert "ok" in await asked(peer, op="started", holder=job["id"], n=1)
        for part, text in ((0.25, "a quarter"), (0.5, "half")):
            report = Progress(attempt=1, part=part, text=text, at_s=2e9 + part)
            await put(site, "middle", progress_key(job["id"], 1), report.to_json())
            async with events.open() as stream:
                async for kind, value in stream:
                    assert kind != "reset", "the lines before its place are the same"
                    assert text not in value.get("text", "")
                    if kind == "state" and (value["progress"] or {}).get("part") == part:
                        break
        assert value["progress"] == {"part": 0.5, "text": "half", "at_s": 2e9 + 0.5}
        await end(site, peer, job["id"], {})


async def test_a_quiet_stream_has_a_heartbeat_and_ends_with_its_session(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_visits, "ASK_EVERY_S", 0.01)
    async with program(site, "lab") as lab, asyncio.timeout(60):
        job = await lab.submit()
        async with lab.http.get(lab.url + job["links"]["events"]) as answer:
            text = b""
            while b": beat" not in text:
                text += await answer.content.readany()
            session = site.console.sessions.find(site.keys["lab"])
            assert session is not None
            site.console.sessions.close(session)  # as its time does
            rest = text + await answer.content.read()
            assert b"event: end" not in rest, "the job goes on: the reader is to return"
        async with lab.http.get(lab.url + job["links"]["events"]) as answer:
            assert answer.status == 200, "with its key it has another session"
        assert (await lab.ask("GET", f"/v1/jobs/j{'0' * 25}/events"))[0] == 404


async def test_pages_of_other_origins_may_not_call_it_unless_named(site: Site) -> None:
    paths = [("POST", "/v1/functions/f/jobs"), ("DELETE", f"/v1/jobs/j{'0' * 25}")]
    async with program(site, "lab") as lab:
        for method, path in paths:
            status, value, headers = await lab.ask(method, path, b"", Origin=PAGE)
            assert (status, value["error"]["code"]) == (403, "denied")
            assert "Access-Control-Allow-Origin" not in headers
        headers = (await lab.ask("GET", "/v1/jobs", Origin=PAGE))[2]
        assert "Access-Control-Allow-Origin" not in headers
        status, _, headers = await lab.ask("OPTIONS", "/v1/jobs", Origin=PAGE)
        assert (status, "Access-Control-Allow-Origin" in headers) == (403, False)
    settings = replace(site.console.settings, allowed_origins=(PAGE,))
    with pytest.raises(AppError, match="--allow-origin"):
        check_listen(settings, has_keys=False)
    async with running(settings, site.console.scheduler, True) as (_, address):
        url = f"http://{address}"
        async with program(site, "lab", url) as lab, site.anonymous(url) as page:
            status, _, headers = await lab.ask("OPTIONS", "/v1/jobs", Origin=PAGE)
            assert (status, headers["Access-Control-Allow-Origin"]) == (204, PAGE)
            assert "Authorization" in headers["Access-Control-Allow-Headers"]
            assert "Access-Control-Allow-Credentials" not in headers
            status, _, headers = await lab.ask("POST", paths[0][1], b"x", Origin=PAGE)
            assert (status, headers["Access-Control-Allow-Origin"]) == (202, PAGE)
            other = await lab.ask("OPTIONS", "/v1/jobs", Origin="https://other.example")
            assert other[0] == 403
            assert (await lab.ask("OPTIONS", "/api/session", Origin=PAGE))[0] == 403
            assert await page.log_in(site.keys["lab"]) == 200
            sent = {"Origin": PAGE, "X-CSRF-Token": ""}
            assert (await page.ask("POST", paths[0][1], b"x", headers=sent))[0] in (401, 403)


async def test_without_keys_programs_of_this_machine_call_it_and_pages_need_the_token(
    tmp_path: Path,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(serving(tmp_path))
        door = SchedulerDoor(address=scheduler.daemon.socket, access=Access(), budget=Budget())
        settings = ConsoleSettings(scheduler=door.address, listen="127.0.0.1:0")
        _, address = await stack.enter_async_context(running(settings, door, False))
        url = f"http://{address}"
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        )
        local = Program(http, url)
        assert (await local.get("/v1/jobs"))["jobs"] == []
        assert (await local.ask("GET", "/v1/jobs", Authorization="Bearer x.y"))[0] == 200
        page = {"Sec_Fetch_Site": "same-origin", "Origin": url}
        assert (await local.ask("GET", "/v1/jobs", **page))[0] == 401
        assert (await local.ask("POST", "/v1/functions/f/jobs", b"", **page))[0] == 401
        rebound = {"Host": "evil.example"}
        assert (await local.ask("GET", "/v1/jobs", **rebound))[0] == 403
        other = {"Sec_Fetch_Site": "cross-site"}
        assert (await local.ask("GET", "/v1/jobs", **other))[0] == 403
        async with Site.anonymous(url) as browser:
            assert (await browser.ask("GET", "/v1/jobs"))[0] == 200  # no cookie yet: a program
            browser.csrf = (await browser.get("/api/session"))["csrf"]
            own = {"Origin": url, "Sec-Fetch-Site": "same-origin"}
            assert (await browser.ask("GET", "/v1/jobs", headers=own))[0] == 200
            browser.csrf = "wrong"
            path = f"/v1/jobs/j{'0' * 25}"
            assert (await browser.ask("DELETE", path, headers=own))[0] == 403
