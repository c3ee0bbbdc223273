"""The API conforms to its description, whatever a schema fuzzer sends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from orchgpu.web.api import state
from orchgpu.web.http.server import API_MODULES
from tests.integration.ssgmd.test_ssgmd_openapi import CHECKS
from tests.integration.web.conftest import Site
from tests.integration.web.programs import end, program, receive

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMATHESIS = Path(sys.executable).parent / "schemathesis"


async def fuzzed(site: Site, folder: Path, *arguments: str) -> None:
    async with program(site, "lab") as lab, site.orchestrator() as peer:
        job = await lab.submit()
        await receive(site, peer, job)
        await end(site, peer, job["id"], {"a.txt": b"1"})
    child = await asyncio.create_subprocess_exec(
        *(SCHEMATHESIS, "--config-file", "/dev/null", "run", f"{site.url}/v1/openapi.json"),
        *("--checks", ",".join(CHECKS), "--no-color", "--generation-database", "none"),
        *("--suppress-health-check", "too_slow"),  # on a busy machine any schema is
        *("--header", f"Authorization: Bearer {site.keys['lab']}", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
    )
    out, _ = await child.communicate()
    assert child.returncode == 0, out.decode()[-6000:]
    assert b"Operations" in out


async def test_every_route_is_described_and_no_other(site: Site) -> None:
    async with program(site, None) as anyone:
        found = await anyone.get("/v1/openapi.json")
    described = {
        (method.upper(), path.replace("{output}", "{name:.+}"))
        for path, methods in found["paths"].items()
        for method in methods
        if method != "parameters"
    }
    served = {(one.method, one.path) for module in API_MODULES for one in module.ROUTES}
    assert described == served


async def test_the_api_conforms_to_its_description(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "REQUESTS_OF_KEY_PER_S", 1e6)
    await fuzzed(site, tmp_path, "--phases", "fuzzing", "--max-examples", "4", "--seed", "7")


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_the_api_conforms_to_its_description_for_long(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "REQUESTS_OF_KEY_PER_S", 1e6)
    phases = "examples,coverage,fuzzing"
    await fuzzed(site, tmp_path, "--phases", phases, "--max-examples", "60")
