"""POST Object: an upload by an HTML form, as browsers and `generate_presigned_post` send it.

Source: S3 API reference, "POST Object" and "Browser-based uploads using POST".
"""

from __future__ import annotations

import urllib.parse
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http import HttpProcessingError
from multidict import CIMultiDict

from corekit.values import Value, replace
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.s3 import checksums
from local_cloud.model.s3.acl import of_headers
from local_cloud.model.s3.body import Content
from local_cloud.model.s3.object_version import Attributes, Condition
from local_cloud.model.s3.post_policy import PostPolicy, read_policy
from local_cloud.server.context import Context
from local_cloud.server.s3.bodies import xml
from local_cloud.server.s3.bodies.payload import continue_if_expected, given_checksum
from local_cloud.server.s3.buckets import acl
from local_cloud.server.s3.object_attributes import version_header
from local_cloud.server.s3.object_metadata import attributes_of, read_tags
from local_cloud.server.s3.objects import keep
from local_cloud.server.s3.target import Target

_KIND = "multipart/form-data"
_FIELDS_BYTES_MAX = 20 * 1024  #: of names and values before the file, as S3 has it
_CHUNK_BYTES = 256 * 1024
_STATUSES = frozenset({200, 201, 204})  #: that a form may ask for; anything else is a 204
#: errors of aiohttp's reader for a body that is not multipart/form-data
_UNREADABLE = (ValueError, AssertionError, KeyError, RuntimeError, HttpProcessingError)


class _Form(Value):
    """The fields before the bytes of the file."""

    fields: CIMultiDict[str]
    file: BodyPartReader
    rest: MultipartReader

    async def pieces(self) -> AsyncIterator[bytes]:
        """The file's bytes; then what follows it is read and ignored."""
        try:
            while piece := await self.file.read_chunk(_CHUNK_BYTES):
                yield piece
            while await self.rest.next() is not None:
                pass
        except _UNREADABLE:
            raise _malformed() from None


def is_form(request: web.BaseRequest, target: Target) -> bool:
    """Whether a request is an upload by form, which is signed in its fields."""
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return request.method == "POST" and not target.key and not target.query and kind == _KIND


def wrong_kind() -> CloudError:
    """The refusal of another POST to a bucket."""
    message = f"Bucket POST must be of the enclosure-type {_KIND}"
    return CloudError("PreconditionFailed", 412, message)


