"""Warm workers have the name of their function, also those of an earlier revision of it."""

from __future__ import annotations

import pytest

from gpu_scheduler.model import Request
from gpu_scheduler.warm import workload_key, workload_label
from orchgpu.web.routes.functions import _warm_keys
from orchgpu.web.shared_answers import label_key


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("infer-ea1b1aaba8d5", "infer"),
        ("two-parts-0123456789ab", "two-parts"),
        ("named-by-hand", "named-by-hand"),
        ("-0123456789ab", "-0123456789ab"),
        ("infer-ea1b1aaba8d", "infer-ea1b1aaba8d"),
    ],
)
def test_the_hash_of_a_derived_name_is_not_for_people(name: str, label: str) -> None:
    assert workload_label(name) == label


def test_workers_of_earlier_revisions_of_the_same_tenant_are_the_functions() -> None:
    now, before = "infer-ea1b1aaba8d5", "infer-000000000000"
    labels = {
        workload_key(tenant, name): label_key(tenant, name)
        for tenant, name in (("lab", before), ("else", before), ("lab", "other-000000000000"))
    }
    keys = _warm_keys(Request(tenant="lab", workload=now), labels)
    assert keys == [workload_key("lab", now), workload_key("lab", before)]
    assert _warm_keys(Request(tenant="lab"), labels) == []
