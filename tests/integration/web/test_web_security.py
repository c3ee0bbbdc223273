"""Refusals of the console: foreign pages, jobs of others, paths, oversized bodies, old keys."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from corekit.budget import Budget
from gpu_scheduler.client.access import Access
from gpu_scheduler.daemon.access.keys import NAME, KeyEntry, KeyRole, add_key, revoke_key
from orchgpu.web.app import needs_keys, running
from orchgpu.web.console import ConsoleSettings, server_context
from orchgpu.web.doors import SchedulerDoor
from orchgpu.web.http import uploads as work
from orchgpu.web.http.sessions import CHECK_S
from tests.certificates import certificate
from tests.integration.ssgmd.conftest import serving
from tests.integration.web.conftest import Browser, Site, asked, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Every change, as the page sends it, of job JOB.
CHANGES: list[tuple[str, str, object]] = [
    ("POST", "/api/drain", {"target": "h"}),
    ("POST", "/api/undrain", {"target": "h"}),
    ("POST", "/api/settings", {"name": "aging_s", "value": 1}),
    ("POST", "/api/functions/f/rollback", {"revision": 1}),
    ("PUT", "/api/functions/f/files/a.txt", b"content"),
    ("POST", "/api/jobs/JOB/cancel", {}),
    ("POST", "/api/jobs/JOB/retry", {}),
    ("POST", "/api/letters/x/retry", {"function": "f"}),
]
#: The key's name → the changes that it may make; the others are DENIED.
ALLOWED = {
    "reader": set[str](),
    "labreader": set[str](),
    "other": set[str](),
    "lab": {"files", "cancel", "retry", "letters"},
}


@pytest.mark.parametrize("key", ALLOWED)
async def test_a_key_changes_no_more_than_it_may(site: Site, key: str) -> None:
    async with site.browser(key) as browser, site.orchestrator() as peer:
        job = await site.begun(peer, f"role-{key}")
        before = await site.scheduler.ask("GET", "/v1/parameters", key=site.keys["op"])
        for method, path, body in CHANGES:
            status, value, _ = await browser.ask(method, path.replace("JOB", job), body)
            may = any(f"/{word}" in path for word in ALLOWED[key])
            assert (status == 403) is not may, (path, status, value)
            if status == 403:
                assert value["error"]["code"] == "denied"
        after = await site.scheduler.ask("GET", "/v1/parameters", key=site.keys["op"])
        assert before.value == after.value
        await asked(peer, op="finish", holder=job, outcome="FAILED", reason="NONE")


@pytest.mark.parametrize(
    ("key", "sees"),
    [("op", True), ("lab", True), ("labreader", True), ("reader", False), ("other", False)],
)
async def test_names_of_objects_are_shown_to_their_tenant_only(
    site: Site, key: str, sees: bool
) -> None:
    secret = f"salaries-{key}.csv"
    async with site.browser(key) as browser, site.orchestrator() as peer:
        job = await site.begun(peer, "names", file=secret)
        listed = await browser.get("/api/jobs")
        assert job in [one["job"] for one in listed["items"]], "that it exists is everybody's"
        assert (secret in json.dumps(listed)) is sees
        found = await browser.get(f"/api/jobs?q={secret}")
        assert bool(found["items"]) is sees, "nor is it found by what is hidden"
        status, value, _ = await browser.ask("GET", f"/api/jobs/{job}")
        assert (status == 200) is sees
        assert (secret in json.dumps(value)) is sees
        for part in ("logs", "outputs", "outputs/0", "cost"):
            async with browser.http.get(f"{site.url}/api/jobs/{job}/{part}") as answer:
                assert (answer.status == 403) is not sees, part
        functions = await browser.get("/api/functions")
        assert bool(functions["items"]) is sees
        await asked(peer, op="finish", holder=job, outcome="FAILED", reason="NONE")
    async with site.browser(key) as browser:
        assert (secret in await _first_events(browser, site)) is sees


async def _first_events(browser: Browser, site: Site) -> str:
    """The batches of the last moments, as a browser gets them that resumes."""
    batches = site.console.picture.batches
    last = batches.id_of(max(0, batches.number - 50))

    async def is_published() -> bool:
        return not batches.pending

    await until(is_published)
    newest = batches.id_of(batches.number)
    headers = {"Last-Event-ID": last}
    async with browser.http.get(f"{browser.url}/api/events", headers=headers) as answer:
        text = ""
        async with asyncio.timeout(20):
            while f"id: {newest}\nevent: changes" not in text:
                text += (await answer.content.readany()).decode()
    return text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_of_another_site_changes_nothing(site: Site, headers: dict[str, str]) -> None:
    async with site.browser("op") as browser:
        status, value, _ = await browser.ask("POST", "/api/drain", {"target": "h"}, headers=headers)
        assert (status, value["error"]["needs"]) == (403, "origin")
        own = {"Origin": site.url, "Sec-Fetch-Site": "same-origin"}
        body = {"target": "nothing"}
        assert (await browser.ask("POST", "/api/drain", body, headers=own))[0] == 404


async def test_the_cookie_is_for_this_server_alone(site: Site) -> None:
    async with site.browser() as browser:
        key = site.keys["op"]
        status, value, headers = await browser.ask("POST", "/api/session", {"key": key})
        assert (status, value["role"], value["name"]) == (200, "operator", "op")
        cookie = headers["Set-Cookie"]
        for part in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"):
            assert part in cookie
        assert key not in cookie
        assert key not in json.dumps(value)


@pytest.mark.parametrize(
    "body",
    [
        {"key": "nonsense"},
        {"key": "op." + "x" * 43},
        {"key": "of the host"},
        {"key": 7},
        {},
        {"key": "a", "more": 1},
        b"not json",
        b"[1]",
        b"[" * 60_000,
    ],
)
async def test_a_wrong_login_opens_nothing(site: Site, body: Any) -> None:
    async with site.browser() as browser:
        headers = {"Content-Type": "application/json"}
        before = len(site.console.sessions)
        if body == {"key": "of the host"}:  # a key of a host has no console
            body = {"key": site.keys["gpu"]}
        status, value, answered = await browser.ask("POST", "/api/session", body, headers=headers)
        assert status in (400, 401, 403), value
        assert "Set-Cookie" not in answered
        assert len(site.console.sessions) == before


async def test_a_form_of_another_page_is_no_json(site: Site) -> None:
    async with site.browser("op") as browser:
        headers = {"Content-Type": "text/plain"}
        status, _, _ = await browser.ask("POST", "/api/drain", b'{"target":"h"}', headers=headers)
        assert status == 400


async def test_an_oversized_body_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async with site.browser("op") as browser:
        body = json.dumps({"target": "x" * 70_000}).encode()
        headers = {"Content-Type": "application/json"}
        for path in ("/api/drain", "/api/session", "/api/settings"):
            status, value, _ = await browser.ask("POST", path, body, headers=headers)
            assert (status, value["error"]["code"]) == (413, "invalid")
        monkeypatch.setattr(work, "UPLOAD_BYTES_MAX", 10)
        status, value, _ = await browser.ask("PUT", "/api/functions/f/files/a.txt", b"x" * 11)
        assert (status, value["error"]["code"]) == (422, "impossible")


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../app.py",
        "/assets/..%2fapp.py",
        "/assets/%2e%2e/app.py",
        "/assets//etc/passwd",
        "/assets/%2fetc%2fpasswd",
        "/assets/",
        "/assets/nothing.js",
        "/../../etc/passwd",
    ],
)
async def test_only_files_of_the_page_are_served(site: Site, path: str) -> None:
    async with site.browser() as browser:
        status, value, _ = await browser.ask("GET", path)
        assert (status, value["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("name", ["..", "%2e%2e", "a%2fb", "..%2f..%2fx", "a%5cb", "a%00b"])
async def test_a_path_is_not_the_name_of_an_upload(site: Site, name: str) -> None:
    async with site.browser("op") as browser:
        status, _, _ = await browser.ask("PUT", f"/api/functions/f/files/{name}", b"x")
        assert status in (400, 404, 405)
        listed = await site.cloud(lambda s3: s3.list_objects_v2(Bucket="inputs"))
        keys = [one["Key"] for one in listed.get("Contents", [])]
        assert [one for one in keys if ".." in one or "/" in one] == []


@pytest.mark.parametrize(
    "path",
    [
        "/api/jobs?limit=0",
        "/api/jobs?after=x",
        "/api/jobs?since=nan",
        "/api/queue?after=-1",
        f"/api/jobs?q={'x' * 300}",
    ],
)
async def test_a_wrong_query_is_refused(site: Site, path: str) -> None:
    async with site.browser("op") as browser:
        status, value, _ = await browser.ask("GET", path)
        assert (status, value["error"]["code"]) == (400, "invalid")


async def test_a_session_ends_with_its_logout_and_with_its_key(site: Site) -> None:
    async with site.browser("reader") as browser:
        assert (await browser.ask("DELETE", "/api/session"))[0] == 200
        assert (await browser.ask("GET", "/api/overview"))[0] == 401
    entry = KeyEntry(name="short", role=KeyRole.READER, sha256="0" * 64)
    key = add_key(site.scheduler.state / NAME, entry)
    async with site.browser() as browser:

        async def is_in() -> bool:
            return await browser.log_in(key) == 200

        await until(is_in)  # the scheduler reads changed keys now and then
        revoke_key(site.scheduler.state / NAME, "short")
        session = next(s for s in site.console.sessions.all() if s.viewer.name == "short")

        async def is_out() -> bool:
            session.checked_s -= CHECK_S
            return (await browser.ask("GET", "/api/overview"))[0] == 401

        await until(is_out)


async def test_without_keys_a_session_begins_by_itself_on_this_machine_only(
    tmp_path: Path,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(serving(tmp_path / "state"))
        door = SchedulerDoor(address=scheduler.daemon.socket, access=Access(), budget=Budget())
        assert await needs_keys(door) is False
        settings = ConsoleSettings(scheduler=door.address, listen="127.0.0.1:0")
        _, address = await stack.enter_async_context(running(settings, door, False))
        async with Site.anonymous(f"http://{address}") as browser:
            assert (await browser.ask("GET", "/api/overview"))[0] == 401
            session = await browser.get("/api/session")
            assert (session["role"], session["keys"]) == ("operator", False)
            await browser.get("/api/overview")
            rebound = {"Host": "evil.example"}
            for path in ("/", "/api/session", "/api/overview"):
                assert (await browser.ask("GET", path, headers=rebound))[0] == 403
            status, _, _ = await browser.ask("POST", "/api/session", {"key": "x"})
            assert status == 409


async def test_over_tls_the_cookie_is_secure(site: Site, tmp_path: Path) -> None:
    door = SchedulerDoor(
        address=site.scheduler.daemon.socket,
        access=Access(key=site.keys["console"]),
        budget=Budget(),
    )
    settings = ConsoleSettings(
        scheduler=door.address,
        listen="127.0.0.1:0",
        access=door.access,
        tls=server_context(*certificate(tmp_path)),
    )
    async with (
        running(settings, door, True) as (_, address),
        Site.anonymous(f"https://{address}") as browser,
        browser.http.post(
            f"{browser.url}/api/session", json={"key": site.keys["op"]}, ssl=False
        ) as answer,
    ):
        assert answer.status == 200
        assert "Secure" in answer.headers["Set-Cookie"]
        assert "max-age" in answer.headers["Strict-Transport-Security"]
