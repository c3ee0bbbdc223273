"""The routing of requests to S3's operations, and S3's error documents."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable

from aiohttp import web

from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.server.context import Context
from local_cloud.server.s3 import buckets, listing, objects, uploads, xml
from local_cloud.server.s3.call import Call, call_of, region_of

_Operation = Callable[[Call], Awaitable[web.StreamResponse]]

#: operations by method and the query name that chooses them, empty for none
_OF_SERVICE: dict[tuple[str, str], _Operation] = {("GET", ""): listing.buckets}
_OF_BUCKET: dict[tuple[str, str], _Operation] = {
    ("PUT", ""): buckets.create,
    ("HEAD", ""): buckets.head,
    ("DELETE", ""): buckets.delete,
    ("GET", ""): listing.objects,
    ("GET", "versions"): listing.versions,
    ("POST", "delete"): objects.delete_many,
    ("GET", "location"): buckets.location,
    ("GET", "versioning"): buckets.get_versioning,
    ("PUT", "versioning"): buckets.put_versioning,
    ("GET", "notification"): buckets.get_notification,
    ("PUT", "notification"): buckets.put_notification,
    **{
        (method, kind): buckets.document
        for method in ("GET", "PUT", "DELETE")
        for kind in buckets.DOCUMENTS
    },
}
_OF_OBJECT: dict[tuple[str, str], _Operation] = {
    ("PUT", ""): objects.put,
    ("GET", ""): objects.get,
    ("HEAD", ""): objects.get,
    ("DELETE", ""): objects.delete,
    ("POST", "uploads"): uploads.start,
    ("PUT", "uploadId"): uploads.put_part,
    ("POST", "uploadId"): uploads.complete,
    ("DELETE", "uploadId"): uploads.abort,
}
#: query names that choose an operation which this cloud does not have
_NOT_HERE = re.compile(
    "accelerate|acl|analytics|attributes|cors|intelligent-tiering|inventory|legal-hold|logging"
    "|metadataTable|metrics|object-lock|ownershipControls|policyStatus|renameObject|replication"
    "|requestPayment|restore|retention|select|session|tagging|torrent|uploadId|uploads|website"
)
#: access control lists that change nothing in a cloud of one account
_OWN_LISTS = frozenset({"private", "bucket-owner-read", "bucket-owner-full-control"})


async def handle(
    context: Context, request: web.BaseRequest, host_bucket: str = ""
) -> web.StreamResponse:
    """Answer one S3 call.

    `host_bucket` is the bucket that the host name holds, empty for path-style addressing.
    """
    request_id, host_id = secrets.token_hex(8).upper(), secrets.token_urlsafe(48)
    always = {"x-amz-request-id": request_id, "x-amz-id-2": host_id}
    answer: web.StreamResponse
    try:
        call = call_of(context, request, host_bucket)
        call.chunks, call.always = context.verifier.check(request, ("s3",)), always
        _check_headers(call)
        if call.bucket_name:
            context.cloud.check_region(call.bucket_name, region_of(request))
        operation = _operation(call)
        if call.bucket_name and operation is not buckets.create:
            context.cloud.bucket(call.bucket_name)  # NoSuchBucket comes before any other refusal
        answer = await operation(call)
    except web.HTTPNotModified as unchanged:
        answer = web.Response(status=304, headers=unchanged.headers)
    except CloudError as error:
        answer = _error_response(request, error, request_id, host_id)
    if not answer.prepared:
        answer.headers.update(always)
    return answer


def _error_response(
    request: web.BaseRequest, error: CloudError, request_id: str, host_id: str
) -> web.Response:
    """S3's error document; HEAD has no body."""
    body, content_type = None, None
    if request.method != "HEAD":
        body = xml.error_body(error, request.path, request_id, host_id)
        content_type = "application/xml"
    answer = web.Response(
        status=error.status, headers=error.headers, body=body, content_type=content_type
    )
    if not request.content.at_eof() and request.body_exists:
        answer.force_close()  # the rest of the body is not worth reading
    return answer


def _operation(call: Call) -> _Operation:
    """Raises NotImplemented for an operation that is not here, MethodNotAllowed for none of S3."""
    table, what, method = _OF_SERVICE, "the service", call.request.method
    if call.bucket_name:
        table, what = (_OF_OBJECT, "an object") if call.key else (_OF_BUCKET, "a bucket")
    here = {name for _, name in table}
    name = next((name for name in call.query if name in here or _NOT_HERE.fullmatch(name)), "")
    operation = table.get((method, name))
    if operation is not None:
        return operation
    if _NOT_HERE.fullmatch(name):
        raise not_implemented(f"S3 {method} ?{name} of {what}")
    if (method, name, what) == ("POST", "", "a bucket"):
        raise not_implemented("S3 PostObject (an upload by form)")
    message = "The specified method is not allowed against this resource."
    raise refused("MethodNotAllowed", message)


def _check_headers(call: Call) -> None:
    """Raises AccessDenied for another owner, and NotImplemented for what would have no effect."""
    account, headers = call.cloud.account.id, call.headers
    if headers.get("x-amz-expected-bucket-owner", account) != account:
        raise refused("AccessDenied", "Access Denied")
    for name in map(str.lower, headers):
        if name.startswith("x-amz-grant-") or (
            name == "x-amz-acl" and headers[name] not in _OWN_LISTS
        ):
            raise not_implemented(f"S3 access control lists ({name})")
        if name == "x-amz-tagging":
            raise not_implemented("S3 tags of objects")
        if name.startswith("x-amz-object-lock-") or (
            name == "x-amz-bucket-object-lock-enabled" and headers[name].lower() == "true"
        ):
            raise not_implemented(f"S3 object lock ({name})")
