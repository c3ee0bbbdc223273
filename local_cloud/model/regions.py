"""Buckets in another region than the request's.

Sources: S3 API reference, "Error responses" (301 PermanentRedirect, 400
AuthorizationHeaderMalformed, 400 IllegalLocationConstraintException) and HeadBucket
(`x-amz-bucket-region`, also in the answers 301 and 400); S3 user guide, "Making requests using
REST: redirects". botocore's `S3RegionRedirector` repeats such a request in the bucket's region.
"""

from __future__ import annotations

import re

from local_cloud.model.errors import CloudError, refused

#: Regions launched before March 2019 redirect; later ones refuse the signature.
_REDIRECTING = re.compile(
    "ap-northeast-[12]|ap-south-1|ap-southeast-[12]|ca-central-1|eu-central-1|eu-north-1"
    "|eu-west-[123]|sa-east-1|us-(east|west)-[12]"
)


def check_region(bucket: str, bucket_region: str, request_region: str) -> None:
    """Raises PermanentRedirect or AuthorizationHeaderMalformed for a request of another region.

    An unsigned request has no region, and passes.
    """
    if not request_region or request_region == bucket_region:
        return
    headers = {"x-amz-bucket-region": bucket_region}
    if _REDIRECTING.fullmatch(bucket_region):
        raise CloudError(
            "PermanentRedirect",
            301,
            "The bucket must be addressed at the specified endpoint.",
            headers=headers,
            details={"Endpoint": f"{bucket}.s3.{bucket_region}.amazonaws.com", "Bucket": bucket},
        )
    raise refused(
        "AuthorizationHeaderMalformed",
        f"The region '{request_region}' is wrong; expecting '{bucket_region}'",
        headers=headers,
        details={"Region": bucket_region},
    )


def check_location(location: str, request_region: str) -> None:
    """Raises IllegalLocationConstraintException: CreateBucket for another region than its own."""
    wanted = {"": "us-east-1", "EU": "eu-west-1"}.get(location, location)
    if request_region in ("", wanted, location):
        return
    text = f"The location constraint {location or '(none)'} is not of the endpoint's region."
    raise refused("IllegalLocationConstraintException", text)
