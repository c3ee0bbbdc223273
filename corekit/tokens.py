"""Tokens of HTTP requests that two programs share by a file."""

from __future__ import annotations

from pathlib import Path

from corekit.errors import invalid

CHARACTERS_MIN = 16


def read_token(file: str, variable: str) -> str:
    """The token in a file, which a variable of the environment names. Raises INVALID."""
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise invalid(f"{variable}: cannot read {file!r}: {error}") from None
    if len(token) < CHARACTERS_MIN or not token.isascii() or not token.isprintable():
        least = f"{CHARACTERS_MIN} characters or more, of ASCII alone"
        raise invalid(f"{variable}: the token needs {least}")
    return token
