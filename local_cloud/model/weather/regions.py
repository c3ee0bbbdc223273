"""Buckets in another region than the request's.

Sources: S3 API reference, "Error responses" (301 PermanentRedirect, 400
AuthorizationHeaderMalformed, 400 IllegalLocationConstraintException) and HeadBucket
(`x-amz-bucket-region`, also in the answers 301 and 400); S3 user guide, "Making requests using
REST: redirects". botocore's `S3RegionRedirector` repeats such a request in the bucket's region.
"""

from __future__ import annotations

from local_cloud.model.errors import CloudError

#: Regions launched before March 2019 redirect; later ones refuse the signature.
_REDIRECTING = frozenset(
    {
        "ap-northeast-1",
        "ap-northeast-2",
        "ap-south-1",
        "ap-southeast-1",
        "ap-southeast-2",
        "ca-central-1",
        "eu-central-1",
        "eu-north-1",
        "eu-west-1",
        "eu-west-2",
        "eu-west-3",
        "sa-east-1",
        "us-east-1",
        "us-east-2",
        "us-west-1",
        "us-west-2",
    }
)


def check_region(bucket: str, bucket_region: str, request_region: str) -> None:
    """Raises PermanentRedirect or AuthorizationHeaderMalformed for a request of another region.

    An unsigned request has no region, and passes.
    """
    if not request_region or request_region == bucket_region:
        return
    headers = {"x-amz-bucket-region": bucket_region}
    if bucket_region in _REDIRECTING:
        raise CloudError(
            "PermanentRedirect",
            301,
            "The bucket you are attempting to access must be addressed using the specified"
            " endpoint. Please send all future requests to this endpoint.",
            headers=headers,
            details={"Endpoint": f"{bucket}.s3.{bucket_region}.amazonaws.com", "Bucket": bucket},
        )
    raise CloudError(
        "AuthorizationHeaderMalformed",
        400,
        f"The authorization header is malformed; the region '{request_region}' is wrong; expecting"
        f" '{bucket_region}'",
        headers=headers,
        details={"Region": bucket_region},
    )


def check_location(location: str, request_region: str) -> None:
    """Raises IllegalLocationConstraintException: CreateBucket for another region than its own."""
    wanted = location or "us-east-1"
    if (
        not request_region
        or wanted == request_region
        or (location == "EU" and _is_eu(request_region))
    ):
        return
    which = f"The {location}" if location else "The unspecified"
    raise CloudError(
        "IllegalLocationConstraintException",
        400,
        f"{which} location constraint is incompatible for the region specific endpoint this request"
        " was sent to.",
    )


def _is_eu(region: str) -> bool:
    return region == "eu-west-1"
