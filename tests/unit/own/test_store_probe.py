"""The verdict on a store."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.values import replace
from orchgpu.adapters.own.probe import EXPIRY, VERSIONING, StoreFacts, judge

AWS = StoreFacts(
    winners=1,
    keeps_existing=True,
    keeps_changed=True,
    replaces_known=True,
    reads_pinned=True,
    versions=True,
    checks_owner=True,
    notifies=True,
    expires=True,
    keeps_filled=True,
)


def with_facts(**changes: Any) -> StoreFacts:
    return replace(AWS, **changes)


def test_a_store_with_everything_needs_no_word() -> None:
    verdict = judge(AWS)
    assert (verdict.refused, verdict.statements) == ((), ())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"keeps_existing": False, "winners": 8}, "`If-None-Match: *` replaces"),
        ({"winners": 2}, "2 of several simultaneous writes"),
        ({"winners": 0}, "0 of several simultaneous writes"),
        ({"keeps_changed": False}, "`If-Match` replaces"),
        ({"replaces_known": False}, "newest etag fails"),
    ],
)
def test_without_conditional_writes_it_is_refused(changes: dict[str, Any], reason: str) -> None:
    (refused,) = judge(with_facts(**changes)).refused
    assert reason in refused


@pytest.mark.parametrize(
    ("missing", "kind", "words"),
    [
        ("versions", VERSIONING, "SUPERSEDED"),
        ("expires", EXPIRY, "lifecycle"),
        ("checks_owner", "", "owner"),
        ("reads_pinned", "", "`If-Match` of reads"),
        ("notifies", "", "webhook"),
        ("keeps_filled", "", "hold objects"),
    ],
)
def test_what_else_it_lacks_is_stated(missing: str, kind: str, words: str) -> None:
    verdict = judge(with_facts(**{missing: False}))
    assert verdict.refused == ()
    (statement,) = verdict.statements
    assert words in statement
    assert tuple(verdict.lacks) == ((kind,) if kind else ())
