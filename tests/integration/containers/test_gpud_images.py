"""Functions with an image on a real gpud, from the order to the result, and to every other end."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from contract.states import JobState, Reason
from remote_gpu.host.containers.serving import run_folder
from remote_gpu.isolation import probe
from remote_gpu.isolation.policy import LANDLOCK_PORTS
from remote_gpu.wire.errors import Refused
from remote_gpu.wire.runs import RunOrder
from tests.integration.containers.conftest import Hosted, unmount
from tests.integration.gpud.conftest import Gpud, running_gpud, until
from tests.integration.gpud.run_bench import Bench, bench_in, send_order

#: It waits for a second podman's trial, a cloud and a gpud, on whatever machine.
pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class ImageBench:
    """A gpud with containers, and the program's image in S3."""

    gpud: Gpud
    bench: Bench
    image: str

    def order(self, job: object, event: str, *words: str, **fields: object) -> RunOrder:
        package = self.bench.package("#!/bin/sh\nexit 9\n")
        order = self.bench.order(job, event, package, image=self.image)  # type: ignore[arg-type]
        return replace(order, command=("/program", *words), **fields)  # type: ignore[arg-type]


@pytest.fixture
def on(hosted: Hosted, archived: Path, tmp_path: Path) -> Iterator[ImageBench]:
    state = tmp_path / "gpud"
    state.mkdir()
    facts = probe.ask([])
    if facts.landlock < LANDLOCK_PORTS:
        pytest.skip(f"NOT TESTED: this machine isolates too little: {dict(facts.why)}")
    with bench_in(tmp_path) as bench, running_gpud(state, "--images-mib", "256") as gpud:
        bench.s3.upload_file(str(archived), "state", "image.tar")
        digest = hashlib.sha256(archived.read_bytes()).hexdigest()
        yield ImageBench(gpud, bench, f"s3://state/image.tar#sha256:{digest}")
    unmount(state)
    shutil.rmtree(run_folder(gpud.state.resolve()))


def _programs() -> int:
    """The number of the program's processes that wait, on the whole machine."""
    found = 0
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += one.read_bytes().startswith(b"/program\0ignore\0")
    return found


def test_an_image_runs_to_its_result_and_to_other_ends(on: ImageBench) -> None:
    gpud, bench = on.gpud, on.bench
    programs = set(gpud.hello["programs"])
    assert {"function-runner", "containers"} <= programs
    assert "images-network" not in programs

    install = gpud.install()
    job, event = bench.stage(gpud, install)
    with pytest.raises(Refused, match="start gpud with --images-network"):
        send_order(gpud, install, on.order(job, event, "copy", network=True))
    assert send_order(gpud, install, on.order(job, event, "copy", ",", "status"))
    until(lambda: bench.ended(job))
    result = bench.result(job)
    assert result is not None, bench.report(job)
    assert result.state == JobState.SUCCEEDED
    assert [file["key"] for file in result.files] == ["res/copy"]
    stored = bench.s3.get_object(Bucket="output", Key="res/copy")["Body"].read()
    assert stored == b"hello"
    assert "CapEff:\t0000000000000000" in result.log_tail

    for words, reason in (
        (("memory",), Reason.OUT_OF_MEMORY),
        (("exit", "3"), Reason.EXIT_NONZERO),
    ):
        install = gpud.install()
        job, event = bench.stage(gpud, install)
        assert send_order(gpud, install, on.order(job, event, *words, memory_mib=64))
        until(lambda: bench.ended(job))  # noqa: B023 - it is called in the loop
        report = bench.report(job)
        assert report is not None
        assert report.reason == reason, report


def test_the_end_of_a_lease_ends_its_container(on: ImageBench) -> None:
    gpud, bench = on.gpud, on.bench
    install = gpud.install()
    job, event = bench.stage(gpud, install)
    assert send_order(gpud, install, on.order(job, event, "ignore"))
    until(lambda: _programs() == 1)
    gpud.scheduler.end(install)
    until(lambda: _programs() == 0)
    scratch = next(gpud.state.glob("**/scratch"))
    until(lambda: not any(scratch.iterdir()))
    assert not bench.ended(job)
    assert str(gpud.state) not in Path("/proc/self/mountinfo").read_text()
