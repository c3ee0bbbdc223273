"""What each middleware renders, held against golden files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from corekit.ids import DeviceId, HostId, LeaseId
from gpu_scheduler.model import DeviceKind, GrantedLease, Lease, LeaseState, Share
from remote_gpu.middleware import find, names, render
from remote_gpu.wire.connection import parse_access

GOLDEN = Path(__file__).parent / "golden"


def share(host: str, index: int) -> Share:
    return Share(
        host=HostId(host), device=DeviceId(f"{host}/{index}"), index=index, kind=DeviceKind.CUDA,
        model="NVIDIA L4", memory_mib=4096, compute_guarantee_pct=0, compute_limit_pct=100,
        exclusive=False,
    )  # fmt: skip


def granted() -> GrantedLease:
    """Two devices of one host and one of another, not in order of hosts."""
    lease = Lease(
        id=LeaseId("lease-9"), attempt="j1:1", holder=None, fence=41, state=LeaseState.RESERVED,
        shares=(share("gpu-b", 1), share("gpu-a", 0), share("gpu-b", 3)),
    )  # fmt: skip
    return GrantedLease(
        lease=lease, epoch=2,
        gateways={"gpu-a": "10.0.0.7:4711", "gpu-b": "gpu-b.internal:4712"},
        secrets={"gpu-a": "aa" * 32, "gpu-b": "bb" * 32},
    )  # fmt: skip


@pytest.mark.parametrize("name", names())
def test_rendered_as_in_its_golden_file(name) -> None:
    rendered = {
        "env": render(name, granted()),
        "server": encode(find(name).server_command(share("gpu-b", 1), 9000)),
    }
    assert rendered == json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize("name", names())
def test_its_connection_is_what_a_session_takes(name) -> None:
    access = parse_access(render(name, granted())["connection"])
    assert [(h.host, d.index) for h, d in access.devices] == [
        ("gpu-b", 1), ("gpu-b", 3), ("gpu-a", 0),
    ]  # fmt: skip


def test_an_unknown_middleware_names_the_known_ones() -> None:
    with pytest.raises(AppError, match="builtin, rcuda") as error:
        render("nonsense", granted())
    assert error.value.code is ErrorCode.INVALID


def test_a_host_without_a_gateway_is_refused() -> None:
    lease = granted()
    advisory = GrantedLease(lease=lease.lease, epoch=2, gateways={}, secrets=lease.secrets)
    for name in names():
        with pytest.raises(AppError, match="no gateway"):
            render(name, advisory)
