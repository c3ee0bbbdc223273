"""Patterns in which `*` stands for any text and nothing else is special. Pure."""

from __future__ import annotations

import fnmatch


def matches(text: str, pattern: str) -> bool:
    """Whether the whole text fits the pattern, with regard to case."""
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]").replace("?", "[?]"))
