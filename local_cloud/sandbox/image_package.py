"""The tag that names the code of functions whose own code is not available here.

`orchgpu:package=s3://bucket/key` names a zip. An image function cannot run its image here: the zip
holds its runner and script, which then run on this machine's files. moto serves no zips of
functions, so the bridge runs the zip of the tag.
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
    """The location of the zip of an image function.

    Raises IMPOSSIBLE, with the reason, without the tag, and INVALID for another address than S3's.
    """
    location = tags.get(PACKAGE_TAG)
    if location is None:
        raise AppError(
            ErrorCode.IMPOSSIBLE,
            f"no code that can run here ({image!r}): container images are not run, and moto serves"
            f" no zips. A function runs its script on this machine's files when the tag"
            f" {PACKAGE_TAG}=s3://bucket/key names the zip of its runner; give the function a"
            " script, or deploy it to a cloud that runs images",
        )
    match = _S3_URL.fullmatch(location)
    if match is None:
        raise invalid(f"tag {PACKAGE_TAG}={location!r} is not s3://bucket/key")
    return PackageLocation(match["bucket"], match["key"])
