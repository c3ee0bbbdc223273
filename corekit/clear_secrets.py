"""Texts that look like secrets in clear: lint warns of them, outputs hide them. Pure."""

from __future__ import annotations

import re

_NAME = re.compile(r"(?i)(secret|passw|token|private_?key|api_?key|access_?key|credential)")
_VALUE = re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY-----")


def sounds_secret(text: str) -> bool:
    """True for a name, or a text, with a word that usually names a secret."""
    return _NAME.search(text) is not None


def looks_secret(name: str, value: str) -> bool:
    """True for a name or a value that usually is a secret's."""
    return bool(value) and (sounds_secret(name) or _VALUE.search(value) is not None)
