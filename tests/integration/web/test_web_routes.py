"""Every route of the console, with the answers that the page needs."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from contract.keys import OUTPUT_JOB
from corekit.decode import encode, encode_json
from fdl.plan.resources import Ledger
from orchgpu.history.store import Batch, Presence, Store
from orchgpu.web.http.server import MODULES, read_assets
from tests.history_records import ended_record, job_result
from tests.host_hello import DEVICE
from tests.integration.web.conftest import MARKUP, STATE, Browser, Site, asked, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


def finished(job: str, *, state: str = "SUCCEEDED", reason: str = "NONE", at_s: float = 9.0) -> Any:
    return job_result(
        job_id=job,
        state=state,
        reason=reason,
        attempt=1,
        exit_code=0 if state == "SUCCEEDED" else 1,
        files=[
            {"bucket": "outputs", "key": f"hits/{MARKUP}.html", "size": 9, "sha256": ""},
            {"bucket": "outputs", "key": "hits/raw", "size": 9, "sha256": ""},
        ],
        times={"EStart": 1.0, "EEnd": 2.0, "committed": 3.0},
        log_tail="the last line",
        ended_at_s=at_s,
    ).to_json()


async def put(site: Site, bucket: str, key: str, body: bytes, job: str | None = None) -> None:
    """Store an object; with `job` as an output of that job."""
    of = {} if job is None else {OUTPUT_JOB: job}
    await site.cloud(lambda s3: s3.put_object(Bucket=bucket, Key=key, Body=body, Metadata=of))


async def ended(site: Site, browser: Browser, peer: Any, job: str, outcome: str) -> None:
    answer = await asked(peer, op="finish", holder=job, outcome=outcome, reason="NONE")
    assert "ok" in answer, answer

    async def is_over() -> bool:
        return bool((await browser.get(f"/api/jobs/{job}"))["state"] == outcome)

    await until(is_over)


async def test_the_page_and_its_files(site: Site) -> None:
    async with site.browser() as browser:
        status, content, headers = await browser.ask("GET", "/")
        assert status == 200
        assert content.startswith(b"<!doctype html>")
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        again = {"If-None-Match": headers["ETag"]}
        assert (await browser.ask("GET", "/", headers=again))[0] == 304
        name = next(name for name in read_assets() if name.endswith(".js"))
        status, _, headers = await browser.ask("GET", f"/assets/{name}")
        assert (status, headers["Content-Type"]) == (200, "text/javascript; charset=utf-8")
        assert await browser.get("/healthz") == {"ok": True, "connected": True}


async def test_overview_fleet_and_queue(site: Site) -> None:
    async with (
        site.browser("op") as browser,
        site.orchestrator() as peer,
        site.orchestrator("op") as fleet,
        site.browser("lab") as reader,
    ):
        pool = {"name": "small", "kind": "cpu", "memory_mib": 9, "max": 2, "start_s": 60}
        pool |= {"usd_per_h": 3.0}
        counted = {**pool, "size": 1, "states": {"idle": 1}, "closed": "it is left out"}
        assert "ok" in await fleet.ask(op="report_fleet", pools=[counted], notices=["one"])
        request = {"memory_mib": 9, "workload": "secret", "tenant": "lab"}
        floor = {"request": request, "workers_min": 2}
        assert "ok" in await peer.ask(op="keep_warm", floors=[floor])
        for number in range(3):  # two devices: the third one waits
            await site.begun(peer, f"queue{number}")

        async def is_waiting() -> bool:
            return bool((await browser.get("/api/overview"))["waiting"] == 1)

        await until(is_waiting)
        overview = await browser.get("/api/overview")
        assert (overview["hosts"], overview["devices"], overview["leases"]) == (1, 2, 2)
        assert overview["jobs_by_state"]["WAITING"] == 1
        host = (await browser.get("/api/fleet"))["items"][0]
        assert [one["state"] for one in host["devices"]] == ["busy", "busy"]
        assert host["devices"][0]["leases"][0]["tenant"] == "lab"
        assert host["devices"][1]["model"] == "<b>M</b>"
        summary = (await browser.get("/api/fleet/summary?state=busy"))["items"][0]
        assert (summary["busy"], summary["memory_used_ratio"]) == (2, 1.0)

        async def are_swept() -> bool:
            return bool((await browser.get("/api/fleet/pools"))["pools"])

        await until(are_swept)
        pools = await browser.get("/api/fleet/pools")
        assert [(one["pool"], one["hosts"], one["closed"]) for one in pools["pools"]] == [
            ("small", 1, "it is left out")
        ]
        assert (pools["notices"], pools["pools"][0]["usd_per_h"]) == (["one"], 3.0)
        shown = await reader.get("/api/fleet/pools")
        assert (shown["notices"], shown["pools"][0]["usd_per_h"]) == ([], 0.0)
        (kept,), (seen,) = pools["floors"], shown["floors"]
        assert (kept["tenant"], kept["workload"], kept["workers_min"]) == ("lab", "secret", 2)
        assert "no device has room for 2 more" in kept["why"]
        assert seen["workload"] == "secret", "the reader is of that tenant"
        queue = await browser.get("/api/queue")
        assert queue["total"] == 1
        waiting = queue["items"][0]
        assert (waiting["position"], waiting["function"], waiting["reason"]) == (1, "f", "BUSY")
        assert waiting["sentence"]
        listed = await browser.get("/api/jobs?state=WAITING&limit=1")
        assert (listed["total"], listed["items"][0]["job"]) == (1, waiting["job"])
        story = await browser.get(f"/api/jobs/{waiting['job']}")
        assert story["explain"]["position"] == 1
        for one in (await browser.get("/api/jobs?state=live"))["items"]:
            status, value, _ = await browser.ask("POST", f"/api/jobs/{one['job']}/cancel", {})
            assert status == 200, value

        async def is_empty() -> bool:
            found = await browser.get("/api/overview")
            return bool(found["waiting"] == found["leases"] == 0)

        await until(is_empty)
        assert (await browser.get("/api/jobs?state=CANCELLED"))["total"] == 3


async def test_jobs_are_sorted_and_exported(site: Site) -> None:
    async with (
        site.browser("lab") as browser,
        site.browser("other") as other,
        site.orchestrator() as peer,
    ):
        job = await site.begun(peer, "export", file="exported.txt")
        listed = await browser.get("/api/jobs?sort=submitted&order=descending&limit=1")
        assert listed["total"] >= 1
        assert (await browser.ask("GET", "/api/jobs?sort=nothing"))[0] == 400
        path = "/api/export/jobs.{}?q=exported"
        status, content, headers = await browser.ask("GET", path.format("csv"))
        assert (status, headers["Content-Type"]) == (200, "text/csv; charset=utf-8")
        assert headers["Content-Disposition"] == 'attachment; filename="jobs.csv"'
        names, row = content.decode().splitlines()
        assert (names.split(",")[0], row.split(",")[0]) == ("job", job)
        status, found, _ = await browser.ask("GET", path.format("json"))
        assert [one["key"] for one in found["jobs"]] == ["exported.txt"]
        assert (await other.ask("GET", path.format("json")))[1] == {"jobs": []}
        async with site.anonymous(site.url) as stranger:
            assert (await stranger.ask("GET", path.format("csv")))[0] == 401
        await asked(peer, op="finish", holder=job, outcome="FAILED", reason="NONE")


async def test_the_story_of_a_job_its_outputs_and_its_logs(site: Site) -> None:
    async with site.browser("lab") as browser, site.orchestrator() as peer:
        job = await site.begun(peer, "story")
        await put(site, "outputs", f"hits/{MARKUP}.html", b"<script>alert(1)</script>", job)
        await put(site, "outputs", "hits/raw", b"\x00\x01", job)
        await put(site, "middle", f"results/{job}.json", finished(job))
        await ended(site, browser, peer, job, "SUCCEEDED")
        story = await browser.get(f"/api/jobs/{job}")
        assert (story["key"], story["function"]) == (MARKUP, "f")
        assert {one["name"] for one in story["timeline"]} >= {"queued", "running"}
        assert story["result"]["log_tail"] == "the last line"
        items = (await browser.get(f"/api/jobs/{job}/outputs"))["items"]
        assert [(one["preview"], one["type"]) for one in items] == [
            ("text", "text/plain; charset=utf-8"),
            (None, "application/octet-stream"),
        ]
        status, content, headers = await browser.ask("GET", f"/api/jobs/{job}/outputs/0")
        assert (status, content) == (200, b"<script>alert(1)</script>")
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
        assert headers["Content-Disposition"].startswith("inline; filename*=UTF-8''%3Cimg")
        assert "sandbox" in headers["Content-Security-Policy"]
        _, _, headers = await browser.ask("GET", f"/api/jobs/{job}/outputs/0?download")
        assert headers["Content-Disposition"].startswith("attachment")
        _, _, headers = await browser.ask("GET", f"/api/jobs/{job}/outputs/1")
        assert headers["Content-Disposition"].startswith("attachment")
        assert (await browser.ask("GET", f"/api/jobs/{job}/outputs/2"))[0] == 404
        status, content, headers = await browser.ask("GET", f"/api/jobs/{job}/logs")
        assert headers["Content-Type"].startswith("text/event-stream")
        assert b"event: line\ndata: {" in content
        assert content.endswith(b"event: end\ndata: {}\n\n")
        for again, expected in (("retry", 400), ("cancel", 409)):
            status, value, _ = await browser.ask("POST", f"/api/jobs/{job}/{again}", {})
            assert (status, value["error"]["code"]) == (
                expected,
                {400: "invalid", 409: "conflict"}[expected],
            )


async def test_a_failed_job_runs_again_by_its_record_or_its_letter(site: Site) -> None:
    async with site.browser("lab") as browser, site.orchestrator() as peer:
        job = await site.begun(peer, "failed", file="bad.txt")
        failed = finished(job, state="FAILED", reason="EXIT_NONZERO")
        await put(site, "middle", f"results/{job}.json", failed)
        await ended(site, browser, peer, job, "FAILED")
        assert (await browser.get(f"/api/jobs/{job}"))["may_retry"] is True
        status, value, _ = await browser.ask("GET", f"/api/jobs/{job}/cost")
        assert (status, value["error"]["code"]) == (400, "invalid")
        status, value, _ = await browser.ask("POST", f"/api/jobs/{job}/retry")
        assert (status, value) == (200, {"job": job, "retried": True})
        message = await _received(site, site.function.queue_url)
        assert json.loads(message)["orchgpu"]["job_id"] == job
        await _sent(site, site.function.dead_letter_url, message)
        letters = await browser.get("/api/letters?function=f")
        assert letters["counts"] == [{"function": "f", "letters": 1}]
        letter = letters["items"][0]
        assert (letter["job"], letter["input"]) == (job, "inputs/bad.txt")
        path = f"/api/letters/{letter['letter']}/retry"
        assert (await browser.ask("POST", path))[0] == 200
        assert (await browser.ask("POST", path))[0] == 404
        assert json.loads(await _received(site, site.function.queue_url)) == json.loads(message)


async def _received(site: Site, url: str) -> str:
    def call(sqs: Any) -> str:
        found = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=10)["Messages"][0]
        sqs.delete_message(QueueUrl=url, ReceiptHandle=found["ReceiptHandle"])
        return str(found["Body"])

    return str(await site.cloud(call, "sqs"))


async def _sent(site: Site, url: str, body: str) -> None:
    await site.cloud(lambda sqs: sqs.send_message(QueueUrl=url, MessageBody=body), "sqs")


async def test_functions_and_uploads(site: Site) -> None:
    async with site.browser("lab") as browser:
        found = (await browser.get("/api/functions"))["items"]
        assert [(one["name"], one["inputs"]) for one in found] == [("f", ["inputs"])]
        one = await browser.get("/api/functions/f")
        assert [edge["to"] for edge in one["graph"]["edges"]] == [
            "function/f",
            "place/outputs/hits",
        ]
        assert (one["revisions"], one["may_roll_back"], one["may_upload"]) == ([], False, True)
        assert (await browser.ask("GET", "/api/functions/nothing"))[0] == 404
        name = "%3Cb%3E%C3%BC.txt"
        status, value, _ = await browser.ask("PUT", f"/api/functions/f/files/{name}", b"content")
        assert (status, value["key"], value["bucket"]) == (201, "<b>ü.txt", "inputs")
        stored = await site.cloud(lambda s3: s3.get_object(Bucket="inputs", Key="<b>ü.txt"))
        assert stored["Body"].read() == b"content"
    async with site.browser("op") as browser:
        path = "/api/functions/f/rollback"
        status, value, _ = await browser.ask("POST", path, {"revision": 1})
        assert (status, value["error"]["code"]) == (404, "not_found")


async def test_a_function_has_its_schedules(site: Site) -> None:
    arn = "arn:aws:scheduler:::aws-sdk:s3:putObject"
    put = {"Bucket": "inputs", "Key": "f-nightly-<aws.scheduler.scheduled-time>", "Body": "x"}
    target = {"Arn": arn, "RoleArn": "arn:aws:iam::000000000000:role/r", "Input": json.dumps(put)}
    await site.cloud(
        lambda scheduler: scheduler.create_schedule(
            Name="f-nightly",
            ScheduleExpression="cron(0 3 ? * MON *)",
            FlexibleTimeWindow={"Mode": "OFF"},
            Target=target,
        ),
        "scheduler",
    )
    ledger = Ledger(name="f", bucket=STATE, created=("schedule/f-nightly",))
    where = {"Bucket": STATE, "Key": ledger.object_key}
    await site.cloud(lambda s3: s3.put_object(**where, Body=encode_json(ledger)))
    try:
        async with site.browser("lab") as browser:
            (shown,) = (await browser.get("/api/functions/f"))["schedules"]
    finally:
        await site.cloud(lambda s3: s3.delete_object(**where))
    next_s = shown.pop("next_s")
    assert 0 < next_s - time.time() <= 7 * 86400
    assert shown == {"name": "f-nightly", "cron": "cron(0 3 ? * MON *)", "timezone": "UTC"}


async def test_settings_and_drain(site: Site) -> None:
    async with site.browser("op") as browser:
        found = await browser.get("/api/settings")
        items = {one["name"]: one for one in found["parameters"]}
        assert items["aging_s"]["overridden"] is False
        assert found["policies"][0]["choices"]
        for value, expected in (("90s", 90.0), ("default", items["aging_s"]["value"])):
            status, found, _ = await browser.ask(
                "POST", "/api/settings", {"name": "aging_s", "value": value}
            )
            now = {one["name"]: one["value"] for one in found["parameters"]}
            assert (status, now["aging_s"]) == (200, expected)
        wrong = {"name": "nothing", "value": 1}
        assert (await browser.ask("POST", "/api/settings", wrong))[0] == 400
        for target, state in (("h/1", "drained"), ("h", "drained")):
            for path, expected in (("/api/drain", state), ("/api/undrain", "idle")):
                status, value, _ = await browser.ask("POST", path, {"target": target})
                assert status == 200, value

                async def is_so(expected: str = expected) -> bool:
                    host = (await browser.get("/api/fleet"))["items"][0]
                    return bool(host["devices"][1]["state"] == expected)

                await until(is_so)
        assert (await browser.ask("POST", "/api/drain", {"target": "nothing"}))[0] == 404


async def test_changes_come_as_events_and_continue_after_a_gap(site: Site) -> None:
    async with site.browser("op") as browser, asyncio.timeout(20):
        stream = _Events(browser)
        ready = await stream.open(None)
        await browser.ask("POST", "/api/drain", {"target": "h"})
        while (await stream.until("device"))["entry"]["state"] != "drained":
            continue  # a change by an earlier test
        last = stream.last_id
        assert last != ready
        stream.close()
        await browser.ask("POST", "/api/undrain", {"target": "h"})

        async def is_known() -> bool:
            return bool((await browser.get("/api/overview"))["hosts_by_state"] == {"UP": 1})

        await until(is_known)
        await stream.open(last)
        assert (await stream.until("device"))["entry"]["state"] == "idle", "what was missed"
        stream.close()
        await stream.open("another-run-7")
        assert await stream.next() == ("reset", {})
        stream.close()


async def test_activity_comes_from_the_history(site: Site) -> None:
    async with site.browser("lab") as lab, site.browser("other") as other:
        status, value, _ = await lab.ask("GET", "/api/activity")
        assert (status, value["error"]["code"]) == (503, "unavailable"), "nothing writes one yet"
        now_s = site.console.clock.wall_s()
        record = ended_record("j1", now_s - 60, tenant="lab")
        assert site.console.settings.history is not None
        with Store(site.console.settings.history) as store:
            there = Presence(device="h/0", host="h", present=True, at_s=now_s - 600, removed=False)
            store.write(Batch(records=[record], presences=[there], position=None))
        found = await lab.get("/api/activity?since_s=600")
        device = found["devices"][0]
        assert (device["device"], device["model"]) == ("h/0", DEVICE["model"]), "as in the fleet"
        span = device["spans"][0]
        assert (span["job"], span["function"], span["cold"]) == ("j1", "f", False)
        assert span["end_s"] - span["start_s"] == pytest.approx(4.0, abs=0.01)
        series = found["series"]
        assert {len(series[name]) for name in ("time_s", "rfast", "rlat", "utilisation")} == {60}
        assert sum(series["rfast"]) > 0
        theirs = (await other.get("/api/activity?since_s=600"))["devices"][0]["spans"][0]
        assert (theirs["job"], theirs["function"]) == ("j1", None)
        for wrong in ("1", "1e9", "nan"):
            assert (await lab.ask("GET", f"/api/activity?since_s={wrong}"))[0] == 400


class _Events:
    """The stream of a browser."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._answer: Any = None
        self.last_id = ""

    async def open(self, last_id: str | None) -> str:
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        self._answer = await self._browser.http.get(
            f"{self._browser.url}/api/events", headers=headers
        )
        assert self._answer.status == 200
        kind, data = await self.next()
        assert kind == "ready"
        return str(data["position"])

    async def next(self) -> tuple[str, Any]:
        fields: dict[str, str] = {}
        async for line in self._answer.content:
            text = line.decode().rstrip("\n")
            name, _, value = text.partition(": ")
            if text:
                fields[name] = value
            elif "event" in fields:
                self.last_id = fields.get("id", self.last_id)
                return fields["event"], json.loads(fields["data"])
            else:
                fields = {}
        raise AssertionError("the stream ended")

    async def until(self, kind: str) -> Any:
        """The first change of that kind."""
        while True:
            event, data = await self.next()
            found = [one for one in data if one["event"] == kind] if event == "changes" else []
            if found:
                return found[0]

    def close(self) -> None:
        self._answer.close()


