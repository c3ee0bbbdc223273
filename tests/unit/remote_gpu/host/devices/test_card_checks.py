"""A worker's report that a card failed is checked: it may run foreign code."""

from __future__ import annotations

import pytest

from gpu_scheduler.model import DeviceKind
from gpu_scheduler.names import EMULATED_PREFIX
from remote_gpu.host.devices.card_checks import read_fault
from tests.installs import share_of

SHARES = (
    share_of("d0", index=0, kind=DeviceKind.CPU),
    share_of("d1", index=1, kind=DeviceKind.CUDA, model="NVIDIA L4"),
    share_of("d2", index=2, kind=DeviceKind.CUDA, model=f"{EMULATED_PREFIX}K600"),
)


def test_the_card_of_the_index_is_found() -> None:
    assert read_fault(SHARES, [1, "x" * 1000]) == ("d1", "x" * 300)


@pytest.mark.parametrize(
    "report",
    [
        [0, "a CPU"],
        [2, "an emulated card"],
        [3, "no device of the lease"],
        [True, "no index"],
        [1, 7],
        [1],
        {"1": "reason"},
        "reason",
    ],
)
def test_other_reports_break_the_protocol(report: object) -> None:
    with pytest.raises(ValueError, match="fault"):
        read_fault(SHARES, report)
