"""Limits of single fields, for the description of the HTTP door; the classes themselves check them.

A test holds this table to the classes: what lies at a bound is accepted, what lies beyond refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_scheduler.model import (
    COUNT_MAX,
    LENGTH_S_MAX,
    MEMORY_MIB_MAX,
    PREFERENCES_MAX,
    Request,
)
from gpu_scheduler.names import NAME_CHARS_MAX, NAME_PATTERN
from gpu_scheduler.protocol import requester as ops

Bound = Mapping[str, int | float | str]

_NAME: Bound = {"minLength": 1, "maxLength": NAME_CHARS_MAX, "pattern": NAME_PATTERN}
_HOLDER: Mapping[str, Bound] = {"holder": _NAME}
_LEASE: Mapping[str, Bound] = {"lease": _NAME}
_PLACE: Mapping[str, Bound] = {"host": _NAME, "device": _NAME}
_HANDLE: Bound = {"maxLength": ops.HANDLE_CHARACTERS_MAX}
_DETAIL: Bound = {"maxLength": ops.DETAIL_CHARACTERS_MAX}
_PCT: Bound = {"minimum": 0, "maximum": 100}
_LIMIT_PCT: Bound = {"minimum": 1, "maximum": 100}
_AT_LEAST_1: Bound = {"minimum": 1}
_WAIT_S: Bound = {"minimum": 0, "maximum": LENGTH_S_MAX}
_LENGTH_S: Bound = {"exclusiveMinimum": 0, "maximum": LENGTH_S_MAX}
_PAGE: Bound = {"minimum": 1, "maximum": ops.PAGE_MAX}

#: Class → field → JSON Schema keywords.
BOUNDS: Mapping[type[Any], Mapping[str, Bound]] = {
    Request: {
        "count": {"minimum": 1, "maximum": COUNT_MAX},
        "models": {"maxItems": PREFERENCES_MAX},
        "memory_mib": {"minimum": 0, "maximum": MEMORY_MIB_MAX},
        "compute_guarantee_pct": _PCT,
        "compute_limit_pct": _LIMIT_PCT,
        "priority": {"minimum": -100, "maximum": 100},
        "tenant": _NAME,
        "warm_key": _NAME,
        "max_wait_s": _WAIT_S,
        "deadline_s": _WAIT_S,
        "lease_s": _LENGTH_S,
    },
    ops.Attempt: {
        **_HOLDER,
        "n": {"minimum": 1, "maximum": ops.NUMBER_MAX},
        "revision": {"minimum": 0, "maximum": ops.NUMBER_MAX},
        "handle": _HANDLE,
        "received_ago_s": _WAIT_S,
    },
    ops.Adopt: {**_HOLDER, "handle": _HANDLE},
    ops.Orphans: {"limit": _PAGE},
    ops.RecordOf: _HOLDER,
    ops.Records: {"limit": _PAGE, "after": _NAME},
    ops.Inventory: {"limit": _AT_LEAST_1, "after": _NAME},
    ops.Leases: {"limit": _AT_LEAST_1},
    ops.Queue: {"limit": _AT_LEAST_1},
    ops.Handle: {**_HOLDER, "handle": _HANDLE},
    ops.HandBack: _HOLDER,
    ops.Renew: {**_LEASE, "lease_s": _LENGTH_S},
    ops.StagedOp: {**_HOLDER, **_LEASE, "connect_by_s": _LENGTH_S},
    ops.Release: {**_LEASE, "detail": _DETAIL},
    ops.Resize: {**_LEASE, "compute_limit_pct": _LIMIT_PCT},
    ops.Transfer: {**_LEASE, "to": _NAME},
    ops.FailAttempt: {**_HOLDER, "reason": _NAME, "detail": _DETAIL},
    ops.Finish: {
        **_HOLDER,
        "outcome": _NAME,
        "reason": _NAME,
        "detail": _DETAIL,
        "received_ago_s": _WAIT_S,
        "committed_ago_s": _WAIT_S,
    },
    ops.Reopen: {**_HOLDER, "handle": _HANDLE},
    ops.Reserve: {"attempt": _NAME, "lease_s": _LENGTH_S},
    ops.Withdraw: {"attempt": _NAME},
    ops.Explain: {"attempt": _NAME, **_HOLDER, "lease_s": _LENGTH_S},
    ops.Drain: _PLACE,
    ops.Undrain: _PLACE,
    ops.Forget: {"host": _NAME},
    ops.SetParameter: {"name": _NAME},
}
