"""A result names objects; the console, with its own rights, reads the job's own outputs only."""

from __future__ import annotations

from typing import Any

import pytest

from contract.keys import job_id
from tests.history_records import job_result
from tests.integration.web.conftest import Site, asked, until
from tests.integration.web.test_web_routes import ended, put

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = b"another tenant's"


def naming(job: str, *places: tuple[str, str]) -> bytes:
    """A result of the job, written by whoever can write into the function's bucket."""
    files = [{"bucket": bucket, "key": key, "size": 9, "sha256": ""} for bucket, key in places]
    result = job_result(job_id=job, attempt=1, files=files, times={"committed": 3.0})
    return result.to_json()


async def test_a_result_reaches_no_object_but_the_outputs_of_its_job(site: Site) -> None:
    async with site.browser("lab") as browser, site.orchestrator() as peer:
        job = await site.begun(peer, "reaching")
        await put(site, "inputs", "secret.txt", SECRET, job)
        await put(site, "outputs", "hits/theirs.txt", SECRET, "jAnother")
        await put(site, "outputs", "hits/nobodys.txt", SECRET, None)
        await put(site, "outputs", "elsewhere/a.txt", SECRET, job)
        await put(site, "outputs", "hitsandmore/a.txt", SECRET, job)
        await put(site, "outputs", "hits/mine.txt", b"mine", job)
        await put(site, "outputs", "hits/large.txt", b"x" * 100, job)
        places = [
            ("inputs", "secret.txt"),
            ("middle", f"results/{job}.json"),
            ("outputs", "hits/theirs.txt"),
            ("outputs", "hits/nobodys.txt"),
            ("outputs", "elsewhere/a.txt"),
            ("outputs", "hitsandmore/a.txt"),
            ("outputs", "hits/../elsewhere/a.txt"),
            ("outputs", "hits/./theirs.txt"),
            ("outputs", "hits//theirs.txt"),
            ("outputs", "hits/"),
            ("outputs", ""),
            ("outputs/hits", "theirs.txt"),
            ("inputs/secret.txt?x=", "hits/mine.txt"),
        ]
        await put(
            site,
            "middle",
            f"results/{job}.json",
            naming(job, *places, ("outputs", "hits/mine.txt")),
        )
        await ended(site, browser, peer, job, "SUCCEEDED")
        for number, place in enumerate(places):
            path = f"/api/jobs/{job}/outputs/{number}"
            for asked_for in (path, f"{path}?download"):
                status, value, _ = await browser.ask("GET", asked_for)
                assert status in (403, 404, 409), (place, status, value)
                assert isinstance(value, dict), (place, value)
        mine = f"/api/jobs/{job}/outputs/{len(places)}"
        assert (await browser.ask("GET", mine))[:2] == (200, b"mine")


async def test_an_output_is_as_large_as_it_is_and_not_as_its_result_says(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchgpu.web.routes.jobs.BYTES_MAX", 99)
    async with site.browser("lab") as browser, site.orchestrator() as peer:
        job = await site.begun(peer, "large")
        await put(site, "outputs", "hits/large.txt", b"x" * 100, job)
        await put(site, "middle", f"results/{job}.json", naming(job, ("outputs", "hits/large.txt")))
        await ended(site, browser, peer, job, "SUCCEEDED")
        status, value, _ = await browser.ask("GET", f"/api/jobs/{job}/outputs/0")
        assert (status, value["error"]["code"]) == (422, "impossible")
        assert "100 bytes" in value["error"]["message"]


@pytest.mark.parametrize("record", ["known", "forgotten"])
async def test_a_record_that_names_another_tenants_function_shows_nothing_of_it(
    site: Site, record: str
) -> None:
    """The scheduler does not know functions: a record names whichever its key wrote."""
    job = job_id("inputs", "salaries.csv", f"forged-{record}", "f")
    await put(site, "outputs", "hits/mine.txt", SECRET, job)
    await put(site, "middle", f"results/{job}.json", naming(job, ("outputs", "hits/mine.txt")))
    async with site.browser("other") as browser, site.orchestrator("other") as peer:
        if record == "known":
            await forged(site, peer, job)
        for part in ("", "/logs", "/outputs", "/outputs/0", "/cost"):
            status, value, _ = await browser.ask("GET", f"/api/jobs/{job}{part}")
            assert status == 403, (part, status, value)
        for change in ("cancel", "retry"):
            status, value, _ = await browser.ask("POST", f"/api/jobs/{job}/{change}", {})
            assert status == 403, (change, status, value)
        if record == "known":
            await asked(peer, op="finish", holder=job, outcome="FAILED", reason="NONE")


async def forged(site: Site, peer: Any, job: str) -> None:
    """A record by a key of tenant `other`, with the id of a job of `lab` and its function."""
    answer = await asked(
        peer,
        op="attempt",
        holder=job,
        n=1,
        revision=0,
        handle="h",
        request={"tenant": "other", "kinds": ["cuda"]},
        block={"function": "f"},
    )
    assert "ok" in answer, answer

    async def is_shown() -> bool:
        return site.console.picture.jobs.get(job) is not None

    await until(is_shown)
