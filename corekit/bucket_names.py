"""AWS's rules for the names of general purpose buckets. Pure.

Source: "General purpose bucket naming rules" of the S3 user guide. A full stop next to a hyphen was
ruled out by its earlier editions; such a name fits no certificate and no host name.
"""

from __future__ import annotations

import re

CHARACTERS = "3 to 63 characters of a-z, 0-9, - and ., starting and ending with a letter or digit"
_WHOLE = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+")
_NEIGHBOURS = re.compile(r"\.\.|\.-|-\.")
_PREFIXES = ("xn--", "sthree-", "amzn-s3-demo-")
_SUFFIXES = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


def broken_rule(name: str) -> str:
    """The first rule that a name breaks, as a clause; "" for a valid bucket name."""
    if not _WHOLE.fullmatch(name):
        return CHARACTERS
    if (found := _NEIGHBOURS.search(name)) is not None:
        return f"no {found[0]!r} inside"
    if _ADDRESS.fullmatch(name):
        return "it is written like an IP address"
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return f"names that begin with {prefix!r} are reserved by AWS"
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return f"names that end with {suffix!r} are reserved by AWS"
    return ""
