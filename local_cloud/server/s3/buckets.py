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
from local_cloud.server.s3 import xml
from local_cloud.server.s3.call import Call, region_of
from local_cloud.server.s3.payload import read_document

#: element of a notification rule → element of its destination
_DESTINATIONS = {"QueueConfiguration": "Queue", "CloudFunctionConfiguration": "CloudFunction"}
_NO_DESTINATIONS = ("TopicConfiguration", "EventBridgeConfiguration")


async def create(call: Call) -> web.Response:
    """CreateBucket."""
    body = await read_document(call.request)
    location = ""
    if body:
        location = xml.value(xml.parse(body, "CreateBucketConfiguration"), "LocationConstraint")
    region = region_of(call.request)
    call.cloud.create_bucket(call.now_s, call.bucket_name, location, request_region=region)
    return web.Response(headers={"Location": f"/{call.bucket_name}"})


async def head(call: Call) -> web.Response:
    """HeadBucket."""
    region = call.cloud.region_of(call.bucket)
    return web.Response(headers={"x-amz-bucket-region": region})


async def delete(call: Call) -> web.Response:
    """DeleteBucket."""
    call.cloud.delete_bucket(call.now_s, call.bucket_name)
    return web.Response(status=204)


async def location(call: Call) -> web.Response:
    """GetBucketLocation."""
    region = call.bucket.location or call.cloud.account.region
    inner = "" if region == FIRST_REGION else region
    body = f'<LocationConstraint xmlns="{xml.NAMESPACE}">{inner}</LocationConstraint>'
    return web.Response(body=body.encode(), content_type="application/xml")


async def get_versioning(call: Call) -> web.Response:
    """GetBucketVersioning."""
    status = call.bucket.versioning
    return xml.document("VersioningConfiguration", {"Status": status or None})


async def put_versioning(call: Call) -> web.Response:
    """PutBucketVersioning."""
    root = xml.parse(await read_document(call.request), "VersioningConfiguration")
    call.cloud.set_versioning(call.now_s, call.bucket_name, xml.value(root, "Status"))
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


async def document(call: Call) -> web.Response:
    """GET, PUT or DELETE of one configuration document."""
    bucket = call.bucket
    kind = next(name for name in DOCUMENTS if name in call.query)
    root, missing = DOCUMENTS[kind].root, DOCUMENTS[kind].missing
    if call.request.method == "GET":
        text = bucket.documents.get(kind)
        if text is None:
            raise CloudError(missing, 404, f"The bucket has no {kind} configuration")
        content_type = "application/xml" if root else "application/json"
        return web.Response(body=text.encode(), content_type=content_type)
    call.cloud.storage.check_settings(call.now_s, call.bucket_name)
    if call.request.method == "DELETE":
        bucket.set_document(kind, None)
        return web.Response(status=204)
    body = await read_document(call.request)
    if root:
        xml.parse(body, root)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise xml.malformed() from None
    call.bucket.set_document(kind, text)
    return web.Response(status=200 if root else 204)


# --- notifications


async def get_notification(call: Call) -> web.Response:
    """GetBucketNotificationConfiguration."""
    shown: dict[str, list[object]] = {kind: [] for kind in _DESTINATIONS}
    for rule in call.cloud.rules(call.bucket_name):
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


async def put_notification(call: Call) -> web.Response:
    """PutBucketNotificationConfiguration replaces the whole configuration, as on AWS."""
    root = xml.parse(await read_document(call.request), "NotificationConfiguration")
    for name in _NO_DESTINATIONS:
        if root.find(name) is not None:
            raise not_implemented(f"an S3 notification by {name}")
    skip = call.headers.get("x-amz-skip-destination-validation", "").lower() == "true"
    rules = list(_rules(call, root))
    call.cloud.configure_notifications(call.now_s, call.bucket_name, rules, check=not skip)
    return web.Response(status=200)


def _rules(call: Call, root: xml.Element) -> Iterable[Rule]:
    for kind, destination in _DESTINATIONS.items():
        for node in root.findall(kind):
            filters = {
                xml.value(rule, "Name").lower(): xml.value(rule, "Value")
                for rule in node.iterfind("Filter/S3Key/FilterRule")
            }
            if not filters.keys() <= {"prefix", "suffix"}:
                raise xml.malformed()
            yield Rule(
                id=xml.value(node, "Id") or call.cloud.new_request_id(),
                arn=xml.value(node, destination),
                events=tuple(event.text or "" for event in node.findall("Event")),
                prefix=filters.get("prefix", ""),
                suffix=filters.get("suffix", ""),
            )
