"""The routing of requests to S3's operations, and S3's error documents."""

from __future__ import annotations

import contextlib
import secrets

from aiohttp import web

from corekit.values import replace
from local_cloud.model.cloud import FIRST_REGION
from local_cloud.model.errors import CloudError, not_implemented
from local_cloud.model.s3.acl import of_headers
from local_cloud.server.context import Context
from local_cloud.server.s3 import (
    documents,
    object_attributes,
    objects,
    unsupported_features,
    uploads,
)
from local_cloud.server.s3.bodies import form, xml
from local_cloud.server.s3.bodies.payload import read_small
from local_cloud.server.s3.buckets import acl, cors, listing, notification
from local_cloud.server.s3.target import Target, region_of, target_of

#: query names that choose an operation which this cloud does not have
_UNKNOWN = frozenset(
    {
        "analytics",
        "intelligent-tiering",
        "inventory",
        "legal-hold",
        "metrics",
        "object-lock",
        "policyStatus",
        "replication",
        "restore",
        "retention",
        "select",
        "torrent",
        "metadataTable",
        "session",
        "renameObject",
    }
)


async def handle(
    context: Context, request: web.BaseRequest, host_bucket: str = ""
) -> web.StreamResponse:
    """Answer one S3 call.

    `host_bucket` is the bucket that the host name holds, empty for path-style addressing.
    """
    request_id, host_id = secrets.token_hex(8).upper(), secrets.token_urlsafe(48)
    always = {"x-amz-request-id": request_id, "x-amz-id-2": host_id}
    always |= cors_headers(context, request, host_bucket)
    try:
        target = replace(target_of(request, host_bucket), always=always)
        target = _authorized(context, request, target, host_bucket)
        answer = await _routed(context, request, target)
    except web.HTTPNotModified as unchanged:
        answer = web.Response(status=304, headers=unchanged.headers)
    except CloudError as error:
        answer = _error_response(request, error, request_id, host_id)
    if not answer.prepared:
        answer.headers.update(always)
    return answer


def _authorized(
    context: Context, request: web.BaseRequest, target: Target, host_bucket: str
) -> Target:
    """The target of a request that may pass. Raises AccessDenied, SignatureDoesNotMatch, …"""
    # browsers cannot sign what they ask before a request; a form is signed in its fields
    if request.method == "OPTIONS" or form.is_form(request, target):
        return target
    if context.verifier.is_anonymous(request):
        acl.check_anonymous(context, target, request)
        return target
    signer = context.verifier.check(request, ("s3",), host_bucket=host_bucket)
    return replace(target, chunks=signer)


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


async def _routed(context: Context, request: web.BaseRequest, target: Target) -> web.StreamResponse:
    owner = request.headers.get("x-amz-expected-bucket-owner", context.cloud.account.id)
    if owner != context.cloud.account.id:
        raise CloudError("AccessDenied", 403, "Access Denied")
    if target.bucket:
        context.cloud.check_region(target.bucket, region_of(request))
        unsupported_features.check_query(context, target, request)
        unsupported_features.check_headers(request)
    unknown = sorted(_UNKNOWN & target.query.keys())
    if unknown:
        raise not_implemented(f"S3 {request.method} ?{unknown[0]}")
    if request.method == "OPTIONS" and target.bucket:
        return cors.preflight(request, allowed="Access-Control-Allow-Origin" in target.always)
    acl.check_headers(context, target, request)
    if target.key:
        return await _object(context, target, request)
    if target.bucket:
        return await _bucket(context, target, request)
    if request.method == "GET":
        return listing.buckets(context, target)
    raise _wrong_method()


def cors_headers(context: Context, request: web.BaseRequest, host_bucket: str) -> dict[str, str]:
    """The CORS headers of the bucket's rules for the requesting page; empty without such a rule."""
    if "Origin" not in request.headers:
        return {}
    with contextlib.suppress(CloudError):
        bucket = context.cloud.bucket(target_of(request, host_bucket).bucket)
        return cors.answer_headers(bucket, request)
    return {}


