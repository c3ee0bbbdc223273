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
    WORD_CHARS_MAX,
    Request,
)
from gpu_scheduler.protocol import requester as ops

Bound = Mapping[str, int | float]

_NAME: Bound = {"minLength": 1, "maxLength": ops.NAME_CHARACTERS_MAX}
_WORD: Bound = {"maxLength": WORD_CHARS_MAX}
_HANDLE: Bound = {"maxLength": ops.HANDLE_CHARACTERS_MAX}
_DETAIL: Bound = {"maxLength": ops.DETAIL_CHARACTERS_MAX}
_PCT: Bound = {"minimum": 0, "maximum": 100}
_LIMIT_PCT: Bound = {"minimum": 1, "maximum": 100}
_AT_LEAST_0: Bound = {"minimum": 0}
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
        "tenant": _WORD,
        "warm_key": _WORD,
        "max_wait_s": _WAIT_S,
        "deadline_s": _WAIT_S,
        "lease_s": _LENGTH_S,
    },
    ops.Attempt: {
        "holder": _NAME, "n": _AT_LEAST_1, "revision": _AT_LEAST_0, "handle": _HANDLE,
        "received_ago_s": _AT_LEAST_0,
    },
    ops.Adopt: {"handle": _HANDLE},
    ops.Orphans: {"limit": _PAGE},
    ops.Records: {"limit": _PAGE},
    ops.Inventory: {"limit": _AT_LEAST_1},
    ops.Leases: {"limit": _AT_LEAST_1},
    ops.Queue: {"limit": _AT_LEAST_1},
    ops.Handle: {"handle": _HANDLE},
    ops.Renew: {"lease_s": _LENGTH_S},
    ops.StagedOp: {"connect_by_s": {"exclusiveMinimum": 0}},
    ops.Release: {"detail": _DETAIL},
    ops.Resize: {"compute_limit_pct": _LIMIT_PCT},
    ops.Transfer: {"to": _NAME},
    ops.FailAttempt: {"reason": _NAME, "detail": _DETAIL},
    ops.Finish: {
        "holder": _NAME, "outcome": _NAME, "reason": _NAME, "detail": _DETAIL,
        "received_ago_s": _AT_LEAST_0, "committed_ago_s": _AT_LEAST_0,
    },
    ops.Reopen: {"handle": _HANDLE},
    ops.Reserve: {"attempt": _NAME},
    ops.Withdraw: {"attempt": _NAME},
    ops.SetParameter: {"name": _NAME},
}  # fmt: skip
