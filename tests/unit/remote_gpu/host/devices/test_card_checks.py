"""A worker's report that a card failed is checked: it may run foreign code."""

from __future__ import annotations

import pytest

from corekit.ids import DeviceId, HostId
from gpu_scheduler.model import DeviceKind, Share
from gpu_scheduler.names import EMULATED_PREFIX
from remote_gpu.host.devices.card_checks import read_fault


def share(index: int, kind: DeviceKind, model: str) -> Share:
    return Share(
        host=HostId("h"),
        device=DeviceId(f"d{index}"),
        index=index,
        kind=kind,
        model=model,
        memory_mib=1,
        compute_guarantee_pct=0,
        compute_limit_pct=100,
        exclusive=False,
    )


SHARES = (
    share(0, DeviceKind.CPU, "a CPU"),
    share(1, DeviceKind.CUDA, "NVIDIA L4"),
    share(2, DeviceKind.CUDA, f"{EMULATED_PREFIX}K600"),
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