async def _object(context: Context, target: Target, request: web.BaseRequest) -> web.StreamResponse:
    query, method = target.query, request.method
    if "acl" in query:
        return await acl.handle(context, target, request)
    if "tagging" in query:
        return await objects.tagging(context, target, request)
    if "attributes" in query and method == "GET":
        return object_attributes.attributes(context, target, request)
    if "uploadId" in query or "uploads" in query:
        return await _upload(context, target, request)
    if method == "PUT":
        if "x-amz-copy-source" in request.headers:
            return await objects.copy(context, target, request)
        return await objects.put(context, target, request)
    if method in ("GET", "HEAD"):
        return await objects.get(context, target, request)
    if method == "DELETE":
        return objects.delete(context, target, request)
    raise _wrong_method()


async def _upload(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    method = request.method
    if "uploads" in target.query and method == "POST":
        return uploads.start(context, target, request)
    if "uploadId" not in target.query:
        raise _wrong_method()
    if method == "PUT":
        return await uploads.put_part(context, target, request)
    if method == "POST":
        return await uploads.complete(context, target, request)
    if method == "DELETE":
        return uploads.abort(context, target)
    if method == "GET":
        return uploads.list_parts(context, target)
    raise _wrong_method()


async def _bucket(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    query, method = target.query, request.method
    if method == "PUT" and not query:
        return await _create_bucket(context, target, request)
    bucket = context.cloud.bucket(target.bucket)
    for kind in documents.KINDS:
        if kind in query:
            return await _document(context, target, kind, request)
    if "notification" in query and method == "GET":
        return notification.get(context, target.bucket)
    if "notification" in query and method == "PUT":
        return await notification.put(context, target.bucket, request)
    if "versioning" in query:
        return await _versioning(context, target, request)
    if "acl" in query:
        return await acl.handle(context, target, request)
    if method == "POST":
        return await _post_bucket(context, target, request)
    if method == "GET":
        return _get_bucket(context, target)
    if method == "HEAD":
        region = context.cloud.region_of(bucket)
        return web.Response(headers={"x-amz-bucket-region": region})
    if method == "DELETE":
        context.cloud.delete_bucket(context.now_s(), target.bucket)
        return web.Response(status=204)
    raise _wrong_method()


async def _document(
    context: Context, target: Target, kind: str, request: web.BaseRequest
) -> web.Response:
    if request.method in ("PUT", "DELETE"):
        context.cloud.storage.check_settings(context.now_s(), target.bucket)
    return await documents.handle(context.cloud.bucket(target.bucket), kind, request)


async def _post_bucket(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    if "delete" in target.query:
        return await objects.delete_many(context, target, request)
    if form.is_form(request, target):
        return await form.post(context, target, request)
    raise _wrong_method() if target.query else form.wrong_kind()


def _get_bucket(context: Context, target: Target) -> web.Response:
    bucket = context.cloud.bucket(target.bucket)
    if "location" in target.query:
        region = bucket.location or context.cloud.account.region
        inner = "" if region == FIRST_REGION else region
        body = f'<LocationConstraint xmlns="{xml.NAMESPACE}">{inner}</LocationConstraint>'
        return web.Response(body=body.encode(), content_type="application/xml")
    context.cloud.storage.check_load()
    if "versions" in target.query:
        return listing.versions(bucket, target)
    if "uploads" in target.query:
        return listing.uploads(bucket, target)
    return listing.objects(bucket, target)


async def _create_bucket(
    context: Context, target: Target, request: web.BaseRequest
) -> web.Response:
    grants = of_headers(request.headers)
    body = await read_small(request)
    location = ""
    if body:
        location = xml.value(xml.parse(body, "CreateBucketConfiguration"), "LocationConstraint")
    region = region_of(request)
    context.cloud.create_bucket(context.now_s(), target.bucket, location, request_region=region)
    bucket = context.cloud.bucket(target.bucket)
    acl.set_for_bucket(bucket, grants)  # making one's own bucket again sets its list, too
    return web.Response(headers={"Location": f"/{target.bucket}"})


async def _versioning(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    bucket = context.cloud.bucket(target.bucket)
    if request.method == "PUT":
        root = xml.parse(await read_small(request), "VersioningConfiguration")
        status = xml.value(root, "Status")
        context.cloud.set_versioning(context.now_s(), target.bucket, status)
        return web.Response(status=200)
    status = xml.text("Status", bucket.versioning) if bucket.versioning else ""
    return xml.document("VersioningConfiguration", status)


def _wrong_method() -> CloudError:
    return CloudError(
        "MethodNotAllowed", 405, "The specified method is not allowed against this resource."
    )
