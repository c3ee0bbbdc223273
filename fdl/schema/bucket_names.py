"""AWS's rules for names of buckets, each with the sentence that says which one was broken.

Source: "General purpose bucket naming rules" of the S3 user guide. A full stop beside a hyphen was
ruled out by its earlier editions; such a name fits no certificate and no host name.
"""

from __future__ import annotations

import re

_WHOLE = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+")
_BESIDE = re.compile(r"\.\.|\.-|-\.")
_BEGINNINGS = ("xn--", "sthree-", "amzn-s3-demo-")
_ENDS = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")
_CHARACTERS = "3 to 63 characters of a-z, 0-9, - and ., starting and ending with a letter or digit"


def fault_of(name: str) -> str:
    """Why a name is not one of a bucket, with a name that is where one is near; "" = it is."""
    why = _why(name)
    near = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")
    hint = f"; write {near!r}" if why == _CHARACTERS and not _why(near) else ""
    return f"{name[:70]!r} is not a bucket name: {why}{hint}" if why else ""


def _why(name: str) -> str:
    if name.startswith("arn:") or name == "s3:":
        return "write bucket/prefix, without arn: or s3://"
    if not _WHOLE.fullmatch(name):
        return _CHARACTERS
    beside = _BESIDE.search(name)
    if beside is not None:
        return f"no {beside[0]!r} inside"
    if _ADDRESS.fullmatch(name):
        return "it is written like an IP address"
    for beginning in _BEGINNINGS:
        if name.startswith(beginning):
            return f"names that begin with {beginning!r} are reserved by AWS"
    for end in _ENDS:
        if name.endswith(end):
            return f"names that end with {end!r} are reserved by AWS"
    return ""
