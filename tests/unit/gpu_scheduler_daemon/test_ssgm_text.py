"""The classic reply line, byte for byte."""

from __future__ import annotations

import re

import pytest

from corekit.ids import AttemptId, HostId, LeaseId
from gpu_scheduler.client.commands.classic import is_classic
from gpu_scheduler.model import GrantedLease, Lease, LeaseState, Share
from gpu_scheduler.protocol.ssgm_text import SsgmError, granted, refused
from tests.shares import share_of


def share(host: str, index: int) -> Share:
    return share_of(f"{host}/{index}", host, index=index, model="K80", exclusive=True)


def lease(
    *shares: Share, gateways: dict[str, str], doors: dict[str, str] | None = None
) -> GrantedLease:
    body = Lease(
        id=LeaseId("lease-7"),
        attempt=AttemptId("a"),
        holder=None,
        fence=3,
        state=LeaseState.ACTIVE,
        shares=shares,
        doors={HostId(host): door for host, door in (doors or {}).items()},
    )
    return GrantedLease(lease=body, epoch=1, gateways=gateways, secrets={})


def test_two_devices_on_two_hosts() -> None:
    text = granted(lease(share("gpu-a", 0), share("gpu-b", 3), gateways={"gpu-a": "10.0.0.1:8308"}))
    assert text == (
        "SSGM_ERROR=0;JOB=lease-7;RCUDA_DEVICE_COUNT=2;"
        "RCUDA_DEVICE_0=10.0.0.1@8308:0;RCUDA_DEVICE_1=gpu-b@8308:3;"
    )


def test_devices_are_listed_in_order() -> None:
    text = granted(lease(share("b", 0), share("a", 1), share("a", 0), gateways={}))
    assert "RCUDA_DEVICE_0=a@8308:0;RCUDA_DEVICE_1=a@8308:1;RCUDA_DEVICE_2=b@8308:0;" in text


@pytest.mark.parametrize(
    ("middleware", "doors", "devices"),
    [
        ("rcuda", {"a": "10.0.0.1:20001"}, ["10.0.0.1@20001:0"]),  # its server sees one device
        ("builtin", {"a": "10.0.0.1:20001"}, ["10.0.0.1@20001:3"]),
        (None, {"a": "10.0.0.1:20001"}, ["10.0.0.1@20001:3"]),
        ("rcuda", {}, ["a@8308:3"]),  # the host's own server
    ],
)
def test_the_index_is_that_of_the_server_behind_the_port(
    middleware: str | None, doors: dict[str, str], devices: list[str]
) -> None:
    text = granted(lease(share("a", 3), gateways={}, doors=doors), middleware)
    assert re.findall(r"RCUDA_DEVICE_\d=([^;]+);", text) == devices


def test_a_server_numbers_each_kind_in_the_order_of_the_lease() -> None:
    shares = (share("a", 5), share("b", 2), share("a", 3), share("b", 7))
    doors = {"a": "a:1", "b": "b:2"}
    text = granted(lease(*shares, gateways={}, doors=doors), "rcuda")
    assert re.findall(r"RCUDA_DEVICE_\d=([^;]+);", text) == ["a@1:0", "a@1:1", "b@2:0", "b@2:1"]


def test_refusals_are_one_field() -> None:
    assert refused(SsgmError.BAD_REQUEST) == "SSGM_ERROR=1;"
    assert refused(SsgmError.BUSY) == "SSGM_ERROR=2;"
    assert refused(SsgmError.GRANTED) == "SSGM_ERROR=0;"


@pytest.mark.parametrize(
    ("line", "classic"),
    [
        ("-S h -P 1 -alloc -g 1", True),
        ("-S h -P 1 -dealloc -j x", True),
        ("alloc -g 1 --scheduler h:1", False),
        ("leases --json", False),
    ],
)
def test_which_form_a_command_line_has(line: str, classic: bool) -> None:
    assert is_classic(line.split()) is classic
