"""Hints for mistyped words."""

from __future__ import annotations

import pytest

from corekit.suggest import did_you_mean, one_of_known

KNOWN = ("memory", "memory_mib", "timeout")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("memry", "; did you mean 'memory'?"),
        ("time", "; did you mean 'timeout'?"),
        ("ti", ""),
        ("zzz", ""),
        ("", ""),
        ("memory" * 1000, ""),
    ],
)
def test_a_close_word_or_one_that_begins_so_is_offered(word: str, hint: str) -> None:
    assert did_you_mean(word, KNOWN) == hint


def test_without_a_close_word_all_are_listed() -> None:
    assert one_of_known("zzz", KNOWN) == "; known are memory, memory_mib, timeout"
    assert one_of_known("timeoot", KNOWN) == "; did you mean 'timeout'?"
