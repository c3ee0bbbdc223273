"""The bucket's notification configuration: XML to rules and back."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from local_cloud.model.arns import arn_service
from local_cloud.model.errors import not_implemented
from local_cloud.model.s3.notifications import Rule
from local_cloud.server.context import Context
from local_cloud.server.s3.bodies import xml
from local_cloud.server.s3.bodies.payload import read_small

#: element of a rule → element of its destination
_KINDS = {"QueueConfiguration": "Queue", "CloudFunctionConfiguration": "CloudFunction"}
_UNSUPPORTED = ("TopicConfiguration", "EventBridgeConfiguration")


def get(context: Context, bucket: str) -> web.Response:
    """GET ?notification."""
    return xml.document(
        "NotificationConfiguration", *(_rule_xml(rule) for rule in context.cloud.rules(bucket))
    )


async def put(context: Context, bucket: str, request: web.BaseRequest) -> web.Response:
    """PUT ?notification replaces the whole configuration, as on AWS."""
    context.cloud.bucket(bucket)
    root = xml.parse(await read_small(request), "NotificationConfiguration")
    for name in _UNSUPPORTED:
        if root.find(name) is not None:
            raise not_implemented(f"an S3 notification by {name}")
    skip = request.headers.get("x-amz-skip-destination-validation", "").lower() == "true"
    rules = list(_rules(context, root))
    context.cloud.configure_notifications(context.now_s(), bucket, rules, check=not skip)
    return web.Response(status=200)


def _rules(context: Context, root: xml.Element) -> Iterable[Rule]:
    for kind, destination in _KINDS.items():
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


def _rule_xml(rule: Rule) -> str:
    is_queue = arn_service(rule.arn) == "sqs"
    kind = "QueueConfiguration" if is_queue else "CloudFunctionConfiguration"
    filters = [
        xml.element("FilterRule", xml.text("Name", name), xml.text("Value", value))
        for name, value in (("Prefix", rule.prefix), ("Suffix", rule.suffix))
        if value
    ]
    key_filter = xml.element("Filter", xml.element("S3Key", *filters)) if filters else ""
    return xml.element(
        kind,
        xml.text("Id", rule.id),
        xml.text(_KINDS[kind], rule.arn),
        *(xml.text("Event", event) for event in rule.events),
        key_filter,
    )
