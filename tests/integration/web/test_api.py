"""The HTTP API for programs, over real sockets: jobs by upload, waits, outputs, lists, cancels."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
from typing import Any

import aiohttp
import pytest
from yarl import URL

from contract.keys import job_id
from contract.parameters import parameters_in
from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from gpu_scheduler.model import Request
from orchgpu.jobs.cloud import JobCloud
from orchgpu.web.api import jobs as api_jobs
from orchgpu.web.api import outputs as api_outputs
from orchgpu.web.api import state
from orchgpu.web.http import uploads
from tests.integration.web.conftest import STATE, Site, until
from tests.integration.web.programs import curl, end, inputs, program, put, receive

pytestmark = pytest.mark.asyncio(loop_scope="module")

JOBS = "/v1/functions/f/jobs"


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
async def test_a_job_by_curl(site: Site) -> None:
    key = ("-H", f"Authorization: Bearer {site.keys['lab']}")
    url = f"{site.url}{JOBS}?name=sign.png"
    status, body = await curl(*key, "--data-binary", "@-", url, sent=b"picture")
    job = json.loads(body)
    assert (status, job["state"], job["over"], job["function"]) == (202, "QUEUED", False, "f")
    assert job["input"].endswith("-sign.png")
    stored = await site.cloud(
        lambda s3: s3.get_object(Bucket="inputs", Key=job["input"].removeprefix("s3://inputs/"))
    )
    assert stored["Body"].read() == b"picture"
    path = job["input"].removeprefix("s3://inputs/")
    assert job["id"] == job_id("inputs", path, stored["VersionId"], "f"), "as its event will have"
    status, body = await curl(*key, site.url + job["links"]["job"])
    assert (status, json.loads(body)["state"]) == (200, "QUEUED")
    status, body = await curl(*key, site.url + job["links"]["outputs"])
    assert (status, json.loads(body)) == (200, {"outputs": []})
    status, body = await curl(*key, "-F", "file=@-;filename=form.txt", site.url + JOBS, sent=b"f")
    assert (status, json.loads(body)["input"][-9:]) == (202, "-form.txt")
    status, body = await curl(*key, "-X", "DELETE", site.url + job["links"]["job"])
    assert (status, json.loads(body)["state"]) == (200, "CANCELLED"), "before it was received"
    assert (await curl(*key, "-X", "DELETE", site.url + job["links"]["job"]))[0] == 200, "again"


async def test_equal_requests_are_one_job_and_another_body_is_refused(site: Site) -> None:
    async with program(site, "lab") as lab:
        asked = [lab.submit(b"same", Idempotency_Key="k 1") for _ in range(16)]
        jobs = await asyncio.gather(*asked)
        assert len({job["id"] for job in jobs}) == 1
        place = jobs[0]["input"].removeprefix("s3://inputs/")
        beginning = place.partition("-")[0]
        assert len(await inputs(site, beginning)) == 1
        for body, query in ((b"other", ""), (b"same", "?name=other.txt")):
            status, value, _ = await lab.ask("POST", JOBS + query, body, Idempotency_Key="k 1")
            assert (status, value["error"]["code"]) == (409, "conflict")
            assert value["error"]["details"] == {"key": place}
        assert len(await inputs(site, beginning)) == 1, "a refused request stored nothing"
        assert (await lab.submit(b"same"))["id"] != jobs[0]["id"], "without a key: another job"
        sent = [
            lab.ask("POST", JOBS, b"%d" % (number % 2), Idempotency_Key="k 2")
            for number in range(6)
        ]
        assert sorted([one[0] for one in await asyncio.gather(*sent)]) == [202] * 3 + [409] * 3
        for wrong in ("x" * 256, "ü"):
            status, value, _ = await lab.ask("POST", JOBS, b"", Idempotency_Key=wrong)
            assert (status, value["error"]["code"]) == (400, "invalid")


async def test_an_answer_waits_for_the_end_with_a_small_output_in_it(site: Site) -> None:
    async with program(site, "lab") as lab, site.orchestrator() as peer:
        for outputs, shown in (
            ({"a.txt": "grüße".encode()}, ("grüße", "utf-8")),
            ({"b.bin": b"\xff\0"}, (base64.b64encode(b"\xff\0").decode(), "base64")),
            ({"c.txt": b"x" * (64 * 1024 + 1)}, (None, None)),
            ({"d.txt": b"1", "e.txt": b"2"}, (None, None)),
        ):
            key = f"waits for {len(outputs)} {next(iter(outputs))}"
            job = await lab.submit(b"in", "?wait=0", Idempotency_Key=key)
            await receive(site, peer, job)
            again = lab.ask("POST", f"{JOBS}?wait=40", b"in", Idempotency_Key=key)
            waiting = asyncio.create_task(again)
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await end(site, peer, job["id"], outputs)
            status, over, _ = await waiting
            assert (status, over["state"], over["over"]) == (200, "SUCCEEDED", True), over
            first = over["outputs"][0]
            assert (first["content"], first["encoding"]) == shown
            assert [one["bytes"] for one in over["outputs"]] == list(map(len, outputs.values()))
            assert (await lab.get(f"/v1/jobs/{job['id']}?wait=9"))["log_tail"] == "the last line"
        failing = await lab.submit(b"bad")
        await receive(site, peer, failing)
        status, value, headers = await lab.ask("GET", failing["links"]["job"] + "?wait=0.05")
        assert (status, value["over"]) == (200, False)
        assert value["waits"] is not None or value["device"] is not None
        status, _, headers = await lab.ask("POST", f"{JOBS}?wait=0.05", b"slow")
        assert (status, headers["Location"][:10]) == (202, "/v1/jobs/j")
        await end(site, peer, failing["id"], {}, "FAILED")
        over = await lab.get(failing["links"]["job"] + "?wait=40")
        assert (over["state"], over["over"], over["outputs"]) == ("FAILED", True, [])


async def test_outputs_come_whole_or_in_ranges(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_outputs, "PIECE_BYTES", 4)
    async with program(site, "lab") as lab, site.orchestrator() as peer:
        job = await lab.submit()
        await receive(site, peer, job)
        digits = {"r.txt": b"0123456789", "page.html": b"<b>", "x/é.gz": b"", "y/r.txt": b"r"}
        await end(site, peer, job["id"], digits)
        over = await lab.get(job["links"]["job"] + "?wait=20")
        assert [(one["name"], one["content_type"]) for one in over["outputs"]] == [
            ("outputs/hits/r.txt", "text/plain"),
            ("page.html", "text/html"),
            ("é.gz", "application/octet-stream"),
            ("outputs/hits/y/r.txt", "text/plain"),
        ]
        links = [one["link"] for one in over["outputs"]]
        status, content, headers = await lab.ask("GET", links[0])
        assert (status, content, headers["Accept-Ranges"]) == (200, b"0123456789", "bytes")
        assert headers["Content-Disposition"].startswith("attachment")
        assert "sandbox" in headers["Content-Security-Policy"]
        assert (await lab.ask("GET", links[2]))[:2] == (200, b"")
        quoted = URL(site.url + links[0].replace("hits/r", "hits%2Fr"), encoded=True)
        async with lab.http.get(quoted) as answer:  # as generated clients write it
            assert await answer.read() == b"0123456789"
        assert (await lab.ask("HEAD", links[0]))[2]["Content-Length"] == "10"
        for asked, status, content, of in (
            ("bytes=2-3", 206, b"23", "bytes 2-3/10"),
            ("bytes=1-8", 206, b"12345678", "bytes 1-8/10"),
            ("bytes=7-", 206, b"789", "bytes 7-9/10"),
            ("bytes=-2", 206, b"89", "bytes 8-9/10"),
            ("bytes=0-99", 206, b"0123456789", "bytes 0-9/10"),
            ("bytes=0-1,4-5", 200, b"0123456789", None),
            ("lines=1-2", 200, b"0123456789", None),
        ):
            found = await lab.ask("GET", links[0], Range=asked)
            assert found[:2] == (status, content), asked
            assert found[2].get("Content-Range") == of
        status, value, found_headers = await lab.ask("GET", links[0], Range="bytes=10-")
        assert (status, value["error"]["code"]) == (416, "invalid")
        assert found_headers["Content-Range"] == "bytes */10"
        for tag, status in ((headers["ETag"], 206), ('"other"', 200)):
            assert (await lab.ask("GET", links[0], Range="bytes=2-3", If_Range=tag))[0] == status
        status, value, _ = await lab.ask("GET", f"/v1/jobs/{job['id']}/outputs/none")
        assert (status, value["error"]["code"]) == (404, "not_found")
        await put(site, "outputs", "hits/page.html", b"another's", "jOther")
        status, value, _ = await lab.ask("GET", links[1])
        assert (status, value["error"]["code"]) == (409, "conflict")


async def test_an_output_that_is_replaced_while_it_is_sent_breaks_off(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_outputs, "PIECE_BYTES", 4)
    async with program(site, "lab") as lab, site.orchestrator() as peer:
        job = await lab.submit()
        await receive(site, peer, job)
        await end(site, peer, job["id"], {"long.txt": b"0123456789"})
        over = await lab.get(job["links"]["job"] + "?wait=20")
        read = api_outputs._read

        async def replaced(*arguments: Any) -> bytes:
            piece = await read(*arguments)
            await put(site, "outputs", "hits/long.txt", b"another", "jOther")
            return piece

        monkeypatch.setattr(api_outputs, "_read", replaced)
        with pytest.raises(aiohttp.ClientPayloadError):
            await lab.ask("GET", over["outputs"][0]["link"])


async def test_an_object_becomes_an_input_if_the_key_may_read_it(site: Site) -> None:
    await put(site, "outputs", "hits/chained.txt", b"chained")
    await put(site, "outputs", "elsewhere.txt", b"secret")

    async def sent(key: str, url: str) -> tuple[int, Any]:
        async with program(site, key) as caller:
            body = json.dumps({"input": url}).encode()
            return (await caller.ask("POST", JOBS, body, Content_Type="application/json"))[:2]

    status, job = await sent("lab", "s3://outputs/hits/chained.txt")
    assert (status, job["input"][-12:]) == (202, "-chained.txt")
    assert (await sent("op", "s3://outputs/elsewhere.txt"))[0] == 202
    for url, code in (
        ("s3://outputs/elsewhere.txt", "denied"),
        (f"s3://{STATE}/functions/f.json", "denied"),
        ("s3://outputs/hits/../elsewhere.txt", "invalid"),
        ("s3://outputs/hits/", "invalid"),
        ("s3://outputs", "invalid"),
        ("https://example.org/x", "invalid"),
        ("s3://outputs/hits/nothing.txt", "not_found"),
    ):
        status, value = await sent("lab", url)
        assert value["error"]["code"] == code, (url, value)


async def test_a_repeated_reference_is_the_first_job_though_its_object_is_gone(site: Site) -> None:
    await put(site, "outputs", "hits/soon-gone.txt", b"here")
    json_ = {"Content_Type": "application/json", "Idempotency_Key": "a reference"}
    async with program(site, "lab") as lab:
        body = json.dumps({"input": "s3://outputs/hits/soon-gone.txt"}).encode()
        first = (await lab.ask("POST", JOBS, body, **json_))[1]
        await site.cloud(lambda s3: s3.delete_object(Bucket="outputs", Key="hits/soon-gone.txt"))
        status, again, _ = await lab.ask("POST", JOBS, body, **json_)
        assert (status, again) == (202, first)
        other = json.dumps({"input": "s3://outputs/hits/other/soon-gone.txt"}).encode()
        await put(site, "outputs", "hits/other/soon-gone.txt", b"other")
        assert (await lab.ask("POST", JOBS, other, **json_))[0] == 409


async def test_a_cloud_event_is_one_job_in_either_form(site: Site) -> None:
    event = {"specversion": "1.0", "id": "e 1", "source": "urn:lab", "type": "photo"}
    headers = {f"ce_{name}": value.replace(" ", "%20") for name, value in event.items()}
    whole = {"Content_Type": "application/cloudevents+json"}
    await put(site, "outputs", "hits/seen.txt", b"seen")
    async with program(site, "lab") as lab:
        first = await lab.submit(b"[1]", Content_Type="application/json", **headers)
        stored = await site.cloud(
            lambda s3: s3.get_object(Bucket="inputs", Key=first["input"][len("s3://inputs/") :])
        )
        assert stored["Body"].read() == b"[1]", "JSON of an event is an input, not a reference"
        body = json.dumps({**event, "data": [1]}).encode()
        assert (await lab.submit(body, **whole))["id"] == first["id"]
        for refused, status, more in (
            ({**event, "data": [2]}, 409, {}),
            ({**event, "id": ""}, 400, {}),
            ({**event, "id": "e 2", "dataref": "https://x/y"}, 400, {}),
            ({**event, "id": "e 3"}, 400, {"Idempotency_Key": "k"}),
        ):
            sent = json.dumps(refused).encode()
            assert (await lab.ask("POST", JOBS, sent, **whole, **more))[0] == status, refused
        body = json.dumps({**event, "id": "e 4", "dataref": "s3://outputs/hits/seen.txt"}).encode()
        copied = await lab.submit(body, **whole)
        assert copied["input"].endswith("-seen.txt")
        headers |= {"ce_id": "e%204", "ce_dataref": "s3://outputs/hits/seen.txt"}
        assert (await lab.submit(b"", **headers))["id"] == copied["id"]
        batch = {"Content_Type": "application/cloudevents-batch+json"}
        assert (await lab.ask("POST", JOBS, b"[]", **batch))[0] == 400


async def test_parameters_of_a_request_are_part_of_it(site: Site) -> None:
    async with program(site, "lab") as lab:
        key = {"Idempotency_Key": "with parameters"}
        job = await lab.submit(b"x", "?set=B=2&set=A=%C3%BC%20%3D", **key)
        assert (await lab.submit(b"x", "?set=A=%C3%BC%20%3D&set=B=2", **key))["id"] == job["id"]
        head = await site.cloud(
            lambda s3: s3.head_object(Bucket="inputs", Key=job["input"][len("s3://inputs/") :])
        )
        assert parameters_in(head["Metadata"]) == {"A": "ü =", "B": "2"}
        for query, status in (("?set=A=1", 409), ("", 409), ("?set=A", 400), ("?set=1=", 400)):
            found, value, _ = await lab.ask("POST", JOBS + query, b"x", **key)
            assert found == status, value


@pytest.mark.parametrize(("code", "status"), [(ErrorCode.DENIED, 403), (ErrorCode.NOT_FOUND, 404)])
async def test_a_store_that_refuses_is_not_asked_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, code: ErrorCode, status: int
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AppError(code, "the bucket")

    monkeypatch.setattr(JobCloud, "submit_once", refused)
    async with program(site, "lab") as lab:
        found, value, _ = await lab.ask("POST", JOBS, b"x")
        assert (found, value["error"]["code"]) == (status, code.value)


@pytest.mark.parametrize(
    ("key", "status"), [("reader", 403), ("labreader", 403), ("other", 403), (None, 401)]
)
async def test_who_may_not_submit_reads_no_more(site: Site, key: str | None, status: int) -> None:
    async with program(site, "lab") as lab, site.orchestrator() as peer:
        job = await lab.submit()
        await receive(site, peer, job)
    async with program(site, key) as caller:
        before = len(await inputs(site))
        found, value, headers = await caller.ask("POST", JOBS, b"x")
        assert (found, value["error"]["code"]) == (status, "denied")
        assert set(value["error"]) == {"code", "message", "details"}
        assert len(await inputs(site)) == before
        assert ("WWW-Authenticate" in headers) is (status == 401)
        assert (await caller.ask("DELETE", job["links"]["job"]))[0] == status
        for path in (job["links"]["job"], job["links"]["events"], job["links"]["outputs"]):
            allowed = 200 if key == "labreader" else status
            if allowed != 200 or path != job["links"]["events"]:
                assert (await caller.ask("GET", path))[0] == allowed, path
        if key is not None:
            listed = [one["id"] for one in (await caller.get("/v1/jobs"))["jobs"]]
            assert (job["id"] in listed) is (key == "labreader")


async def test_a_key_submits_no_job_that_it_could_not_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with program(site, "unbound") as unbound:
        before = len(await inputs(site))
        status, value, _ = await unbound.ask("POST", JOBS, b"x")
        assert (status, value["error"]["code"]) == (403, "denied")
        assert "--tenant" in value["error"]["message"]
        assert len(await inputs(site)) == before
    async with program(site, "lab") as lab:
        job = await lab.submit()

        async def refused(*_: Any) -> Any:
            raise AppError(ErrorCode.DENIED, "the key was revoked")

        monkeypatch.setattr(api_jobs, "known_of", refused)
        again = await lab.ask("POST", f"{JOBS}?wait=20", b"y")
        assert (again[0], job["over"]) == (403, False), "a refusal is no reason to wait"


async def test_a_wrong_key_is_refused_and_a_revoked_one_soon(site: Site) -> None:
    for key in ("lab.wrong", "nothing", ""):
        async with program(site, key) as caller:
            status, value, headers = await caller.ask("GET", "/v1/jobs")
            assert (status, value["error"]["code"]) == (401, "denied")
            assert headers["WWW-Authenticate"] == "Bearer"


async def test_jobs_are_listed_page_by_page_and_filtered(site: Site) -> None:
    async with program(site, "lab") as lab, site.orchestrator() as peer:
        ids = []
        for number in range(5):
            job = await lab.submit(b"%d" % number, f"?name=listed-{number}.txt")
            await receive(site, peer, job)
            ids.append(job["id"])
        found, after = [], ""
        while True:
            page = await lab.get(f"/v1/jobs?q=listed&limit=2{after}")
            found += [one["id"] for one in page["jobs"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert found == ids[::-1]
        await end(site, peer, ids[0], {})
        await lab.get(f"/v1/jobs/{ids[0]}?wait=20")
        over_alone = "/v1/jobs?q=listed&state=over&function=f"

        async def is_listed() -> bool:  # a tenth of a second after the result, at most
            return bool((await lab.get(over_alone))["jobs"])

        await until(is_listed)
        (over,) = (await lab.get(over_alone))["jobs"]
        assert (over["id"], over["state"], over["links"]["job"]) == (
            *(ids[0], "SUCCEEDED"),
            f"/v1/jobs/{ids[0]}",
        )
        for wrong in ("limit=0", "limit=x", "after=x", "since=x", f"q={'x' * 201}"):
            assert (await lab.ask("GET", f"/v1/jobs?{wrong}"))[0] == 400, wrong
        for job in ids[1:]:
            status, value, _ = await lab.ask("DELETE", f"/v1/jobs/{job}?reason=enough")
            assert (status, value["state"]) == (200, "CANCELLED"), value
        assert "enough" in value["detail"]
        status, value, _ = await lab.ask("DELETE", f"/v1/jobs/{ids[0]}")
        assert (status, value["error"]["code"]) == (409, "conflict"), "it ended otherwise"


async def test_wrong_requests_are_refused_with_a_remedy(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = replace(site.function, name="pictures", input_suffixes=(".png",))
    for name, function in (("pictures", pictures), ("theirs", _of("other", site))):
        body = json.dumps(encode(function)).encode()
        await put(site, STATE, f"functions/{name}.json", body)
    before = len(await inputs(site))
    two = aiohttp.FormData({"a": "1"})
    two.add_field("file", b"2", filename="x")
    two.add_field("more", b"3", filename="y")
    refused: list[tuple[str, Any, dict[str, str], int, str]] = [
        ("/v1/functions/none/jobs", b"", {}, 404, "not_found"),
        ("/v1/functions/theirs/jobs", b"", {}, 403, "denied"),
        ("/v1/functions/pictures/jobs?name=x.txt", b"", {}, 400, "invalid"),
        (f"{JOBS}?wait=51", b"", {}, 400, "invalid"),
        (f"{JOBS}?wait=x", b"", {}, 400, "invalid"),
        (f"{JOBS}?wait=-1", b"", {}, 400, "invalid"),
        (f"{JOBS}?name=a/b", b"", {}, 400, "invalid"),
        (f"{JOBS}?name={'x' * 201}", b"", {}, 400, "invalid"),
        (JOBS, b"x", {"Content_Encoding": "gzip"}, 400, "invalid"),
        (JOBS, b"{", {"Content_Type": "application/json"}, 400, "invalid"),
        (JOBS, b'{"put": 1}', {"Content_Type": "application/json"}, 400, "invalid"),
        (JOBS, b"--", {"Content_Type": "multipart/form-data"}, 400, "invalid"),
        (JOBS, b"x", {"Content_Type": "multipart/form-data; boundary=b"}, 400, "invalid"),
        (JOBS, two, {}, 400, "invalid"),
    ]
    async with program(site, "lab") as lab:
        for path, body, headers, status, code in refused:
            found = await lab.ask("POST", path, body, **headers)
            assert (found[0], found[1]["error"]["code"]) == (status, code), (path, found)
            assert len(found[1]["error"]["message"]) > 10
        for method, path, status in (
            ("GET", "/v1/nothing", 404),
            ("PUT", JOBS, 405),
            ("GET", "/v1/jobs/none", 404),
            ("GET", f"/v1/jobs/j{'0' * 25}", 404),
            ("DELETE", f"/v1/jobs/j{'0' * 25}", 404),
        ):
            found = await lab.ask(method, path)
            assert (found[0], set(found[1]["error"])) == (status, {"code", "message", "details"})
        monkeypatch.setattr(uploads, "UPLOAD_BYTES_MAX", 10)
        large = aiohttp.FormData()
        large.add_field("file", b"x" * 11, filename="x")
        bodies: list[Any] = [b"x" * 11, _pieces(), large]
        for body in bodies:
            found = await lab.ask("POST", JOBS, body)
            assert (found[0], found[1]["error"]["code"]) == (422, "impossible")
        assert (await lab.ask("POST", "/v1/functions/pictures/jobs", b"x"))[1]["input"].endswith(
            "-input.png"
        )
    assert len(await inputs(site)) == before + 1, "no refused request stored anything"
    await _forget(site, "functions/pictures.json")
    await _forget(site, "functions/theirs.json")


async def _forget(site: Site, key: str) -> None:
    await site.cloud(lambda s3: s3.delete_object(Bucket=STATE, Key=key))


def _of(tenant: str, site: Site) -> Any:
    return replace(site.function, name="theirs", request=Request(tenant=tenant))


async def test_a_silent_sender_delays_no_other_and_is_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def halting() -> Any:
        yield b"x"
        await asyncio.sleep(50)

    form = aiohttp.FormData()
    form.add_field("file", halting(), filename="x")
    async with program(site, "lab") as lab, asyncio.timeout(30):
        before = len(await inputs(site))
        silent = asyncio.create_task(lab.ask("POST", JOBS, halting(), Idempotency_Key="silent"))
        await until(lambda: _is_counted(site.console.api.inputs))
        await lab.submit(b"x", Idempotency_Key="silent")
        silent.cancel()
        monkeypatch.setattr(uploads, "SILENCE_S", 0.05)
        for body in (halting(), form):
            status, value, _ = await lab.ask("POST", JOBS, body)
            assert (status, value["error"]["code"]) == (504, "timeout")
        assert len(await inputs(site)) == before + 1


async def _pieces() -> Any:
    for _ in range(11):
        yield b"x"


async def test_a_key_has_limits_of_its_own(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    api = site.console.api
    async with program(site, "lab") as lab, program(site, "op") as another:
        await lab.get("/v1/jobs")
        monkeypatch.setattr(api.waiting, "each_max", 1)
        first = asyncio.create_task(lab.ask("POST", f"{JOBS}?wait=50", b"1"))
        await until(lambda: _is_counted(api.waiting))
        status, value, headers = await lab.ask("POST", f"{JOBS}?wait=5&name=second", b"2")
        assert (status, value["error"]["code"], headers["Retry-After"]) == (429, "exhausted", "1")
        assert not [one for one in await inputs(site) if one["Key"].endswith("-second")]
        assert (await another.ask("POST", f"{JOBS}?wait=0.01", b"2"))[0] == 202, "its own limit"
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first

        async def has_gone() -> bool:
            return not await _is_counted(api.waiting)

        await until(has_gone)
        monkeypatch.setattr(api.inputs, "each_max", 0)
        assert (await lab.ask("POST", JOBS, b"2"))[0] == 429
        monkeypatch.setattr(state, "REQUESTS_OF_KEY_PER_S", 0.01)
        api.rates.buckets.clear()
        found = [(await lab.ask("GET", "/v1/jobs"))[0] for _ in range(2)]
        assert found == [200, 429]
        assert (await another.ask("GET", "/v1/jobs"))[0] == 200
        api.rates.buckets.clear()


async def _is_counted(at_once: state.AtOnce) -> bool:
    return bool(at_once._running)
