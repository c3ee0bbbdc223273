"""Access control lists: canned ones, grants in headers, and anonymous access. Pure.

There is one account, so a grantee is the owner or one of the groups that S3 has. Source: S3 user
guide, "Access control list (ACL) overview".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from local_cloud.model.errors import CloudError, refused

OWNER_ID = "0" * 64  #: canonical id of the one account
OWNER, ALL_USERS, AUTHENTICATED, LOGS = "owner", "all", "authenticated", "logs"
GROUPS = {
    ALL_USERS: "http://acs.amazonaws.com/groups/global/AllUsers",
    AUTHENTICATED: "http://acs.amazonaws.com/groups/global/AuthenticatedUsers",
    LOGS: "http://acs.amazonaws.com/groups/s3/LogDelivery",
}
PERMISSIONS = ("FULL_CONTROL", "READ", "WRITE", "READ_ACP", "WRITE_ACP")

Grants = tuple[tuple[str, str], ...]  #: grantee and permission
PRIVATE: Grants = ((OWNER, "FULL_CONTROL"),)
CANNED: dict[str, Grants] = {
    "private": PRIVATE,
    "public-read": (*PRIVATE, (ALL_USERS, "READ")),
    "public-read-write": (*PRIVATE, (ALL_USERS, "READ"), (ALL_USERS, "WRITE")),
    "authenticated-read": (*PRIVATE, (AUTHENTICATED, "READ")),
    "aws-exec-read": PRIVATE,
    "bucket-owner-read": PRIVATE,
    "bucket-owner-full-control": PRIVATE,
    "log-delivery-write": (*PRIVATE, (LOGS, "WRITE"), (LOGS, "READ_ACP")),
}
_NOTHING = "none"  #: stored form of a list without grants
_GRANTEE = re.compile(r'\s*(\w+)\s*=\s*"?([^",]*)"?\s*')
_HEADERS = {f"x-amz-grant-{name.lower().replace('_', '-')}": name for name in PERMISSIONS}


def to_text(grants: Grants) -> str:
    """The stored form of a list; empty for a private one."""
    if grants == PRIVATE:
        return ""
    return ",".join(f"{grantee}:{permission}" for grantee, permission in grants) or _NOTHING


def from_text(text: str) -> Grants:
    """The inverse of `to_text`."""
    if not text:
        return PRIVATE
    if text == _NOTHING:
        return ()
    pairs = (pair.partition(":") for pair in text.split(","))
    return tuple((grantee, permission) for grantee, _, permission in pairs)


def of_headers(given: Mapping[str, str]) -> Grants:
    """The grants of `x-amz-acl` or `x-amz-grant-…`; private without them.

    Raises InvalidArgument, InvalidRequest, UnresolvableGrantByEmailAddress.
    """
    granted = {name: given[name] for name in _HEADERS if name in given}
    canned = given.get("x-amz-acl")
    if canned is not None:
        if granted:
            message = "Specifying both Canned ACLs and Header Grants is not allowed"
            raise refused("InvalidRequest", message)
        if canned not in CANNED:
            message = f"{canned!r:.80} is not a canned access control list"
            raise refused("InvalidArgument", message)
        return CANNED[canned]
    found: list[tuple[str, str]] = []
    for name, value in granted.items():
        for one in value.split(","):
            match = _GRANTEE.fullmatch(one)
            if match is None:
                raise refused("InvalidArgument", "Argument format not recognized")
            found.append((grantee_of(match[1].lower(), match[2]), _HEADERS[name]))
    return tuple(found) if granted else PRIVATE


def grantee_of(kind: str, value: str) -> str:
    """The grantee that an `id`, `uri` or `emailaddress` names. Raises as `of_headers`."""
    if kind == "id":
        if value == OWNER_ID:
            return OWNER
        raise refused("InvalidArgument", "Invalid id")
    if kind == "uri":
        for name, uri in GROUPS.items():
            if value == uri:
                return name
        raise refused("InvalidArgument", "Invalid group uri")
    if kind == "emailaddress":
        message = "The e-mail address you provided does not match any account on record."
        raise refused("UnresolvableGrantByEmailAddress", message)
    raise refused("InvalidArgument", "Argument format not recognized")


def is_public(text: str, permission: str) -> bool:
    """Whether a stored list grants this to requests without a signature."""
    return any(
        grantee == ALL_USERS and granted in (permission, "FULL_CONTROL")
        for grantee, granted in from_text(text)
    )


def check_block(grants: Grants, *, blocked: bool) -> None:
    """Raises AccessDenied for a public list where BlockPublicAcls is set."""
    if blocked and any(grantee in (ALL_USERS, AUTHENTICATED) for grantee, _ in grants):
        message = "Public access control lists are prevented by the BlockPublicAcls setting"
        raise CloudError("AccessDenied", 403, message)
