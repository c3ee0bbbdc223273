"""The description of the HTTP endpoint agrees with its real answers."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.decode import decode, encode
from corekit.errors import AppError, ErrorCode
from corekit.ids import JobId
from gpu_scheduler.model import LENGTH_S_MAX, Request
from gpu_scheduler.protocol.openapi import NOT_OVER_HTTP, openapi
from gpu_scheduler.protocol.ops import OPS, Attempt, Explain

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
    assert SCHEMAS["Sharing"]["enum"] == ["exclusive", "shared"]
    assert SCHEMAS["Request"]["properties"]["max_wait_s"] == {
        "anyOf": [{"type": "number", "minimum": 0, "maximum": LENGTH_S_MAX}, {"type": "null"}],
        "default": None,
    }


#: What an op cannot do without, where its bounds are tried.
STEP = {"name": "s", "job": "s", "request": {}}
POOL = {"name": "a", "kind": "cuda", "memory_mib": 9, "max": 1, "states": {}, "start_s": 60}
NEEDED: dict[str, Any] = {
    "run": "r",
    "steps": [STEP],
    "slo": {"latency_s": 1.0},
    "holder": "h",
    "n": 1,
    "revision": 1,
    "request": {},
    "attempt": "a",
    "lease": "l",
    "to": "t",
    "handle": "x",
    "compute_limit_pct": 50,
    "connect_by_s": 1,
    "reason": "CAP",
    "outcome": "o",
    "name": "n",
    "value": 1,
    "host": "h",
    "pools": [],
}


def at_and_beyond(field: str, keyword: str, bound: Any) -> tuple[Any, Any]:
    """A value that a keyword just allows, and one that it does not."""
    match keyword:
        case "minimum":
            return bound, bound - 1
        case "maximum":
            return bound, bound + 1
        case "exclusiveMinimum":
            return bound + 0.001, bound
        case "minLength":
            return "x" * bound, "x" * (bound - 1)
        case "maxLength":
            return "x" * bound, "x" * (bound + 1)
        case "pattern":
            return "Tesla K80 \u00e4", "a\x1b[2J"
        case "maxItems":
            items: dict[str, Any] = {"steps": STEP, "pools": POOL, "data": "x", "programs": "x"}
            items["data_sets"] = {"name": "x", "source": "s3://data/x", "digest": "0" * 64}
            items["floors"] = {"request": {"memory_mib": 1, "workload": "x"}, "workers_min": 1}
            item = items.get(field, "x>=1")  # else a constraint, or any text
            return [item] * bound, [item] * (bound + 1)
    raise AssertionError(keyword)


def limits(schema: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a field that limit it."""
    own = schema.get("anyOf", [schema])[0]
    return {key: value for key, value in own.items() if key in LIMITS}


LIMITS = ("minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "pattern", "maxItems")
OPS_OVER_HTTP = [cls for op, cls in OPS.items() if op not in NOT_OVER_HTTP]
BODIES: list[type[Any]] = [Request, *OPS_OVER_HTTP]
TRIALS = [
    pytest.param(
        cls, field, *at_and_beyond(field, keyword, bound), id=f"{cls.__name__}.{field}.{keyword}"
    )
    for cls in BODIES
    for field, schema in SCHEMAS[cls.__name__]["properties"].items()
    for keyword, bound in limits(schema).items()
    if field != "sources"
]


def test_every_limit_is_described() -> None:
    assert len(TRIALS) > 100


@pytest.mark.parametrize(("cls", "field", "at", "beyond"), TRIALS)
def test_a_described_limit_holds(cls: Any, field: str, at: Any, beyond: Any) -> None:
    known = set(cls.__struct_fields__)
    needed = {name: value for name, value in NEEDED.items() if name in known}
    if cls in (Request, Explain):  # of these one word is enough, or all there may be
        needed = {"request": {}} if (cls, field) == (Explain, "lease_s") else {}
    decode(cls, {**needed, field: at})
    with pytest.raises(AppError) as caught:
        decode(cls, {**needed, field: beyond})
    assert caught.value.code is ErrorCode.INVALID
