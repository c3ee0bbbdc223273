"""Jobs without AWS: a store, a database and hosts of one's own; `kill -9` of each of them."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchgpu.local.programs import HOSTS
from tests.e2e.http_service import container, twice_delivering
from tests.e2e.live import COPY, DEVICE, until
from tests.e2e.own_live import OwnLive, definition, own_live
from tests.e2e.storms import restart, storm

#: Programs that are killed while jobs run.
KILLED = ("cloud", "database", "orchestrator", *HOSTS)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnLive]:
    with own_live(tmp_path_factory.mktemp("own")) as system:
        system.start_all(orchestrators=())
        system.deploy_text("device", definition("device", "run.py"), {"run.py": DEVICE})
        yield system


@pytest.mark.timeout(300)
def test_an_upload_becomes_a_result_by_the_webhook(live: OwnLive) -> None:
    live.start("orchestrator")
    job = live.upload("device", "a b+ü.txt", b"data")
    result = live.result("device", job, within_s=120)
    assert (result.state, len(result.files)) == ("SUCCEEDED", 1), result
    live.quiet("device")
    shown = live.orchgpu("jobs")
    assert job in shown
    assert "SUCCEEDED" in shown
    assert live.terminate("orchestrator") == 0


@pytest.mark.timeout(300)
def test_an_upload_is_found_without_any_event(live: OwnLive) -> None:
    command = ("env", "-u", "ORCHGPU_STORE_EVENTS", sys.executable, "-m", "orchgpu")
    live.start("orchestrator", command=(*command, "orchestrate", "--search-every", "1"))
    job = live.upload("device", "unheard.txt", b"data")
    assert live.result("device", job, within_s=120).state == "SUCCEEDED"
    live.quiet("device")
    assert live.terminate("orchestrator") == 0


@pytest.mark.timeout(300)
def test_a_container_of_an_http_service_runs_a_job_against_a_device(live: OwnLive) -> None:
    with container(live) as (at, process), twice_delivering(at) as gateway:
        place = f"service: http://{gateway.address}/async-function/served"
        text = definition("served", "run.py", place=place)
        live.deploy_text("served", text, {"run.py": DEVICE})
        live.start("orchestrator")
        job = live.upload("served", "in.txt", b"data")
        result = live.result("served", job, within_s=120)
        assert (result.state, len(result.files)) == ("SUCCEEDED", 1), result
        assert result.device["kind"] == "cpu"
        live.quiet("served")
        until("the ends of both deliveries", lambda: len(gateway.ends) >= 2)
        cut, joined = gateway.ends[:2]
        assert (cut, "exit_status" in joined) == ("cut", True), gateway.ends
        assert "it ran in an HTTP service" in " ".join(live.orchgpu("job", job).split())
        assert live.terminate("orchestrator") == 0
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        assert children.read_text() == "", "a run leaves no process, and no zombie"
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.timeout(3600)
@pytest.mark.soak
@pytest.mark.parametrize(("count", "seed"), [(30, 1), (200, 2)])
def test_no_job_is_lost_or_committed_twice(tmp_path: Path, count: int, seed: int) -> None:
    with own_live(tmp_path) as live:
        live.start_all()
        text = definition("copy", "run.sh")
        live.deploy_text("copy", text, {"run.sh": COPY})

        def kill(number: int, chance: random.Random) -> None:
            restart(live, KILLED[number % len(KILLED)], chance)

        storm(live, count, seed, 6.0, kill)
