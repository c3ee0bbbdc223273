"""GetObjectAttributes: an object's checksum, size and parts without its bytes."""

from __future__ import annotations

from aiohttp import web

from local_cloud.model.errors import refused
from local_cloud.model.s3.checksums import FULL_OBJECT
from local_cloud.model.s3.listing import PAGE_MAX
from local_cloud.model.s3.object_version import NULL_VERSION, ObjectVersion
from local_cloud.server.context import Context
from local_cloud.server.s3.bodies import xml
from local_cloud.server.s3.dates import http_time
from local_cloud.server.s3.target import Target, number

VERSION_HEADER = "x-amz-version-id"
_NAMES = ("ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize")


def checksum_xml(version: ObjectVersion) -> list[str]:
    """The checksum's elements; empty without one."""
    attributes = version.attributes
    found = [xml.text(f"Checksum{n.upper()}", v) for n, v in attributes.checksums.items()]
    kind = attributes.checksum_type or FULL_OBJECT
    return [*found, xml.text("ChecksumType", kind)] if found else []


def version_header(version: ObjectVersion) -> dict[str, str]:
    """The version id; nothing for a version that was written without versioning."""
    return {} if version.version_id == NULL_VERSION else {VERSION_HEADER: version.version_id}


def attributes(context: Context, target: Target, request: web.BaseRequest) -> web.Response:
    """GetObjectAttributes. Raises InvalidArgument for an unknown attribute or none."""
    version = context.cloud.bucket(target.bucket).get(target.key, target.query.get("versionId", ""))
    given = ",".join(request.headers.getall("x-amz-object-attributes", []))
    wanted = [name.strip() for name in given.split(",") if name.strip()]
    if not wanted or not set(wanted) <= set(_NAMES):
        raise refused("InvalidArgument", "Invalid attribute name specified.")
    found = {
        "ETag": xml.text("ETag", version.etag),
        "Checksum": _element("Checksum", checksum_xml(version)),
        "ObjectParts": _element("ObjectParts", _parts(version, request)),
        "StorageClass": xml.text("StorageClass", "STANDARD"),
        "ObjectSize": xml.text("ObjectSize", version.size),
    }
    answer = xml.document(
        "GetObjectAttributesResponse", *(found[name] for name in _NAMES if name in wanted)
    )
    answer.headers["Last-Modified"] = http_time(version.modified_at_s)
    answer.headers.update(version_header(version))
    return answer


def _element(name: str, children: list[str]) -> str:
    return xml.element(name, *children) if children else ""


def _parts(version: ObjectVersion, request: web.BaseRequest) -> list[str]:
    """A page of the parts of a multipart upload; empty for an object sent whole."""
    if not version.part_sizes:
        return []
    asked = {
        name: request.headers[f"x-amz-{name}"]
        for name in ("max-parts", "part-number-marker")
        if f"x-amz-{name}" in request.headers
    }
    limit = min(number(asked, "max-parts", PAGE_MAX), PAGE_MAX)
    after = number(asked, "part-number-marker", 0)
    rest = [part for part in version.parts() if part.number > after]
    page = rest[:limit]
    algorithm = next(iter(version.attributes.checksums), "").upper()
    return [
        xml.text("PartsCount", len(version.part_sizes)),
        xml.text("PartNumberMarker", after),
        xml.text("NextPartNumberMarker", page[-1].number if page else 0),
        xml.text("MaxParts", limit),
        xml.text("IsTruncated", len(rest) > len(page)),
        *(
            xml.element(
                "Part",
                xml.text("PartNumber", part.number),
                xml.text("Size", part.size),
                xml.text(f"Checksum{algorithm}", part.checksum) if part.checksum else "",
            )
            for part in page
        ),
    ]
