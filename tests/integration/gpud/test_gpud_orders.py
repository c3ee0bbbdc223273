"""The orchestrator's orders of runs at a real gateway."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.states import JobState
from corekit.errors import AppError, ErrorCode
from corekit.ids import AttemptId
from gpu_scheduler.model import GrantedLease, Lease, LeaseState
from gpu_scheduler.protocol.host import Install
from orchgpu.adapters.hosts import GatewayRuns
from remote_gpu.wire.runs import RunOrder

from .conftest import Gpud, running_gpud, until
from .run_bench import Bench, bench_in

COPY = '#!/bin/sh\ncp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/out.txt"\n'


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_in(tmp_path_factory.mktemp("cloud")) as made:
        yield made


@pytest.fixture
def gpud(tmp_path: Path) -> Iterator[Gpud]:
    with running_gpud(tmp_path) as made:
        yield made


def granted(gpud: Gpud, install: Install, gateway: str = "", secret: str = "") -> GrantedLease:
    lease = Lease(
        id=install.lease,
        attempt=AttemptId("a:1"),
        holder=None,
        fence=install.fence,
        state=LeaseState.RESERVED,
        shares=install.shares,
    )
    return GrantedLease(
        lease=lease,
        epoch=1,
        gateways={"gpu-a": gateway or gpud.gateway},
        secrets={"gpu-a": secret or install.secret},
    )


def ordered(lease: GrantedLease, *orders: RunOrder) -> list[bool]:
    async def each() -> list[bool]:
        with GatewayRuns() as runs:
            return [await runs.start(lease, order) for order in orders]

    return asyncio.run(each())


def refusal(lease: GrantedLease, order: RunOrder) -> ErrorCode:
    with pytest.raises(AppError, match=r"^host gpu-a: ") as caught:
        ordered(lease, order)
    return caught.value.code


def test_a_lease_has_one_run_and_a_repetition_renews_it(gpud: Gpud, bench: Bench) -> None:
    install = gpud.install()
    job, event = bench.stage(gpud, install)
    order = bench.order(job, event, bench.package(COPY))
    assert ordered(granted(gpud, install), order, order) == [True, False]
    until(lambda: bench.ended(job))
    result = bench.result(job)
    assert result is not None
    assert result.state == JobState.SUCCEEDED
    until(lambda: gpud.scheduler.states(install.lease)[-1:] == [("closed", "DONE")])


def test_refusals_have_the_codes_of_the_port(gpud: Gpud, bench: Bench) -> None:
    install = gpud.install()
    job, event = bench.stage(gpud, install)
    order = bench.order(job, event, bench.package(COPY))
    for lease, code in (
        (granted(gpud, install, secret=secrets.token_hex(32)), ErrorCode.DENIED),
        (granted(gpud, install, gateway="127.0.0.1:1"), ErrorCode.UNAVAILABLE),
    ):
        assert refusal(lease, order) is code
    gpud.scheduler.end(install)
    until(lambda: refusal(granted(gpud, install), order) is ErrorCode.CONFLICT)
