"""Jobs in AWS's weather at scale 0.02: uploads right after a first deploy, and none is lost.

`pytest tests/e2e --weather aws` runs every end-to-end test like this; `make soak` does so.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest

from tests.e2e.live import COPY, DEVICE, FunctionSpec, Live, live_system

#: Throttled more often than by default: a test lasts half a minute.
WEATHER = "aws:scale=0.02,seed=1,throttle_pause_s=50-300,throttle_s=60-180"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_system(tmp_path_factory.mktemp("weather"), weather=WEATHER) as system:
        system.start_all()
        yield system


def counts(live: Live) -> dict[str, int]:
    """How often each rule took effect."""
    with urllib.request.urlopen(f"{live.endpoint}/_local_cloud/weather", timeout=10) as answer:
        found: dict[str, int] = json.load(answer)["counts"]
        return found


def test_every_upload_after_a_first_deploy_has_its_result(live: Live) -> None:
    functions = {"copied": FunctionSpec(COPY), "computed": FunctionSpec(DEVICE)}
    live.deploy(functions)
    jobs = [(name, live.upload(name, f"{n}.txt")) for n in range(6) for name in functions]
    for name, job in jobs:
        result = live.result(name, job)
        assert result.state == "SUCCEEDED", (result.reason, result.detail)
    live.quiet(*functions)
    for name in functions:
        assert live.take_dead_letters(name) == []
    assert counts(live)["notification rules late"] > 0


@pytest.mark.soak
def test_a_function_is_removed_and_deployed_again(live: Live) -> None:
    functions = {"again": FunctionSpec(COPY)}
    for _ in range(2):
        live.deploy(functions)
        live.deploy({"again": FunctionSpec(COPY, timeout=31)})
        job = live.upload("again", "a.txt")
        assert live.result("again", job).state == "SUCCEEDED"
        live.quiet("again")
        live.orchgpu("rm", "again")
