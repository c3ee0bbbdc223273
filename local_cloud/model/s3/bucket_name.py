"""Which names S3 takes for a general purpose bucket. Pure.

Source: S3 user guide, "General purpose bucket naming rules".
"""

from __future__ import annotations

import re

from local_cloud.model.errors import refused

#: Labels of letters, digits and inner hyphens, joined by single dots.
_LABELS = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_PREFIXES = ("xn--", "sthree-", "amzn-s3-demo-")
_SUFFIXES = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


def check_bucket_name(name: str) -> None:
    """Raises InvalidBucketName, naming the rule."""
    reason = ""
    if not 3 <= len(name) <= 63:
        reason = "a name has 3 to 63 characters"
    elif not _LABELS.fullmatch(name):
        reason = (
            "a name has lower-case letters, digits, hyphens and single dots, and every label of it"
            " begins and ends with a letter or digit"
        )
    elif _ADDRESS.fullmatch(name):
        reason = "a name must not be formatted as an IP address"
    elif name.startswith(_PREFIXES):
        reason = f"a name must not start with {next(p for p in _PREFIXES if name.startswith(p))}"
    elif name.endswith(_SUFFIXES):
        reason = f"a name must not end with {next(s for s in _SUFFIXES if name.endswith(s))}"
    if reason:
        raise refused("InvalidBucketName", f"The specified bucket is not valid: {reason}.")
