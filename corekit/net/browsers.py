"""Detection of HTTP requests that can come from a web page of another site. Pure.

A program that listens on loopback without keys trusts its machine, but not the web pages that the
machine's browsers show. A browser sends three things that a page cannot change: `Origin` (Fetch
standard §3.2; with every POST, and with every read whose answer the page may see), `Sec-Fetch-Site`
(Fetch Metadata) and the `Host` of the address that it connected to, which is a foreign name
after DNS rebinding. Clients that are not browsers send only `Host`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from corekit.net.addresses import is_loopback
from corekit.values import Value

#: Every header that `foreign_part` reads.
HEADERS = ("Host", "Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest")


class Foreign(Value):
    """The part of a request that makes it foreign."""

    header: str  #: `Host`, `Origin` or `Sec-Fetch-Site`
    value: str  #: as it was sent, at most 80 characters
    host: str  #: the host name in it; empty when it holds none

    def refusal(self) -> str:
        """The message for the client of a program that takes `--allow-host`."""
        problem = f"{self.header} {self.value!r} names another site than this machine"
        if not self.host:
            return f"{problem}; web pages of other sites are refused"
        return f"{problem}; start the cloud with --allow-host {self.host} if it is to be trusted"


def foreign_part(
    method: str, headers: Mapping[str, str], reached: str, allowed: Collection[str] = ()
) -> Foreign | None:
    """The first header that names another site, or None for a request of this machine.

    `headers` must be case-insensitive. `reached` is the local IP address of the connection: an
    address in `Host` cannot be rebound, so the one that was reached is right. `allowed` holds
    further host names in lower case, without ports; names below them are allowed too. A request
    without `Host` is not a browser's.
    """
    host, origin = headers.get("Host", ""), headers.get("Origin", "")
    for header, value, url in (("Host", host, f"//{host}"), ("Origin", origin, origin)):
        name = _host_of(url) if value else "localhost"
        known = name == reached or _is_here(name) or _is_below(name, allowed)
        if not (name and known):  # a header without a name (`null`) is foreign too
            return Foreign(header=header, value=value[:80], host=name)
    site = headers.get("Sec-Fetch-Site", "")
    if site == "cross-site" and not origin and not _is_followed_link(method, headers):
        return Foreign(header="Sec-Fetch-Site", value=site, host="")
    return None


def _is_followed_link(method: str, headers: Mapping[str, str]) -> bool:
    """True: the user followed a link to us, from a page that cannot read the answer."""
    return (
        method in ("GET", "HEAD")
        and headers.get("Sec-Fetch-Mode") == "navigate"
        and headers.get("Sec-Fetch-Dest") == "document"
    )


@functools.lru_cache(maxsize=256)  # every request asks, most of them the same
def _host_of(url: str) -> str:
    """The host of a URL in lower case, without port; empty when the URL holds none."""
    try:
        return (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _is_below(host: str, allowed: Collection[str]) -> bool:
    return any(host == name or host.endswith(f".{name}") for name in allowed)


@functools.lru_cache(maxsize=256)
def _is_here(host: str) -> bool:
    """True for a name or address that always means this machine (RFC 6761 §6.3 for localhost)."""
    return is_loopback(host) or host.endswith(".localhost")
