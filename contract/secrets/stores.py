"""The calls of AWS that read a secret, and their answers, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.secrets.reference import Scheme, SecretReference


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One call of a boto3 client."""

    service: str  #: as boto3 and IAM name it
    operation: str  #: as IAM names it
    method: str  #: of the client
    arguments: Mapping[str, Any]  #: boto3's: their shapes come from data files
    region: str | None  #: None = the reader's own

    @property
    def action(self) -> str:
        """The IAM action that it needs."""
        return f"{self.service}:{self.operation}"


def call_of(reference: SecretReference) -> StoreCall:
    """The call that reads a reference of a store."""
    assert reference.stored, "a file is not read from a service"
    if reference.scheme is Scheme.SECRETS_MANAGER:
        names = ("secretsmanager", "GetSecretValue", "get_secret_value")
        return StoreCall(*names, {"SecretId": reference.name}, reference.region)
    arguments = {"Name": reference.name, "WithDecryption": True}
    return StoreCall("ssm", "GetParameter", "get_parameter", arguments, reference.region)


def description_of(reference: SecretReference) -> StoreCall:
    """The call that describes an entry, without its content."""
    assert reference.stored, "a file is not described by a service"
    if reference.scheme is Scheme.SECRETS_MANAGER:
        names = ("secretsmanager", "DescribeSecret", "describe_secret")
        return StoreCall(*names, {"SecretId": reference.entry}, reference.region)
    wanted = _names(reference)
    filters = [{"Key": "Name", "Option": "Equals", "Values": wanted}]
    names = ("ssm", "DescribeParameters", "describe_parameters")
    return StoreCall(*names, {"ParameterFilters": filters}, reference.region)


def _names(reference: SecretReference) -> list[str]:
    """The names of a parameter: an ARN does not show whether its name begins with /."""
    if reference.region is None:
        return [reference.entry]
    name = reference.entry.partition(":parameter/")[2]
    return [f"/{name}"] if "/" in name else [name, f"/{name}"]


def key_of(reference: SecretReference, answer: Mapping[str, Any]) -> str | None:
    """The KMS key in an entry's description, "" for one of AWS's own; None: there is no entry."""
    if reference.scheme is Scheme.PARAMETER_STORE:
        found = answer.get("Parameters", ())
        if not found:
            return None
        key = str(found[0].get("KeyId") or "")
    else:
        key = str(answer.get("KmsKeyId") or "")
    return "" if key.startswith("alias/aws/") else key


def content_of(reference: SecretReference, answer: Mapping[str, Any]) -> bytes:
    """The content in a call's answer. Raises ValueError, without the content, for a missing key."""
    if reference.scheme is Scheme.PARAMETER_STORE:
        return str(answer["Parameter"]["Value"]).encode()
    binary: bytes | None = answer.get("SecretBinary")
    whole = binary if binary is not None else str(answer.get("SecretString", "")).encode()
    return _of_key(whole, reference.key) if reference.key else whole


def _of_key(whole: bytes, key: str) -> bytes:
    try:
        parsed = json.loads(whole)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError(f"is not a JSON object, so it has no key {key!r}")
    if parsed.get(key) is None:
        raise ValueError(f"has no key {key!r}")
    value = parsed[key]
    return (value if isinstance(value, str) else json.dumps(value)).encode()
