"""Bucket configuration that is stored and returned as it was sent, without effect here.

A deployment sets these and reads them again; their effects on AWS (expiry, encryption, access
rules) are listed as missing in docs/local-cloud.md.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from aiohttp import web

from corekit.values import Value
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.s3.bucket import Bucket
from local_cloud.server.s3.bodies import xml
from local_cloud.server.s3.bodies.payload import read_small
from local_cloud.server.s3.buckets import cors
from local_cloud.server.s3.object_metadata import BUCKET_TAGS_MAX, read_tags


class _Kind(Value):
    root: str  #: of the XML document; empty = JSON
    missing: str  #: error code of a GET when nothing was set; empty = the default document


KINDS = {
    "policy": _Kind(root="", missing="NoSuchBucketPolicy"),
    "lifecycle": _Kind(root="LifecycleConfiguration", missing="NoSuchLifecycleConfiguration"),
    "tagging": _Kind(root="Tagging", missing="NoSuchTagSet"),
    "publicAccessBlock": _Kind(
        root="PublicAccessBlockConfiguration", missing="NoSuchPublicAccessBlockConfiguration"
    ),
    "encryption": _Kind(
        root="ServerSideEncryptionConfiguration",
        missing="ServerSideEncryptionConfigurationNotFoundError",
    ),
    "cors": _Kind(root="CORSConfiguration", missing="NoSuchCORSConfiguration"),
    "ownershipControls": _Kind(root="OwnershipControls", missing="OwnershipControlsNotFoundError"),
    "website": _Kind(root="WebsiteConfiguration", missing="NoSuchWebsiteConfiguration"),
    "logging": _Kind(root="BucketLoggingStatus", missing=""),
    "accelerate": _Kind(root="AccelerateConfiguration", missing=""),
    "requestPayment": _Kind(root="RequestPaymentConfiguration", missing=""),
}


async def handle(bucket: Bucket, kind: str, request: web.BaseRequest) -> web.Response:
    """GET, PUT or DELETE of one configuration document."""
    known = KINDS[kind]
    if request.method == "GET":
        return _get(bucket, kind, known)
    if request.method == "DELETE":
        bucket.set_document(kind, None)
        return web.Response(status=204)
    if request.method != "PUT":
        raise CloudError(
            "MethodNotAllowed", 405, "The specified method is not allowed against this resource."
        )
    body = await read_small(request)
    if kind == "cors":
        cors.read_rules(body)
    elif kind == "tagging":
        read_tags(body, BUCKET_TAGS_MAX)
    elif known.root:
        xml.parse(body, known.root)
    bucket.set_document(kind, _text(body, known.root))
    return web.Response(status=200 if known.root else 204)


def _text(body: bytes, root: str) -> str:
    """A document as text; XML in another encoding than UTF-8 is converted to UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        if not root:
            raise refused("MalformedPolicy", "The policy is not valid UTF-8.") from None
        return ElementTree.tostring(xml.parse(body, root), encoding="unicode")


def _get(bucket: Bucket, kind: str, known: _Kind) -> web.Response:
    text = bucket.documents.get(kind)
    if text is None:
        if known.missing:
            raise CloudError(known.missing, 404, f"The bucket has no {kind} configuration")
        return xml.document(known.root)
    content_type = "application/xml" if known.root else "application/json"
    return web.Response(body=text.encode(), content_type=content_type)
