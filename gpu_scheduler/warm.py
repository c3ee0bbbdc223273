"""Warm keys of one tenant's content, as hosts publish them and requests name them. Pure.

Every reader of the inventory sees the warm keys of a host. The key of a tenant's content is a hash,
so that only a reader who knows both tenant and content recognises it.
"""

from __future__ import annotations

import hashlib
import re

_DIGITS = 32  #: of a hash: 128 bits
#: The end of a name that `deploy` derives (fdl/plan/functions.py).
_DERIVED = re.compile(r"(?<=.)-[0-9a-f]{12}$")


def workload_label(workload: str) -> str:
    """The part for people of a derived name, which ends with a hash; another name as it is."""
    return _DERIVED.sub("", workload)


def tenant_folder(tenant: str) -> str:
    """The name of a tenant's folder on a host."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:_DIGITS]


def kept_key(folder: str, key: str) -> str:
    """The published key of the content `key` (`sha256:<hex>`) in a tenant's folder."""
    return "kept:" + hashlib.sha256(f"{folder}/{key}".encode()).hexdigest()[:_DIGITS]


def keys_of(tenant: str, warm_key: str | None) -> tuple[str, ...]:
    """The published keys that match a request: of public content and of the tenant's own."""
    if warm_key is None:
        return ()
    return warm_key, kept_key(tenant_folder(tenant), warm_key)


def workload_key(tenant: str, workload: str) -> str:
    """The published key of a tenant's workload."""
    named = f"{tenant_folder(tenant)}/{workload}"  # unambiguous: names may contain a slash
    return "workload:" + hashlib.sha256(named.encode()).hexdigest()[:_DIGITS]
