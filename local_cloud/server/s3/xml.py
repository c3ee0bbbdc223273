"""Writing and reading the XML of S3, and nothing more general than that."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from xml.sax.saxutils import escape

from aiohttp import web

from local_cloud.model.errors import CloudError, refused

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
BODY_BYTES_MAX = 4 * 2**20  #: of a request document; 10,000 parts need about 1.5 MiB

Element = ElementTree.Element


def elements(values: Mapping[str, object]) -> str:
    """An element for each value, with those of a mapping inside; one for each entry of a list, and
    none for None.
    """
    parts: list[str] = []
    for name, value in values.items():
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, dict):
                parts.append(f"<{name}>{elements(entry)}</{name}>")
            elif entry is not None:  # booleans as S3 writes them
                shown = str(entry).lower() if isinstance(entry, bool) else str(entry)
                parts.append(f"<{name}>{escape(shown)}</{name}>")
    return "".join(parts)


def document(name: str, values: Mapping[str, object]) -> web.Response:
    """A whole answer."""
    inner = f'<{name} xmlns="{NAMESPACE}">{elements(values)}</{name}>'
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{inner}'
    return web.Response(body=body.encode(), content_type="application/xml")


def error_body(error: CloudError, resource: str, request_id: str, host_id: str) -> bytes:
    """S3's error document."""
    ids = {"Resource": resource, "RequestId": request_id, "HostId": host_id}
    inner = elements(
        {"Error": {"Code": error.code, "Message": error.message, **error.details, **ids}}
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{inner}'.encode()


def malformed() -> CloudError:
    return refused("MalformedXML", "The XML is not well-formed, or not of S3's schema")


def parse(body: bytes, root: str) -> Element:
    """Read a request document. Raises MalformedXML for anything but XML with that root.

    Document type declarations are refused in every encoding, so no entity is ever expanded.
    """
    if len(body) > BODY_BYTES_MAX:
        raise malformed()
    try:
        parser = ElementTree.XMLParser(target=_Builder())  # noqa: S314 - without DTD nothing expands
        tree = ElementTree.fromstring(body, parser=parser)  # noqa: S314
    except (ElementTree.ParseError, _Doctype, LookupError, ValueError):
        raise malformed() from None
    for node in tree.iter():
        node.tag = node.tag.rpartition("}")[2]
    if tree.tag != root:
        raise malformed()
    return tree


class _Doctype(Exception):
    """The document has a document type declaration."""


class _Builder(ElementTree.TreeBuilder):
    """Builds a tree, and stops at `<!DOCTYPE` before anything in it is read."""

    def doctype(self, *_: object) -> None:
        raise _Doctype


def value(parent: Element, name: str, default: str = "") -> str:
    """The text of a child, or the default."""
    child = parent.find(name)
    return default if child is None or child.text is None else child.text
