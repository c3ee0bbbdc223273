"""Access control lists: everything belongs to the one account, and no list changes that."""

from __future__ import annotations

from aiohttp import web

from local_cloud.model.errors import refused
from local_cloud.server.s3 import xml
from local_cloud.server.s3.payload import read_small

#: The one account, as listings and access control lists name it.
OWNER = xml.text("ID", "0" * 64) + xml.text("DisplayName", "embedded-cloud")
_CANNED = frozenset(
    {
        "private", "public-read", "public-read-write", "authenticated-read", "aws-exec-read",
        "bucket-owner-read", "bucket-owner-full-control", "log-delivery-write",
    }
)  # fmt: skip


def check_canned(request: web.BaseRequest) -> None:
    """Raises InvalidArgument for an `x-amz-acl` that S3 does not have."""
    name = request.headers.get("x-amz-acl", "private")
    if name not in _CANNED:
        raise refused("InvalidArgument", f"{name!r:.80} is not a canned access control list")


async def handle(request: web.BaseRequest) -> web.Response:
    """GET shows the owner alone; PUT is taken and changes nothing."""
    if request.method == "PUT":
        check_canned(request)
        body = await read_small(request)
        if body:
            xml.parse(body, "AccessControlPolicy")
        return web.Response(status=200)
    schema = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser"'
    grantee = f"<Grantee {schema}>{OWNER}</Grantee>"
    grant = xml.element("Grant", grantee, xml.text("Permission", "FULL_CONTROL"))
    return xml.document(
        "AccessControlPolicy",
        xml.element("Owner", OWNER),
        xml.element("AccessControlList", grant),
    )
