"""The description of the HTTP door agrees with what is really sent."""

from __future__ import annotations

from typing import Any

from corekit.decode import encode
from corekit.ids import JobId
from gpu_scheduler.model import Request
from gpu_scheduler.protocol.openapi import NOT_OVER_HTTP, openapi
from gpu_scheduler.protocol.requester import OPS, Attempt

DOCUMENT = openapi("1.0.0")
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for item in value.values() for ref in references(item)]
    if isinstance(value, list):
        return [ref for item in value for ref in references(item)]
    return []


def test_every_op_is_described_and_every_reference_leads_somewhere() -> None:
    described = {path for path, item in DOCUMENT["paths"].items() if "post" in item}
    assert described == {f"/v1/{op}" for op in OPS if op not in NOT_OVER_HTTP}
    names = {ref.rpartition("/")[2] for ref in references(DOCUMENT)}
    assert names <= set(SCHEMAS)
    assert {"Request", "GrantedLease", "Record", "Explanation"} <= names


def test_a_request_matches_its_description() -> None:
    value = encode(Attempt(holder=JobId("j"), n=1, revision=0, request=Request()))
    assert set(value) == set(SCHEMAS["Attempt"]["properties"])
    assert SCHEMAS["Attempt"]["required"] == ["holder", "n", "revision", "request"]
    assert SCHEMAS["Request"]["properties"]["sharing"] == {"enum": ["shared", "exclusive"]}
    assert SCHEMAS["Request"]["properties"]["max_wait_s"] == {
        "anyOf": [{"type": "number"}, {"type": "null"}]
    }
