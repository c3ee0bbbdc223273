"""Code by a tag, where the function itself cannot give it: `orchgpu:package=s3://bucket/key`.

An image function cannot run its image here; the zip that the tag names holds its runner and script,
which then work on this machine's files. And moto gives no function's zip back, so the bridge runs
only what a tag names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from corekit.errors import AppError, ErrorCode, invalid

PACKAGE_TAG = "orchgpu:package"
#: The handler of such a zip, unless ImageConfig.Command names another one.
RUNNER_HANDLER = "lambda_functions.gpu_runner.handler.handle"
_S3_URL = re.compile(r"s3://(?P<bucket>[^/]+)/(?P<key>.+)")


class PackageLocation(NamedTuple):
    """An object in S3."""

    bucket: str
    key: str


def package_location(tags: Mapping[str, str], image: str) -> PackageLocation:
    """Where the zip of an image function lies.

    Raises IMPOSSIBLE, saying why, without the tag, and INVALID for a tag that is no S3 address.
    """
    location = tags.get(PACKAGE_TAG)
    if location is None:
        raise AppError(
            ErrorCode.IMPOSSIBLE,
            f"there is no code that could run here ({image!r}): no container image is run, and moto"
            f" gives no zip back. A function runs its script on this machine's files when the tag"
            f" {PACKAGE_TAG}=s3://bucket/key names the zip of its runner; give the function a"
            " script, or deploy it to a cloud that runs images",
        )
    match = _S3_URL.fullmatch(location)
    if match is None:
        raise invalid(f"tag {PACKAGE_TAG}={location!r} is not s3://bucket/key")
    return PackageLocation(match["bucket"], match["key"])
