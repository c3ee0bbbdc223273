"""Writing and reading the XML of S3, and nothing more general than that."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from xml.sax.saxutils import escape

from aiohttp import web

from local_cloud.model.errors import CloudError, refused

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
BODY_BYTES_MAX = 4 * 2**20  #: of a request document; 10,000 parts need about 1.5 MiB

Element = ElementTree.Element


def element(name: str, *children: str) -> str:
    """`<name>children</name>`; children are XML already."""
    return f"<{name}>{''.join(children)}</{name}>"


def text(name: str, value: object) -> str:
    """`<name>value</name>` with the value escaped; booleans as S3 writes them."""
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return f"<{name}>{escape(shown)}</{name}>"


def document(name: str, *children: str, status: int = 200) -> web.Response:
    """A whole answer."""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{NAMESPACE}">'
        f"{''.join(children)}</{name}>"
    )
    return web.Response(status=status, body=body.encode(), content_type="application/xml")


def error_body(error: CloudError, resource: str, request_id: str, host_id: str) -> bytes:
    """S3's error document."""
    inner = element(
        "Error",
        text("Code", error.code),
        text("Message", error.message),
        *(text(name, value) for name, value in error.details.items()),
        text("Resource", resource),
        text("RequestId", request_id),
        text("HostId", host_id),
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{inner}'.encode()


def malformed() -> CloudError:
    return refused(
        "MalformedXML",
        "The XML you provided was not well-formed or did not validate against our published schema",
    )


def parse(body: bytes, root: str) -> Element:
    """Read a request document. Raises MalformedXML for anything but XML with that root.

    Document type declarations are refused in every encoding, so no entity is ever expanded.
    """
    if len(body) > BODY_BYTES_MAX:
        raise malformed()
    try:
        parser = ElementTree.XMLParser(target=_Builder())  # noqa: S314 - without DTD nothing expands
        found = ElementTree.fromstring(body, parser=parser)  # noqa: S314
    except (ElementTree.ParseError, _Doctype, LookupError, ValueError):
        raise malformed() from None
    for node in found.iter():
        node.tag = node.tag.rpartition("}")[2]
    if found.tag != root:
        raise malformed()
    return found


class _Doctype(Exception):
    """The document has a document type declaration."""


class _Builder(ElementTree.TreeBuilder):
    """Builds a tree, and stops at `<!DOCTYPE` before anything in it is read."""

    def doctype(self, *_: object) -> None:
        raise _Doctype


def value(parent: Element, name: str, default: str = "") -> str:
    """The text of a child, or the default."""
    found = parent.find(name)
    return default if found is None or found.text is None else found.text
