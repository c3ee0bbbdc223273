"""What each middleware renders, held against golden files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from corekit.ids import DeviceId, HostId, LeaseId
from corekit.values import replace
from fdl.model import MIDDLEWARES, ONE_HOST_MIDDLEWARES
from gpu_scheduler.model import DeviceKind, GrantedLease, Lease, LeaseState, Share
from remote_gpu.middleware import VisibleDevices, find, names, render
from remote_gpu.middleware.base import device_variables
from remote_gpu.wire.connection import parse_access
from remote_gpu.wire.variables import filled_variables

GOLDEN = Path(__file__).parent / "golden"
ONE_HOST = ("cricket", "gvirtus", "pocl", "vaccel")


def share(host: str, index: int) -> Share:
    return Share(
        host=HostId(host),
        device=DeviceId(f"{host}/{index}"),
        index=index,
        kind=DeviceKind.CUDA,
        model="NVIDIA L4",
        memory_mib=4096,
        compute_guarantee_pct=0,
        compute_limit_pct=50,
        exclusive=False,
    )


def granted(name: str = "builtin") -> GrantedLease:
    """Two devices of one host and, where its client can, one of another in between."""
    shares = (share("gpu-b", 1), share("gpu-a", 0), share("gpu-b", 3))
    lease = Lease(
        id=LeaseId("lease-9"),
        attempt="j1:1",
        holder=None,
        fence=41,
        state=LeaseState.RESERVED,
        shares=shares[::2] if name in ONE_HOST else shares,
    )
    return GrantedLease(
        lease=lease,
        epoch=2,
        gateways={"gpu-a": "10.0.0.7:4711", "gpu-b": "gpu-b.internal:4712"},
        secrets={"gpu-a": "aa" * 32, "gpu-b": "bb" * 32},
    )


def test_a_definition_may_name_what_has_a_file() -> None:
    assert names() == MIDDLEWARES
    assert ONE_HOST == ONE_HOST_MIDDLEWARES


@pytest.mark.parametrize("name", names())
def test_rendered_as_in_its_golden_file(name) -> None:
    rendered = {
        "env": render(name, granted(name)),
        "server": encode(
            find(name).server_command(41, (share("gpu-b", 1), share("gpu-b", 3)), 9000)
        ),
    }
    assert rendered == json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize("name", names())
def test_its_connection_is_what_a_session_takes(name) -> None:
    access = parse_access(render(name, granted(name))["connection"])
    assert [(h.host, d.index) for h, d in access.devices] == [
        ("gpu-b", 1),
        ("gpu-b", 3),
        ("gpu-a", 0),
    ][: len(access.devices)]


@pytest.mark.parametrize("name", ONE_HOST)
def test_a_client_of_one_server_gets_no_lease_over_two_hosts(name) -> None:
    with pytest.raises(AppError, match="reaches one host") as error:
        render(name, granted())
    assert error.value.code is ErrorCode.INVALID


def test_a_server_sees_cuda_devices_by_uuid_and_none_of_a_lease_without_one() -> None:
    cpu = replace(share("h", 0), kind=DeviceKind.CPU)
    assert device_variables((cpu,))["CUDA_VISIBLE_DEVICES"] == ""
    whole = replace(share("h", 0), device=DeviceId("GPU-8a1b"), exclusive=True)
    part = replace(share("h", 1), device=DeviceId("MIG-77"), memory_mib=1024)
    found = device_variables((whole, cpu, part))
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-8a1b,MIG-77"
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "1=1024M"
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in found


def test_an_unknown_middleware_names_the_known_ones() -> None:
    with pytest.raises(AppError, match="builtin, rcuda, lupine") as error:
        render("nonsense", granted())
    assert error.value.code is ErrorCode.INVALID


def test_a_host_without_a_gateway_is_refused() -> None:
    for name in names():
        lease = granted(name)
        advisory = GrantedLease(lease=lease.lease, epoch=2, gateways={}, secrets=lease.secrets)
        with pytest.raises(AppError, match="no gateway"):
            render(name, advisory)


CPU, CARD = (replace(share("h", 0), kind=kind) for kind in (DeviceKind.CPU, DeviceKind.OPENCL))


@pytest.mark.parametrize(
    ("visible", "shares", "why"),
    [
        (VisibleDevices(), (), None),
        (VisibleDevices(opencl_cpus=1), (CPU,), None),
        (VisibleDevices(opencl_cards=1), (CARD,), None),
        (VisibleDevices(cuda=1), (share("h", 0),), None),
        (VisibleDevices(opencl_cards=1), (CPU,), "would show its card"),
        (VisibleDevices(cuda=1), (CPU,), "would show its card"),
        (VisibleDevices(opencl_cards=2), (), "this host has 2 .0 of NVIDIA, 2 other cards, 0 CPUs"),
        (VisibleDevices(cuda=1, opencl_cpus=1), (), "this host has 2 .1 of NVIDIA"),
        (VisibleDevices(opencl_cpus=2), (), "run gpud where one is visible"),
        (VisibleDevices(opencl_known=False), (), "orchgpu.opencl"),
    ],
)
def test_pocl_is_refused_where_its_server_would_show_other_devices(visible, shares, why) -> None:
    found = find("pocl").refusal(visible, shares)
    assert (found is None) == (why is None)
    assert found is None or re.search(why, found)


def test_servers_of_cuda_are_held_by_a_variable_whatever_the_host_has() -> None:
    many = VisibleDevices(cuda=8, opencl_cards=2, opencl_cpus=1)
    assert {name: find(name).refusal(many) for name in names() if name != "pocl"} == dict.fromkeys(
        [name for name in names() if name != "pocl"]
    )


@pytest.mark.parametrize(
    ("device", "kind", "own"),
    [
        ("h/cpu0", DeviceKind.CPU, True),
        ("h/portable-computing-language0", DeviceKind.OPENCL, True),
        ("h/intel-r-opencl-graphics0", DeviceKind.OPENCL, False),
        ("GPU-8a1b", DeviceKind.CUDA, False),
    ],
)
def test_pocls_own_cpu_is_hidden_beside_a_card(device, kind, own) -> None:
    one = replace(share("h", 0), device=DeviceId(device), kind=kind)
    command = find("pocl").server_command(7, (one,), 9000)
    assert command.variables.get("POCL_DEVICES") == (None if own else "none")


def test_lupine_takes_sixteen_servers() -> None:
    def leased(count: int) -> GrantedLease:
        shares = tuple(share(f"gpu-{number}", 0) for number in range(count))
        hosts = [one.host for one in shares]
        return GrantedLease(
            lease=replace(granted().lease, shares=shares),
            epoch=2,
            gateways={host: f"{host}:1" for host in hosts},
            secrets=dict.fromkeys(hosts, "aa" * 32),
        )

    servers = render("lupine", leased(16))["variables"]["LUPINE_SERVER"]
    assert servers.count(",") == 15
    with pytest.raises(AppError, match="uses 16 servers, and lease lease-9 has devices on 17"):
        render("lupine", leased(17))


def test_a_client_that_asks_whether_its_server_is_local_is_told_another_address() -> None:
    given = {"REMOTE_GPU_ADDRESS": "127.0.0.1:{0}", "CRICKET_RPCID": "41"}
    filled = filled_variables("cricket", given, [40001], "")
    assert filled == {"REMOTE_GPU_ADDRESS": "127.0.0.2:40001", "CRICKET_RPCID": "41"}


def test_what_an_older_orchestrator_renders_is_still_taken() -> None:
    given = {"LUPINE_SERVER": "127.0.0.1:{0}", "LUPINE_DISABLE_LOCAL": "1", "LUPINE_AUTO": "0"}
    assert filled_variables("lupine", given, [40001], "")["LUPINE_AUTO"] == "0"
