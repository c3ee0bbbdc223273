"""The particular rules of single middlewares: pocl, lupine, cricket."""

from __future__ import annotations

import re

import pytest

from corekit.errors import AppError
from corekit.ids import DeviceId
from corekit.values import replace
from gpu_scheduler.model import DeviceKind, GrantedLease, Share
from remote_gpu.middleware import find, names, render
from remote_gpu.middleware.base import ServerLease, VisibleDevices
from remote_gpu.wire.variables import filled_variables
from tests.unit.remote_gpu.test_middleware import granted, share

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
def test_pocl_is_refused_where_its_server_would_show_other_devices(
    visible: VisibleDevices, shares: tuple[Share, ...], why: str | None
) -> None:
    found = find("pocl").refusal(visible, shares)
    assert (found is None) == (why is None)
    assert found is None or re.search(why or "", found)


def test_cuda_servers_are_restricted_by_a_variable_on_any_host() -> None:
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
def test_pocls_own_cpu_is_hidden_beside_a_card(device: str, kind: DeviceKind, own: bool) -> None:
    one = replace(share("h", 0), device=DeviceId(device), kind=kind)
    command = find("pocl").server_command(ServerLease(fence=7, shares=(one,), port=9000))
    assert command is not None
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


def test_cricket_gets_an_address_other_than_its_own() -> None:
    given = {"REMOTE_GPU_ADDRESS": "127.0.0.1:{0}", "CRICKET_RPCID": "41"}
    filled = filled_variables("cricket", given, [40001], "")
    assert filled == {"REMOTE_GPU_ADDRESS": "127.0.0.2:40001", "CRICKET_RPCID": "41"}
