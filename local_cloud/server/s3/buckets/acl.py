"""Access control lists of buckets and objects, and anonymous access by them.

They have an effect where signatures are verified: only they admit a request without one.
"""

from __future__ import annotations

from aiohttp import web

from local_cloud.model.errors import CloudError, refused
from local_cloud.model.s3 import acl
from local_cloud.model.s3.bucket import Bucket
from local_cloud.server.context import Context
from local_cloud.server.s3.bodies import xml
from local_cloud.server.s3.bodies.payload import read_small
from local_cloud.server.s3.target import Target

DOCUMENT = "acl"  #: the bucket's own list among its documents
#: The one account, as listings and access control lists name it.
OWNER = xml.text("ID", acl.OWNER_ID) + xml.text("DisplayName", "embedded-cloud")
_LISTING = frozenset(
    {
        "list-type",
        "prefix",
        "delimiter",
        "marker",
        "max-keys",
        "continuation-token",
        "start-after",
        "fetch-owner",
        "encoding-type",
        "versions",
        "key-marker",
        "version-id-marker",
        "uploads",
        "upload-id-marker",
        "max-uploads",
        "x-id",
        "bucket",
        "key",
        "etag",  # of the redirect after a form upload
    }
)
_READING = frozenset({"versionId", "partNumber", "x-id"})
_SCHEMA = "http://www.w3.org/2001/XMLSchema-instance"
_MALFORMED = "The XML you provided was not well-formed or did not validate against our schema"


def check_headers(context: Context, target: Target, request: web.BaseRequest) -> None:
    """Raises InvalidArgument for a list that S3 does not have, AccessDenied if blocked, …"""
    grants = acl.of_headers(request.headers) if request.method in ("PUT", "POST") else acl.PRIVATE
    if target.key and grants != acl.PRIVATE:
        check_block(context.cloud.bucket(target.bucket), grants)


def check_block(bucket: Bucket, grants: acl.Grants) -> None:
    """Raises AccessDenied for a public list in a bucket that blocks them."""
    acl.check_block(grants, blocked=_blocks(bucket, "BlockPublicAcls"))


def _blocks(bucket: Bucket, setting: str) -> bool:
    """Whether a setting of the bucket's public access block is on."""
    text = bucket.documents.get("publicAccessBlock")
    if text is None:
        return False
    root = xml.parse(text.encode(), "PublicAccessBlockConfiguration")
    return xml.value(root, setting).lower() == "true"


def set_for_bucket(bucket: Bucket, grants: acl.Grants) -> None:
    """Keep the bucket's own list."""
    text = acl.to_text(grants) or None
    if bucket.documents.get(DOCUMENT) != text:
        bucket.set_document(DOCUMENT, text)


def allows_anonymous(bucket: Bucket, permission: str) -> bool:
    """Whether the bucket's list grants this to requests without a signature."""
    ignored = _blocks(bucket, "IgnorePublicAcls")
    return not ignored and acl.is_public(bucket.documents.get(DOCUMENT, ""), permission)


def check_anonymous(context: Context, target: Target, request: web.BaseRequest) -> None:
    """Raises AccessDenied for a request without signature that no list admits.

    READ of a bucket is listing it, WRITE putting objects, READ of an object reading it.
    """
    reads = request.method in ("GET", "HEAD")
    if target.bucket and (target.key or reads):
        bucket = context.cloud.bucket(target.bucket)
        if _is_admitted(
            bucket, target, request.method, copies="x-amz-copy-source" in request.headers
        ):
            return
    raise CloudError("AccessDenied", 403, "Access Denied")


def _is_admitted(bucket: Bucket, target: Target, method: str, *, copies: bool) -> bool:
    names = target.query.keys()
    if not target.key:
        return names <= _LISTING and allows_anonymous(bucket, "READ")
    if method == "PUT":
        return names <= {"x-id"} and not copies and allows_anonymous(bucket, "WRITE")
    if method not in ("GET", "HEAD") or not names <= _READING:
        return False
    try:
        version = bucket.get(target.key, target.query.get("versionId", ""))
    except CloudError:
        return allows_anonymous(bucket, "READ")  # a missing key is reported to those who may list
    ignored = _blocks(bucket, "IgnorePublicAcls")
    return not ignored and acl.is_public(version.attributes.acl, "READ")


async def handle(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """GetBucketAcl, PutBucketAcl, GetObjectAcl, PutObjectAcl."""
    if request.method not in ("GET", "PUT"):
        raise CloudError(
            "MethodNotAllowed", 405, "The specified method is not allowed against this resource."
        )
    bucket = context.cloud.bucket(target.bucket)
    version_id = target.query.get("versionId", "")
    version = bucket.get(target.key, version_id) if target.key else None
    if request.method == "GET":
        kept = version.attributes.acl if version else bucket.documents.get(DOCUMENT, "")
        return _shown(acl.from_text(kept))
    body = await read_small(request)
    grants = _read(body) if body else acl.of_headers(request.headers)
    check_block(bucket, grants)
    if target.key:
        # the body took a while to come: another version may be there now
        bucket.set_acl(bucket.get(target.key, version_id), acl.to_text(grants))
    else:
        set_for_bucket(bucket, grants)
    return web.Response(status=200)


def _shown(grants: acl.Grants) -> web.Response:
    # groups first: S3 defines no order, and some clients sort by a name that groups lack
    order = sorted(grants, key=lambda grant: grant[0] == acl.OWNER)
    shown = [
        xml.element("Grant", _grantee(name), xml.text("Permission", permission))
        for name, permission in order
    ]
    return xml.document(
        "AccessControlPolicy", xml.element("Owner", OWNER), xml.element("AccessControlList", *shown)
    )


def _grantee(name: str) -> str:
    kind = "CanonicalUser" if name == acl.OWNER else "Group"
    inner = OWNER if name == acl.OWNER else xml.text("URI", acl.GROUPS[name])
    return f'<Grantee xmlns:xsi="{_SCHEMA}" xsi:type="{kind}">{inner}</Grantee>'


def _read(body: bytes) -> acl.Grants:
    """The grants of a document. Raises MalformedACLError, and as `acl.grantee_of`."""
    root = xml.parse(body, "AccessControlPolicy")
    found: list[tuple[str, str]] = []
    for grant in root.iterfind("AccessControlList/Grant"):
        node, permission = grant.find("Grantee"), xml.value(grant, "Permission")
        if node is None or permission not in acl.PERMISSIONS:
            raise refused("MalformedACLError", _MALFORMED)
        for name in ("ID", "URI", "EmailAddress"):
            if node.find(name) is not None:
                found.append((acl.grantee_of(name.lower(), xml.value(node, name)), permission))
                break
        else:
            raise refused("MalformedACLError", _MALFORMED)
    return tuple(found)
