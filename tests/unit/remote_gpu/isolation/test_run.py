"""The ports of a run."""

from __future__ import annotations

from pathlib import Path

from remote_gpu.isolation import run
from remote_gpu.isolation.places import HostFiles
from remote_gpu.isolation.run import RunReach


def reach(*, network: bool) -> RunReach:
    """Of a host whose scheduler is at the port of HTTPS."""
    return RunReach(
        files=HostFiles(),
        packages=Path("/packages"),
        gateway_port=7000,
        endpoint_ports=(9000,),
        closed_ports=(80, 443, 7443),
        network=network,
    )


def test_a_runner_reaches_s3_beside_a_scheduler_at_the_port_of_https() -> None:
    assert run._ports(reach(network=False)) == [53, 443, 7000, 9000]
    ports = set(run._ports(reach(network=True)))
    assert {53, 443, 7000, 9000, 12345} <= ports
    assert not {80, 7443} & ports