#: Routes with parts, as requests.
_FILLED = {
    "job": "j" + "0" * 25,
    "run": "r" + "0" * 25,
    "number": "0",
    "letter": "x",
    "name": "f",
    "file": "a.txt",
    "form": "csv",
}


def api_routes() -> list[tuple[str, str]]:
    """Method and path of every route below /api/."""
    found = [
        (route.method, route.path.format(**_FILLED))
        for module in MODULES
        for route in module.ROUTES
    ]
    return [(method, path) for method, path in found if (method, path) != ("POST", "/api/session")]


@pytest.mark.parametrize(("method", "path"), api_routes())
async def test_every_route_needs_a_session(site: Site, method: str, path: str) -> None:
    async with site.browser() as browser:
        status, value, headers = await browser.ask(method, path)
        assert (status, value["login_needed"]) == (401, True)
        assert value["error"]["code"] == "denied"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        policy = headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


@pytest.mark.parametrize(("method", "path"), [route for route in api_routes() if route[0] != "GET"])
async def test_every_change_needs_the_csrf_token(site: Site, method: str, path: str) -> None:
    async with site.browser("op") as browser:
        for headers in ({"X-CSRF-Token": "wrong"}, {"X-CSRF-Token": ""}):
            status, value, _ = await browser.ask(method, path, {}, headers=headers)
            assert (status, value["error"]["needs"]) == (403, "csrf")
        assert (await browser.ask("GET", "/api/session"))[0] == 200, "the session goes on"


