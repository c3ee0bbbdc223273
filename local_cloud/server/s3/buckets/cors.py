"""A bucket's CORS rules: the access of other sites' pages to its objects.

Source: S3 user guide, "Using cross-origin resource sharing"; CORS headers by the Fetch standard.
"""

from __future__ import annotations

from aiohttp import web

from corekit.values import Value
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.s3.bucket import Bucket
from local_cloud.model.wildcard import matches
from local_cloud.server.s3.bodies import xml

_METHODS = frozenset({"GET", "PUT", "HEAD", "POST", "DELETE"})
_VARY = "Origin, Access-Control-Request-Headers, Access-Control-Request-Method"


class Rule(Value):
    """One CORSRule."""

    origins: tuple[str, ...]  #: each with at most one `*`
    methods: tuple[str, ...]
    headers: tuple[str, ...]  #: in lower case, each with at most one `*`
    exposed: tuple[str, ...]
    age_s_max: str

    def origin(self, origin: str) -> str:
        """The pattern that lets this origin in, or empty."""
        return next((o for o in self.origins if matches(origin, o)), "")

    def allows(self, origin: str, method: str, headers: tuple[str, ...]) -> bool:
        """Whether a page of `origin` may send this method with these headers."""
        return (
            bool(self.origin(origin))
            and method in self.methods
            and all(any(matches(name, h) for h in self.headers) for name in headers)
        )


def read_rules(body: bytes) -> tuple[Rule, ...]:
    """The rules of a CORSConfiguration. Raises MalformedXML, InvalidRequest."""
    root = xml.parse(body, "CORSConfiguration")
    found = tuple(_rule(node) for node in root.findall("CORSRule"))
    if not found:
        raise xml.malformed()
    return found


def _rule(node: xml.Element) -> Rule:
    def texts(name: str) -> tuple[str, ...]:
        return tuple(child.text or "" for child in node.findall(name))

    rule = Rule(
        origins=texts("AllowedOrigin"),
        methods=texts("AllowedMethod"),
        headers=tuple(name.lower() for name in texts("AllowedHeader")),
        exposed=texts("ExposeHeader"),
        age_s_max=xml.value(node, "MaxAgeSeconds"),
    )
    if not rule.origins or not rule.methods:
        raise xml.malformed()
    for method in rule.methods:
        if method not in _METHODS:
            message = (
                f"Found unsupported HTTP method in CORS config. Unsupported method is {method}"
            )
            raise refused("InvalidRequest", message)
    if not all(text.isprintable() for text in (*rule.exposed, *rule.origins)):
        raise xml.malformed()
    if rule.age_s_max and not rule.age_s_max.isdecimal():
        raise xml.malformed()
    for text in (*rule.origins, *rule.headers):
        if text.count("*") > 1:
            raise refused("InvalidRequest", f'"{text}" can not have more than one wildcard.')
    return rule


def answer_headers(bucket: Bucket, request: web.BaseRequest) -> dict[str, str]:
    """The CORS headers of an answer; empty when no rule names the page, or no page asks."""
    origin = request.headers.get("Origin", "")
    text = bucket.documents.get("cors")
    if not origin or text is None:
        return {}
    names: tuple[str, ...] = ()
    method = request.method
    if method == "OPTIONS" or "Access-Control-Request-Method" in request.headers:
        method = request.headers.get("Access-Control-Request-Method", "")
        names = _names(request)
    for rule in read_rules(text.encode()):
        if rule.allows(origin, method, names):
            return _headers(rule, origin, names)
    return {}


def preflight(request: web.BaseRequest, *, allowed: bool) -> web.Response:
    """The answer to OPTIONS, without the headers. Raises BadRequest, AccessForbidden."""
    if "Origin" not in request.headers:
        raise refused("BadRequest", "Insufficient information. Origin request header needed.")
    method = request.headers.get("Access-Control-Request-Method", "")
    if method not in _METHODS:
        raise refused("BadRequest", f"Invalid Access-Control-Request-Method: {method or 'null'}")
    if not allowed:
        message = (
            "CORSResponse: This CORS request is not allowed. This is usually because the evalution"
            " of Origin, request method / Access-Control-Request-Method or"
            " Access-Control-Request-Headers are not whitelisted by the resource's CORS spec."
        )
        raise CloudError("AccessForbidden", 403, message)
    return web.Response()


def _names(request: web.BaseRequest) -> tuple[str, ...]:
    text = request.headers.get("Access-Control-Request-Headers", "")
    return tuple(name.strip().lower() for name in text.split(",") if name.strip())


def _headers(rule: Rule, origin: str, names: tuple[str, ...]) -> dict[str, str]:
    any_origin = rule.origin(origin) == "*"
    found = {
        "Access-Control-Allow-Origin": "*" if any_origin else origin,
        "Access-Control-Allow-Methods": ", ".join(rule.methods),
        "Vary": _VARY,
    }
    if not any_origin:
        found["Access-Control-Allow-Credentials"] = "true"
    if names:
        found["Access-Control-Allow-Headers"] = ", ".join(names)
    if rule.exposed:
        found["Access-Control-Expose-Headers"] = ", ".join(rule.exposed)
    if rule.age_s_max:
        found["Access-Control-Max-Age"] = rule.age_s_max
    return found
