"""The order of a run: its frame."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_gpu.wire.errors import WireError
from remote_gpu.wire.runs import Package, RunOrder

TEXTS = st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=3)
ORDERS = st.builds(
    RunOrder,
    function=st.text(max_size=128),
    job=st.text(max_size=128),
    attempt=st.integers(0, 1 << 20),
    event=st.text(max_size=200),
    timeout_s=st.floats(0, 1e6),
    memory_mib=st.integers(0, 1 << 24),
    package=st.builds(
        Package,
        bucket=st.text(max_size=64),
        key=st.text(max_size=1024),
        sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    ),
    variables=TEXTS,
    aws=TEXTS,
    role=st.text(max_size=200),
    credentials_end_s=st.floats(0, 1e11),
    log_group=st.text(max_size=512),
    network=st.booleans(),
    image=st.text(max_size=200),
    command=st.lists(st.text(max_size=20), max_size=3).map(tuple),
    warm=st.booleans(),
)
ORDER = RunOrder(
    function="f",
    job="j",
    attempt=1,
    event="{}",
    timeout_s=1.0,
    memory_mib=1,
    package=Package(bucket="b", key="k", sha256="0" * 64),
)


@given(ORDERS)
def test_an_order_is_what_was_sent(order: RunOrder) -> None:
    assert RunOrder.from_meta(json.loads(json.dumps(order.to_meta()))) == order


SECRET = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"job": "k", "attempt": 2, "event": "[]", "credentials_end_s": 5.0}, True),
        ({"aws": {**SECRET, "AWS_REGION": "r"}}, True),
        ({"aws": {"AWS_REGION": "s"}}, False),
        ({"variables": {"A": "b"}}, False),
        ({"package": Package(bucket="b", key="k", sha256="1" * 64)}, False),
        ({"memory_mib": 2}, False),
        ({"network": True}, False),
        ({"role": "arn:aws:iam::123456789012:role/other"}, False),
    ],
)
def test_two_jobs_of_one_program_differ_in_their_job_alone(
    change: dict[str, Any], same: bool
) -> None:
    order = replace(ORDER, aws={"AWS_REGION": "r"})
    assert (replace(order, **change).program == order.program) is same


def test_fields_of_a_newer_client_are_ignored() -> None:
    meta: dict[str, Any] = json.loads(json.dumps(ORDER.to_meta()))
    meta["run"]["newer"] = meta["newer"] = meta["run"]["package"]["newer"] = 1
    assert RunOrder.from_meta(meta) == ORDER


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("function",), 1),
        (("timeout_s",), -1),
        (("timeout_s",), True),
        (("credentials_end_s",), 9e11),  # after the last year of a date
        (("memory_mib",), "1"),
        (("package",), "b"),
        (("package", "sha256"), "../" * 21 + "a"),
        (("package", "sha256"), "A" * 64),
        (("variables",), {"A": 1}),
        (("command",), "sh"),
        ((), None),
    ],
)
def test_another_frame_is_no_order(where: tuple[str, ...], value: object) -> None:
    meta: dict[str, Any] = json.loads(json.dumps(ORDER.to_meta()))
    inner, path = meta, ("run", *where)
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(WireError):
        RunOrder.from_meta(meta)


def test_a_repeated_order_of_a_later_deploy_renews_nothing_but_credentials() -> None:
    later = replace(
        ORDER,
        package=Package(bucket="b", key="new", sha256="1" * 64),
        variables={"A": "b"},
        memory_mib=2,
        aws={**SECRET, "AWS_REGION": "s"},
        credentials_end_s=5.0,
    )
    began = replace(ORDER, aws={"AWS_REGION": "r", "AWS_ACCESS_KEY_ID": "OLD"})
    renewed = began.renewed(later)
    assert renewed.program == began.program
    assert renewed.aws == {**SECRET, "AWS_REGION": "r"}
    assert renewed.credentials_end_s == 5.0
