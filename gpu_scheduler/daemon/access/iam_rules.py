"""The rules by which hosts join with an IAM role: the roles, and the endpoints of STS. Pure.

A host presents a presigned `GetCallerIdentity` request; only the role's credentials sign it, and
only STS evaluates the signature. Two signed headers bind it to this scheduler: its
name, and a nonce of the connection. The same construction is used by Vault's IAM method and by the
authenticator of EKS.

https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from corekit.decode import decode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.net.addresses import is_loopback
from corekit.suggest import one_of_known
from corekit.values import Value
from gpu_scheduler.protocol.host import NONCE_HEADER, SERVER_HEADER

#: Parameters of the presigned URL; each exactly once, and no other.
_NEEDED = (
    *("Action", "Version", "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date"),
    *("X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature"),
)
_ALLOWED = (*_NEEDED, "X-Amz-Security-Token")
#: The longest URL: session tokens have up to about 2,500 characters.
URL_CHARACTERS_MAX = 8192
EXPIRES_S_MAX = 900
_ROLE = re.compile(r"arn:(aws[a-z-]*):iam::(\d{12}):role/(?:[!-~]+/)?([\w+=,.@-]{1,64})")
_ASSUMED = re.compile(
    r"arn:(aws[a-z-]*):sts::(\d{12}):assumed-role/([\w+=,.@-]{1,64})/([\w+=,.@-]{2,64})"
)


class HostNames(StrEnum):
    """The hosts as which the holder of a role may join."""

    SESSION = "session"  #: the one named as its role session: on EC2, the id of the instance
    ANY = "any"


class RoleRule(Value):
    """A role whose holders may join as hosts."""

    arn: str  #: arn:aws:iam::ACCOUNT:role/NAME
    hosts: str = HostNames.SESSION.value


class _File(Value):
    server: str
    sts: tuple[str, ...]
    role: tuple[RoleRule, ...]


class AssumedRole(NamedTuple):
    """An identity of STS."""

    partition: str
    account: str
    name: str
    session: str


@dataclass(frozen=True, slots=True)
class IamRules:
    """The rules of one scheduler."""

    server: str  #: name of this scheduler, signed by every host
    sts: tuple[str, ...]  #: scheme://host[:port]
    roles: Mapping[tuple[str, str, str], HostNames]  #: partition, account, name

    @classmethod
    def read(cls, fields: Mapping[str, object], where: str) -> IamRules:
        """Validate the values of a file. Raises INVALID."""
        file = decode(_File, dict(fields), where)
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", file.server):
            raise invalid(
                f"{where}: server {file.server!r} must have 1 to 128 of A-Z a-z 0-9 . _ -"
            )
        if not file.sts or not file.role:
            raise invalid(f"{where} needs an endpoint in `sts` and a [[role]]")
        for endpoint in file.sts:
            _check_endpoint(endpoint, where)
        roles: dict[tuple[str, str, str], HostNames] = {}
        for rule in file.role:
            match = _ROLE.fullmatch(rule.arn)
            if match is None:
                text = f"{where}: {rule.arn!r} is not arn:aws:iam::ACCOUNT:role/NAME"
                raise invalid(text)
            known = [one.value for one in HostNames]
            if rule.hosts not in known:
                raise invalid(f"{where}: hosts {rule.hosts!r}{one_of_known(rule.hosts, known)}")
            roles[match[1], match[2], match[3]] = HostNames(rule.hosts)
        return cls(file.server, tuple(one.rstrip("/") for one in file.sts), roles)

    def check_url(self, url: str) -> None:
        """Check that a presigned request may be sent. Raises DENIED."""
        if len(url) > URL_CHARACTERS_MAX or not url.isascii() or not url.isprintable():
            raise _denied("the presigned URL is malformed")
        parts = urlsplit(url)
        endpoint = f"{parts.scheme}://{parts.netloc}"
        if endpoint not in self.sts or parts.fragment or parts.path not in ("", "/"):
            known = ", ".join(self.sts)
            raise _denied(f"{endpoint}{parts.path} is not an allowed endpoint of STS: {known}")
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        given = dict(pairs)
        if len(given) != len(pairs) or [name for name in given if name not in _ALLOWED]:
            raise _denied("the presigned URL has repeated or unknown parameters")
        if missing := [name for name in _NEEDED if name not in given]:
            raise _denied(f"the presigned URL lacks {', '.join(missing)}")
        if given["Action"] != "GetCallerIdentity":
            raise _denied(
                f"the presigned URL is for {given['Action']!r:.60}, not GetCallerIdentity"
            )
        expires = given["X-Amz-Expires"]
        if not expires.isdecimal() or not 0 < int(expires) <= EXPIRES_S_MAX:
            raise _denied(f"X-Amz-Expires must lie in 1…{EXPIRES_S_MAX}")
        signed = given["X-Amz-SignedHeaders"].split(";")
        if unsigned := [h for h in ("host", NONCE_HEADER, SERVER_HEADER) if h not in signed]:
            raise _denied(f"the presigned URL does not sign {', '.join(unsigned)}")

    def check_host(self, arn: str, host: str) -> str:
        """Check that an identity may join as a host; returns the ARN of its role. Raises DENIED."""
        match = _ASSUMED.fullmatch(arn)
        if match is None:
            raise _denied(f"{arn} is not a role session")
        identity = AssumedRole(*match.groups())
        names = self.roles.get(identity[:3])
        if names is None:
            raise _denied(f"the role of {arn} may not join; add its ARN to --join-iam")
        if names is HostNames.SESSION and identity.session != host:
            text = f"{arn} may join as host {identity.session!r} only, not as {host!r}"
            raise _denied(f"{text}; give gpud --host-id {identity.session}")
        return f"arn:{identity.partition}:iam::{identity.account}:role/{identity.name}"

    def allows(self, role: str) -> bool:
        """Whether a role that `check_host` returned may still join."""
        match = _ROLE.fullmatch(role)
        return match is not None and (match[1], match[2], match[3]) in self.roles


def _check_endpoint(endpoint: str, where: str) -> None:
    parts = urlsplit(endpoint)
    plain = parts.scheme == "http" and parts.hostname and is_loopback(parts.hostname)
    if not parts.hostname or (parts.scheme != "https" and not plain):
        raise invalid(f"{where}: {endpoint!r} is not https://HOST of an endpoint of STS")
    if parts.path not in ("", "/") or parts.query or parts.username:
        raise invalid(f"{where}: {endpoint!r} must have neither path, query nor user")


def _denied(text: str) -> AppError:
    return AppError(ErrorCode.DENIED, f"join: {text}", needs="role")
