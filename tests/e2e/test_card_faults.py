"""Faults of a card, from its driver to the reason of a job: a whole system over stand-ins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.live import FunctionSpec, Live, live_system, until
from tests.integration.gpud.cards import Cards, compile_stand_ins, needs_stand_ins

pytestmark = [pytest.mark.soak, *needs_stand_ins]
#: Multiplies until it is ended; an attempt of it never succeeds.
MULTIPLY = """#!/usr/bin/env python3
import remote_gpu.client as gpu
ones = bytes(64)
with gpu.connect() as device:
    while True:
        device.op("sgemm", ones, ones, m=4, n=4, k=4)
"""
FUNCTIONS = {
    name: FunctionSpec(
        MULTIPLY, timeout=60, gpu={"kinds": ["cuda"], "memory": 1024}, job={"attempts": 1}
    )
    for name in ("broken", "hanging")
}


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cards]:
    libraries = tmp_path_factory.mktemp("libraries")
    compile_stand_ins(libraries)
    made = Cards(libraries)
    yield made
    made.close()


@pytest.fixture(scope="module")
def live(cards: Cards, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    options = ("--operation", "sgemm", "--card-call-s", "1")
    with pytest.MonkeyPatch.context() as patched:
        for name, value in cards.variables.items():
            patched.setenv(name, value)
        with live_system(tmp_path_factory.mktemp("live"), host_options=options) as system:
            system.start_all()
            system.deploy(FUNCTIONS)
            yield system


@pytest.mark.parametrize(
    ("function", "fact", "why"),
    [
        ("broken", {"fail": "cuStreamSynchronize 214"}, "CUDA_ERROR_ECC_UNCORRECTABLE"),
        ("hanging", {"hang": "cuStreamSynchronize"}, "did not return within 1 s"),
    ],
)
def test_a_job_has_the_fault_of_its_card_as_its_reason(
    live: Live, cards: Cards, function: str, fact: dict[str, str], why: str
) -> None:
    job = live.upload(function)
    until("a working job", lambda: [one for one in live.leases() if one["state"] == "ACTIVE"])
    [lease] = live.leases()
    board = cards.board(lease["shares"][0]["device"])
    cards.set(**{f"_{board}_{key}": value for key, value in fact.items()})
    result = live.result(function, job)
    assert (result.state, result.reason) == ("FAILED", "DEVICE_BAD"), result
    assert why in result.detail
    cards.set()
    live.quiet(function)
    until("both cards work", lambda: _healthy(live) == ["OK", "OK"])


def _healthy(live: Live) -> list[str]:
    devices = [
        one["device"] for host in live.scheduler("inventory")["hosts"] for one in host["devices"]
    ]
    return [str(one["health"]) for one in devices if one["kind"] == "cuda"]
