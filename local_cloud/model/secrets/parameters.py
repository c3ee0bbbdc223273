"""SSM Parameter Store: parameters with their versions, by AWS's documented rules.

Sources: Systems Manager API reference (PutParameter, GetParameter, DescribeParameters) and user
guide, "Parameter Store". There is no KMS: a SecureString is stored as it was sent, and only its
answer without decryption is unreadable.
"""

from __future__ import annotations

import base64
import hashlib
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from local_cloud.model.arns import Account
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.recorder import NullRecorder, Recorded, Recorder, part

SECURE = "SecureString"
TYPES = ("String", "StringList", SECURE)
#: KMS's alias of the key that AWS manages for the service.
AWS_KEY = "alias/aws/ssm"
VERSIONS_MAX = 100  #: older ones are forgotten
_NAME = re.compile(r"/?[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_TAKEN = re.compile(r"/?(aws|ssm)", re.IGNORECASE)
_STANDARD_CHARACTERS_MAX, _ADVANCED_CHARACTERS_MAX = 4096, 8192


@dataclass(slots=True, kw_only=True)
class ParameterVersion:
    """One value of a parameter."""

    number: int  #: from 1
    value: str
    modified_at_s: float


@dataclass(slots=True, kw_only=True)
class Parameter:
    """One parameter."""

    name: str
    type: str
    key: str = ""  #: KMS key of a SecureString
    description: str = ""
    tier: str = "Standard"
    versions: list[ParameterVersion] = field(default_factory=list)  #: the newest last


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedParameter:
    """The fields of PutParameter."""

    name: str
    value: str
    type: str = ""  #: "" = that of the parameter
    key: str = ""
    description: str = ""
    tier: str = "Standard"
    overwrite: bool = False


class Parameters:
    """Parameters by name."""

    def __init__(self, account: Account | None = None, recorder: Recorder | None = None) -> None:
        self._account = account or Account()
        self._recorder = recorder or NullRecorder()
        self._parameters: dict[str, Parameter] = {}

    def put(self, now_s: float, wanted: WantedParameter) -> ParameterVersion:
        """Make a parameter, or its next version.

        Raises ValidationException, ParameterAlreadyExists, HierarchyTypeMismatchException.
        """
        _check(wanted)
        found = self._parameters.get(wanted.name)
        if found is None:
            found = self._new(wanted)
        elif not wanted.overwrite:
            raise refused(
                "ParameterAlreadyExists",
                "The parameter already exists. To overwrite this value, set the overwrite option"
                " in the request to true.",
            )
        elif wanted.type and wanted.type != found.type:
            raise refused(
                "HierarchyTypeMismatchException",
                "Parameter Store does not support changing a parameter type. Create a new, unique"
                " parameter.",
            )
        number = found.versions[-1].number + 1 if found.versions else 1
        version = ParameterVersion(number=number, value=wanted.value, modified_at_s=now_s)
        found.versions = [*found.versions, version][-VERSIONS_MAX:]
        found.key = wanted.key or found.key
        found.description = wanted.description or found.description
        self._save(found)
        return version

    def _new(self, wanted: WantedParameter) -> Parameter:
        if not wanted.type:
            raise refused(
                "ValidationException",
                "A parameter type is required when you create a parameter.",
            )
        key = (wanted.key or AWS_KEY) if wanted.type == SECURE else ""
        made = Parameter(name=wanted.name, type=wanted.type, key=key, tier=wanted.tier)
        self._parameters[wanted.name] = made
        return made

    def get(self, reference: str) -> tuple[Parameter, ParameterVersion]:
        """The parameter of a name or ARN, and its newest or selected (`NAME:3`) version.

        Raises ParameterNotFound, ParameterVersionNotFound.
        """
        name, selector = self._split(reference)
        found = self._parameters.get(name)
        if found is None:
            raise not_found(reference)
        if not selector:
            return found, found.versions[-1]
        for version in found.versions:
            if selector == str(version.number):
                return found, version
        raise refused(
            "ParameterVersionNotFound",
            f"Systems Manager could not find version {selector} of {name}. Verify the version and"
            " try again.",
        )

    def _split(self, reference: str) -> tuple[str, str]:
        """The name in a name or ARN of this account, and the version."""
        prefix = f"arn:aws:ssm:{self._account.region}:{self._account.id}:parameter"
        name, _, selector = reference.removeprefix(prefix).partition(":")
        if reference.startswith(prefix) and name not in self._parameters:
            name = name.removeprefix("/")  # `parameter/NAME` is the ARN of NAME too
        return name, selector

    def delete(self, name: str) -> None:
        """Raises ParameterNotFound."""
        if self._parameters.pop(name, None) is None:
            raise not_found(name)
        self._recorder.drop(f"parameter/{part(name)}")

    def all(self) -> list[Parameter]:
        """Every parameter, by name."""
        return [self._parameters[name] for name in sorted(self._parameters)]

    def arn(self, parameter: Parameter) -> str:
        where = f"{self._account.region}:{self._account.id}"
        return f"arn:aws:ssm:{where}:parameter/{parameter.name.removeprefix('/')}"

    def _save(self, parameter: Parameter) -> None:
        self._recorder.put(
            f"parameter/{part(parameter.name)}",
            {
                "type": parameter.type,
                "key": parameter.key,
                "description": parameter.description,
                "tier": parameter.tier,
                "versions": [[v.number, v.value, v.modified_at_s] for v in parameter.versions],
            },
        )

    def restore(self, name: str, value: Recorded) -> None:
        """Restore a recorded parameter."""
        self._parameters[name] = Parameter(
            name=name,
            type=value["type"],
            key=value["key"],
            description=value["description"],
            tier=value["tier"],
            versions=[_version(fields) for fields in value["versions"]],
        )


def _version(fields: list[Any]) -> ParameterVersion:
    number, value, modified_at_s, *_ = fields  # a newer version may add fields
    return ParameterVersion(number=number, value=value, modified_at_s=modified_at_s)


def _check(wanted: WantedParameter) -> None:
    name = wanted.name
    if not _NAME.fullmatch(name) or ("/" in name and not name.startswith("/")):
        message = f"Parameter name must be a fully qualified name: {name}"
        raise refused("ValidationException", message)
    if _TAKEN.match(name):
        message = 'Parameter name: can\'t be prefixed with "aws" or "ssm" (case-insensitive).'
        raise refused("ValidationException", message)
    if wanted.type and wanted.type not in TYPES:
        message = f"Member must satisfy enum value set: [{', '.join(TYPES)}]"
        raise refused("ValidationException", message)
    standard = wanted.tier == "Standard"
    most = _STANDARD_CHARACTERS_MAX if standard else _ADVANCED_CHARACTERS_MAX
    if not 1 <= len(wanted.value) <= most:
        message = f"{wanted.tier} tier parameters support a value of 1 to {most} characters."
        raise refused("ValidationException", message)


def shown_value(parameter: Parameter, version: ParameterVersion, *, decrypted: bool) -> str:
    """The value as GetParameter answers it: of a SecureString only `decrypted` is readable."""
    if parameter.type != SECURE or decrypted:
        return version.value
    digest = hashlib.sha256(f"{parameter.name}:{version.number}".encode()).digest()
    return base64.b64encode(b"\x01\x02\x02\x00" + digest).decode()


def not_found(name: str) -> CloudError:
    return refused("ParameterNotFound", f"Parameter {name} not found.")


def matches(parameter: Parameter, filters: Mapping[str, tuple[str, list[str]]]) -> bool:
    """Whether a parameter passes the filters of DescribeParameters: key → (option, values)."""
    fields = {"Name": parameter.name, "Type": parameter.type, "KeyId": parameter.key}
    tests: Mapping[str, Callable[[str, str], bool]] = {
        "Equals": operator.eq,
        "BeginsWith": str.startswith,
        "Contains": operator.contains,
    }
    return all(
        any(tests[option](fields[key], value) for value in values)
        for key, (option, values) in filters.items()
    )
