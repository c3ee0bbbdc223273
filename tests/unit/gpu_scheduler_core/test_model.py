"""Validation of requests, devices, usage and versions, with clear errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.decode import decode, encode
from corekit.errors import AppError, ErrorCode
from corekit.ids import DeviceId
from gpu_scheduler.constraints import is_version, parse_version
from gpu_scheduler.model import Device, DeviceKind, Health, Request, Symptom, Usage
from gpu_scheduler.protocol.host import DEVICES_MAX, HostHello, Report

DEVICE: dict[str, Any] = {
    "id": "GPU-1",
    "index": 0,
    "kind": "cuda",
    "model": "A100",
    "memory_mib": 1000,
}
HELLO: dict[str, Any] = {
    "host": "a",
    "incarnation": "1",
    "gateway": None,
    "devices": [DEVICE],
    "epoch_seen": 0,
    "installed": [],
    "version": 1,
}
USAGE: dict[str, Any] = {"device": "GPU-1", "memory_used_mib": 1, "utilisation_pct": 2}


def refused(cls: type[Any], value: Any) -> str:
    with pytest.raises(AppError) as raised:
        decode(cls, value)
    assert raised.value.code is ErrorCode.INVALID
    return raised.value.message


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"count": -1}, "count -1 must lie in 0…64"),
        ({"count": 65}, "count 65"),
        ({"memory_mib": -1}, "memory_mib -1"),
        ({"memory_mib": 2**31}, "memory_mib"),
        ({"memory_mib": math.nan}, "a number"),
        ({"memory_mib": True}, "an integer"),
        ({"compute_guarantee_pct": 60, "compute_limit_pct": 50}, "must not exceed"),
        ({"compute_limit_pct": 0}, "1…100"),
        ({"compute_guarantee_pct": 12.25}, "12.25 must have at most one decimal, such as 12.5"),
        ({"compute_guarantee_pct": 100.1}, "100.1 must lie in 0…100"),
        ({"compute_limit_pct": 0.9}, "0.9 must lie in 1…100"),
        ({"compute_guarantee_pct": "12.5"}, "expected a number"),
        ({"compute_guarantee_pct": True}, "expected a number"),
        ({"compute_guarantee_pct": math.nan}, "expected a number"),
        ({"kinds": ["gpu"]}, "kinds"),
        ({"kinds": ["cudo"]}, "did you mean"),
        ({"models": ["A"] * 65}, "at most 64"),
        ({"models": ["A" * 257]}, "models[0] must have 1 to 256 characters, not 257"),
        ({"models": [""]}, "models[0] must have 1 to 256"),
        ({"tenant": ""}, "tenant must have 1 to 256 characters, not 0"),
        ({"tenant": "t" * 257}, "tenant must have 1 to 256 characters, not 257"),
        ({"tenant": "a\nb"}, "tenant 'a\\nb' has invisible characters"),
        ({"warm_key": "\u200b"}, "warm_key '\\u200b' has invisible characters"),
        ({"warm_key": ""}, "warm_key must have 1 to 256"),
        ({"sharing": "some"}, "sharing"),
        ({"placement": "spred"}, "did you mean 'spread'"),
        ({"priority": 101}, "-100…100"),
        ({"min_driver": "newest"}, "numbers separated by dots"),
        ({"min_driver": ""}, "numbers separated by dots"),
        ({"min_runtime": "12."}, "numbers separated by dots"),
        ({"max_wait_s": -1.0}, "max_wait_s"),
        ({"max_wait_s": math.inf}, "a number"),
        ({"deadline_s": math.nan}, "a number"),
        ({"deadline_s": 4e7}, "must lie in 0…"),
        ({"lease_s": 0}, "lease_s 0 must be more than 0"),
        ({"memory_mb": 5}, "did you mean 'memory_mib'"),
        ({"memory_pct": 12.5, "memory_mib": 1}, "cannot be combined with memory_mib"),
        ({"memory_pct": 5, "sharing": "exclusive"}, "cannot be combined with sharing exclusive"),
        ({"memory_pct": 100.1}, "must lie in 0…100"),
    ],
)
def test_invalid_requests_are_refused_with_the_reason(
    said: dict[str, int | float | bool | str | list[str]], words: str
) -> None:
    assert words in refused(Request, said)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": ""}, "id must have 1 to 256 characters"),
        ({"id": "x" * 257}, "256 characters"),
        ({"model": "x" * 257}, "256 characters"),
        ({"resident": ["k" * 257]}, "256 characters"),
        ({"id": "a\x1b[2J"}, "id 'a\\x1b[2J' has invisible characters"),
        ({"model": "A\u202e100"}, "invisible characters"),
        ({"resident": [f"k{i}" for i in range(1030)]}, "resident has 1030 items; at most 1024"),
        ({"index": -1}, "index -1 must lie in 0…65535"),
        ({"memory_mib": -1}, "memory_mib -1 must lie in 0…"),
        ({"memory_mib": 10**12}, "must lie in 0…2147483647"),
        ({"memory_mib": math.nan}, "a number"),
        ({"detail": "x" * 501}, "detail has 501 characters; at most 500"),
        ({"health": "SICK"}, "health"),
        ({"symptoms": ["XID"]}, "symptoms belong to SUSPECT or BAD"),
        ({"symptoms": ["XDI"], "health": "BAD"}, "did you mean 'XID'"),
        ({"driver": 550.54}, "a string"),
        ({"kind": "tpu"}, "kind"),
    ],
)
def test_invalid_devices_are_refused_with_the_reason(
    change: dict[str, str | list[str] | int | float], words: str
) -> None:
    device = {**DEVICE, **change}
    assert words in refused(HostHello, {**HELLO, "devices": [device]})
    assert "devices[0]" in refused(Report, {"devices": [device]})


@pytest.mark.parametrize(
    "change",
    [
        {"memory_used_mib": -1},
        {"utilisation_pct": -5},
        {"processes": -1},
        {"utilisation_pct": math.nan},
        {"utilisation_pct": math.inf},
        {"device": None},
        {"temperature": 60},
    ],
)
def test_invalid_usage_is_refused(change: dict[str, float | int | None]) -> None:
    assert "usage[0]" in refused(Report, {"usage": [{**USAGE, **change}]})


def test_more_devices_than_a_host_can_have_are_refused() -> None:
    many = [{**DEVICE, "id": f"GPU-{i}"} for i in range(DEVICES_MAX + 1)]
    assert "devices has 257 items; at most 256" in refused(HostHello, {**HELLO, "devices": many})
    assert "devices has 257 items; at most 256" in refused(Report, {"devices": many})
    assert "usage has 257 items; at most 256" in refused(
        Report, {"usage": [USAGE] * (DEVICES_MAX + 1)}
    )


def test_a_report_may_be_empty() -> None:
    assert decode(Report, {}) == Report(devices=None, usage=())
    usage = Usage(device=DeviceId("GPU-1"), memory_used_mib=1, utilisation_pct=2)
    assert decode(Report, {"usage": [USAGE]}).usage == (usage,)


def test_an_unhealthy_device_has_symptoms() -> None:
    device = decode(Device, {**DEVICE, "health": "BAD", "symptoms": ["XID", "ECC"]})
    assert (device.kind, device.health) == (DeviceKind.CUDA, Health.BAD)
    assert device.symptoms == (Symptom.XID, Symptom.ECC)
    assert decode(Device, encode(device)) == device


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("550.54.15", (550, 54, 15)),
        ("12.0", (12,)),
        ("0012.4", (12, 4)),
        ("3.0 PoCL 5.0", (3,)),
        ("", ()),
        ("unknown", ()),
        ("12.4-beta", (12, 4)),
        ("12..4", (12,)),
        ("-1", ()),
    ],
)
def test_versions_are_numbers(
    text: str, version: tuple[int, int] | tuple[int] | tuple[()] | tuple[int, int, int]
) -> None:
    assert parse_version(text) == version


numbers = st.lists(st.integers(0, 999), min_size=1, max_size=4)


@given(numbers, numbers)
def test_versions_compare_as_their_numbers(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    texts = [".".join(map(str, version)) for version in (left, right)]
    assert all(map(is_version, texts))
    padded = [[*version, 0, 0, 0, 0][:4] for version in (left, right)]
    older = parse_version(texts[0]) < parse_version(texts[1])
    assert older is (padded[0] < padded[1])
