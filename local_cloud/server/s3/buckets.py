"""A bucket and its settings: creation, versioning, notifications, and documents without effect.

A deployment sets the documents and reads them again; their effects on AWS (expiry, encryption,
access rules) are listed as missing in docs/reference/local-cloud.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from corekit.values import Value
from local_cloud.model.arns import arn_service
from local_cloud.model.cloud import FIRST_REGION
from local_cloud.model.errors import CloudError, not_implemented
from local_cloud.model.s3.notifications import Rule
from local_cloud.server.context import Context
from local_cloud.server.s3 import xml
from local_cloud.server.s3.payload import read_document
from local_cloud.server.s3.target import Target, region_of

#: element of a notification rule → element of its destination
_DESTINATIONS = {"QueueConfiguration": "Queue", "CloudFunctionConfiguration": "CloudFunction"}
_NO_DESTINATIONS = ("TopicConfiguration", "EventBridgeConfiguration")


async def create(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """CreateBucket."""
    body = await read_document(request)
    location = ""
    if body:
        location = xml.value(xml.parse(body, "CreateBucketConfiguration"), "LocationConstraint")
    region = region_of(request)
    context.cloud.create_bucket(context.now_s(), target.bucket, location, request_region=region)
    return web.Response(headers={"Location": f"/{target.bucket}"})


async def head(context: Context, target: Target, _: web.BaseRequest) -> web.Response:
    """HeadBucket."""
    region = context.cloud.region_of(context.cloud.bucket(target.bucket))
    return web.Response(headers={"x-amz-bucket-region": region})


async def delete(context: Context, target: Target, _: web.BaseRequest) -> web.Response:
    """DeleteBucket."""
    context.cloud.delete_bucket(context.now_s(), target.bucket)
    return web.Response(status=204)


async def location(context: Context, target: Target, _: web.BaseRequest) -> web.Response:
    """GetBucketLocation."""
    region = context.cloud.bucket(target.bucket).location or context.cloud.account.region
    inner = "" if region == FIRST_REGION else region
    body = f'<LocationConstraint xmlns="{xml.NAMESPACE}">{inner}</LocationConstraint>'
    return web.Response(body=body.encode(), content_type="application/xml")


async def get_versioning(context: Context, target: Target, _: web.BaseRequest) -> web.Response:
    """GetBucketVersioning."""
    status = context.cloud.bucket(target.bucket).versioning
    return xml.document("VersioningConfiguration", {"Status": status or None})


async def put_versioning(
    context: Context, target: Target, request: web.BaseRequest
) -> web.Response:
    """PutBucketVersioning."""
    context.cloud.bucket(target.bucket)
    root = xml.parse(await read_document(request), "VersioningConfiguration")
    context.cloud.set_versioning(context.now_s(), target.bucket, xml.value(root, "Status"))
    return web.Response(status=200)


# --- documents that are stored and returned as they were sent


class _Document(Value):
    root: str  #: of the XML document; empty = JSON
    missing: str  #: error code of a GET when nothing was set


DOCUMENTS = {
    "policy": _Document(root="", missing="NoSuchBucketPolicy"),
    "lifecycle": _Document(root="LifecycleConfiguration", missing="NoSuchLifecycleConfiguration"),
    "tagging": _Document(root="Tagging", missing="NoSuchTagSet"),
    "publicAccessBlock": _Document(
        root="PublicAccessBlockConfiguration", missing="NoSuchPublicAccessBlockConfiguration"
    ),
    "encryption": _Document(
        root="ServerSideEncryptionConfiguration",
        missing="ServerSideEncryptionConfigurationNotFoundError",
    ),
}


async def document(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """GET, PUT or DELETE of one configuration document."""
    bucket = context.cloud.bucket(target.bucket)
    kind = next(name for name in DOCUMENTS if name in target.query)
    root, missing = DOCUMENTS[kind].root, DOCUMENTS[kind].missing
    if request.method == "GET":
        text = bucket.documents.get(kind)
        if text is None:
            raise CloudError(missing, 404, f"The bucket has no {kind} configuration")
        content_type = "application/xml" if root else "application/json"
        return web.Response(body=text.encode(), content_type=content_type)
    context.cloud.storage.check_settings(context.now_s(), target.bucket)
    if request.method == "DELETE":
        bucket.set_document(kind, None)
        return web.Response(status=204)
    body = await read_document(request)
    if root:
        xml.parse(body, root)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise xml.malformed() from None
    context.cloud.bucket(target.bucket).set_document(kind, text)
    return web.Response(status=200 if root else 204)


# --- notifications


async def get_notification(context: Context, target: Target, _: web.BaseRequest) -> web.Response:
    """GetBucketNotificationConfiguration."""
    shown: dict[str, list[object]] = {kind: [] for kind in _DESTINATIONS}
    for rule in context.cloud.rules(target.bucket):
        is_queue = arn_service(rule.arn) == "sqs"
        kind = "QueueConfiguration" if is_queue else "CloudFunctionConfiguration"
        filters = {"Prefix": rule.prefix, "Suffix": rule.suffix}
        named = [{"Name": name, "Value": value} for name, value in filters.items() if value]
        shown[kind].append(
            {
                "Id": rule.id,
                _DESTINATIONS[kind]: rule.arn,
                "Event": list(rule.events),
                "Filter": {"S3Key": {"FilterRule": named}} if named else None,
            }
        )
    return xml.document("NotificationConfiguration", shown)


async def put_notification(
    context: Context, target: Target, request: web.BaseRequest
) -> web.Response:
    """PutBucketNotificationConfiguration replaces the whole configuration, as on AWS."""
    context.cloud.bucket(target.bucket)
    root = xml.parse(await read_document(request), "NotificationConfiguration")
    for name in _NO_DESTINATIONS:
        if root.find(name) is not None:
            raise not_implemented(f"an S3 notification by {name}")
    skip = request.headers.get("x-amz-skip-destination-validation", "").lower() == "true"
    rules = list(_rules(context, root))
    context.cloud.configure_notifications(context.now_s(), target.bucket, rules, check=not skip)
    return web.Response(status=200)


def _rules(context: Context, root: xml.Element) -> Iterable[Rule]:
    for kind, destination in _DESTINATIONS.items():
        for node in root.findall(kind):
            filters = {
                xml.value(rule, "Name").lower(): xml.value(rule, "Value")
                for rule in node.iterfind("Filter/S3Key/FilterRule")
            }
            if not filters.keys() <= {"prefix", "suffix"}:
                raise xml.malformed()
            yield Rule(
                id=xml.value(node, "Id") or context.cloud.new_request_id(),
                arn=xml.value(node, destination),
                events=tuple(event.text or "" for event in node.findall("Event")),
                prefix=filters.get("prefix", ""),
                suffix=filters.get("suffix", ""),
            )