async def post(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """POST Object. Raises AccessDenied by its policy, and errors of status 400."""
    context.cloud.bucket(target.bucket)
    await continue_if_expected(request)
    form = await _read(request)
    bucket = context.cloud.bucket(target.bucket)
    owner = context.verifier.check_form(_lower(form.fields))
    if not owner and not acl.allows_anonymous(bucket, "WRITE"):
        raise CloudError("AccessDenied", 403, "Access Denied")
    policy = _policy(context, target, form.fields)
    if "acl" in form.fields:
        form.fields["x-amz-acl"] = form.fields["acl"]
    acl.check_block(bucket, of_headers(form.fields))
    target = replace(target, key=form.fields["key"])
    content, attributes = await _stored(context, form, policy)
    made = keep(context, target, content, attributes, Condition(), event="ObjectCreated:Post")
    answer = _answer(context, target, form.fields, made.etag)
    answer.headers["ETag"] = f'"{made.etag}"'
    answer.headers.update(version_header(made))
    return answer


def _lower(fields: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in fields.items()}


async def _read(request: web.BaseRequest) -> _Form:
    """The fields up to the file. Raises MalformedPOSTRequest, InvalidArgument, …"""
    fields: CIMultiDict[str] = CIMultiDict()
    size = 0
    try:
        reader = MultipartReader(request.headers, request.content)
        while (part := await reader.next()) is not None:
            if not isinstance(part, BodyPartReader) or not part.name:
                raise _malformed()
            if part.name.lower() == "file":
                if not fields.get("key"):
                    message = "Bucket POST must contain a field named 'key'.  If it is specified,"
                    raise refused("InvalidArgument", f"{message} check the order of the fields.")
                return _Form(fields=_named(fields, part), file=part, rest=reader)
            value = b""
            while piece := await part.read_chunk(_FIELDS_BYTES_MAX):
                value += piece
                if size + len(value) > _FIELDS_BYTES_MAX:
                    message = "Your POST request fields preceding the upload file were too large."
                    raise refused("MaxPostPreDataLengthExceeded", message)
            size += len(value) + len(part.name)
            fields[part.name] = value.decode("utf-8", "surrogateescape")
    except _UNREADABLE:
        raise _malformed() from None
    raise refused("InvalidArgument", "POST requires exactly one file upload per request.")


def _named(fields: CIMultiDict[str], file: BodyPartReader) -> CIMultiDict[str]:
    """The fields, in which `${filename}` stands for the last part of the file's name."""
    name = (file.filename or "").rpartition("/")[2]
    return CIMultiDict((n, value.replace("${filename}", name)) for n, value in fields.items())


def _malformed() -> CloudError:
    return refused(
        "MalformedPOSTRequest",
        "The body of your POST request is not well-formed multipart/form-data.",
    )


def _policy(context: Context, target: Target, fields: Mapping[str, str]) -> PostPolicy | None:
    """The form's policy, which it satisfies but for the file's size; None without one."""
    if "policy" not in fields:
        return None
    policy = read_policy(fields["policy"])
    now = datetime.fromtimestamp(context.now_s(), UTC)
    policy.check({**_lower(fields), "bucket": target.bucket}, now)
    return policy


async def _stored(
    context: Context, form: _Form, policy: PostPolicy | None
) -> tuple[Content, Attributes]:
    """Receive the file. Raises EntityTooLarge, EntityTooSmall, BadDigest, MetadataTooLarge, …"""
    algorithm, wanted = given_checksum(form.fields)
    used = algorithm or checksums.DEFAULT
    digest = checksums.new_digest(used)
    attributes = attributes_of(form.fields, {})
    if "tagging" in form.fields:
        tags = read_tags(form.fields["tagging"].encode("utf-8", "surrogateescape"))
        attributes = replace(attributes, tags=tags)
    size = 0
    with context.bodies.new() as writer:
        async for piece in form.pieces():
            size += len(piece)
            if policy is not None and policy.size_max is not None and size > policy.size_max:
                break
            digest.update(piece)
            writer.write(piece)
        if policy is not None:
            policy.check_size(size)
        value = checksums.encoded(digest)
        checksums.compare(used, wanted or value, value)
        content = writer.finish()
    return content, replace(attributes, checksums={used: value})


def _answer(context: Context, target: Target, fields: Mapping[str, str], etag: str) -> web.Response:
    """204 with the object's address, or what the form asks for instead."""
    quoted = urllib.parse.quote(target.key, safe="/~")
    location = f"{context.endpoint}/{target.bucket}/{quoted}"
    page = _redirect(fields.get("success_action_redirect") or fields.get("redirect", ""))
    if page is not None:
        names = {"bucket": target.bucket, "key": target.key, "etag": f'"{etag}"'}
        added = urllib.parse.urlencode(names, quote_via=urllib.parse.quote)
        query = f"{page.query}&{added}" if page.query else added
        return web.Response(status=303, headers={"Location": page._replace(query=query).geturl()})
    asked = fields.get("success_action_status", "")
    status = int(asked) if asked in map(str, _STATUSES) else 204
    if status != 201:
        return web.Response(status=status, headers={"Location": location})
    inner = xml.element(  # of S3's documents this one has no namespace
        "PostResponse",
        xml.text("Location", location),
        xml.text("Bucket", target.bucket),
        xml.text("Key", target.key),
        xml.text("ETag", f'"{etag}"'),
    )
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{inner}'.encode()
    headers = {"Location": location}
    return web.Response(status=201, headers=headers, body=body, content_type="application/xml")


def _redirect(text: str) -> urllib.parse.SplitResult | None:
    """The address that a browser goes to next; None for an invalid one, which S3 ignores."""
    try:
        page = urllib.parse.urlsplit(text)
    except ValueError:
        return None
    good = page.scheme in ("http", "https") and bool(page.netloc)
    return page if good and text.isprintable() and text.isascii() else None