async def test_a_function_that_its_event_alone_starts_is_listed_for_keys_of_all_tenants(
    site: Site,
) -> None:
    ledger = Ledger(name="plain", bucket=STATE, created=("notification/inputs/plain",))
    body = json.dumps(encode(ledger)).encode()
    await put(site, STATE, "deployments/plain.json", body)
    try:
        async with site.browser("op") as browser:
            found = {one["name"]: one for one in (await browser.get("/api/functions"))["items"]}
            assert set(found) == {"f", "plain"}
            assert (found["plain"]["jobs_kept"], found["plain"]["gpu"]) == (False, "no device")
            one = await browser.get("/api/functions/plain")
            assert (one["jobs_kept"], one["may_upload"]) == (False, False)
            assert [node["label"] for node in one["graph"]["nodes"]] == ["plain"]
        async with site.browser("lab") as browser:
            assert [one["name"] for one in (await browser.get("/api/functions"))["items"]] == ["f"]
            assert (await browser.ask("GET", "/api/functions/plain"))[0] == 403
    finally:
        await site.cloud(lambda s3: s3.delete_object(Bucket=STATE, Key="deployments/plain.json"))


async def test_events_that_lambda_could_not_run_are_letters_too(site: Site) -> None:
    made = await site.cloud(lambda sqs: sqs.create_queue(QueueName="plain-dlq"), "sqs")
    ledger = Ledger(name="plain", bucket=STATE, created=("queue/plain-dlq",))
    await put(site, STATE, "deployments/plain.json", json.dumps(encode(ledger)).encode())
    place = {"bucket": {"name": "inputs"}, "object": {"key": "a.txt"}}
    failure = {
        "timestamp": "2026-11-23T16:40:27.000Z",
        "requestContext": {"functionArn": "arn:aws:lambda:::function:plain", "condition": "x"},
        "requestPayload": {"Records": [{"eventSource": "aws:s3", "s3": place}]},
        "responsePayload": {"errorType": "AttemptFailed", "errorMessage": "EXIT_NONZERO: 7"},
    }
    await _sent(site, made["QueueUrl"], json.dumps(failure))
    try:
        async with site.browser("op") as browser:
            letters = await browser.get("/api/letters")
            assert {"function": "plain", "letters": 1} in letters["counts"]
            (letter,) = (one for one in letters["items"] if one["function"] == "plain")
            assert (letter["job"], letter["may_retry"]) == (None, True)
        async with site.browser("lab") as browser:
            counts = (await browser.get("/api/letters"))["counts"]
            assert [one["function"] for one in counts] == ["f"]
            path = f"/api/letters/{letter['letter']}/retry"
            status = (await browser.ask("POST", path, {"function": "plain"}))[0]
            assert status == 404, "another tenant's key starts nothing"
    finally:
        await site.cloud(lambda s3: s3.delete_object(Bucket=STATE, Key="deployments/plain.json"))
        await site.cloud(lambda sqs: sqs.delete_queue(QueueUrl=made["QueueUrl"]), "sqs")
