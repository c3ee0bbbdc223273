"""Warm keys of what belongs to one tenant, as hosts publish them and requests mean them. Pure.

A host says what it holds, and every reader of the inventory can see it; who sent it, and what it
is, are nobody's business. So the key of a tenant's content is a hash that only those can recognise
who know both tenant and content.
"""

from __future__ import annotations

import hashlib

_DIGITS = 32  #: of a hash: 128 bit


def tenant_folder(tenant: str) -> str:
    """The name under which a host keeps a tenant's contents."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:_DIGITS]


def kept_key(folder: str, key: str) -> str:
    """What a host publishes for the content `key` (`sha256:<hex>`) in a tenant's folder."""
    return "kept:" + hashlib.sha256(f"{folder}/{key}".encode()).hexdigest()[:_DIGITS]


def keys_of(tenant: str, warm_key: str | None) -> tuple[str, ...]:
    """The published keys that serve a request: of data for all, and of the tenant's own."""
    if warm_key is None:
        return ()
    return warm_key, kept_key(tenant_folder(tenant), warm_key)
