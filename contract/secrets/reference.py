"""A reference to a secret: the name of its place, never its content.

    secretsmanager:NAME        AWS Secrets Manager: a name or an ARN, the newest value
    secretsmanager:NAME#KEY    one key of a secret that is a JSON object
    ssm:NAME                   SSM Parameter Store: a name (with :VERSION or :LABEL) or an ARN
    file:PATH                  a file of the machine where the reader runs

Messages about text that is not a reference do not quote it: it could be the secret itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

#: The variable of a function with its secrets: JSON object, variable → reference.
VARIABLE = "ORCHGPU_SECRETS"
FORMS = "secretsmanager:NAME, secretsmanager:NAME#KEY, ssm:NAME or file:PATH"


class Scheme(StrEnum):
    """The kind of place that holds a secret."""

    SECRETS_MANAGER = "secretsmanager"
    PARAMETER_STORE = "ssm"
    FILE = "file"


_ARN = r"arn:aws[a-z-]*:{service}:[a-z0-9-]+:\d{{12}}:{kind}"
_SECRET = re.compile(
    rf"({_ARN.format(service='secretsmanager', kind='secret:')})?[A-Za-z0-9/_+=.@!-]{{1,512}}"
)
_PARAMETER = re.compile(
    rf"({_ARN.format(service='ssm', kind='parameter')}/|/)?"
    r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*(?P<selector>:[A-Za-z0-9_.-]{1,100})?"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")
_CHARACTERS_MAX = 1500
#: Parameters that stand for secrets of Secrets Manager, which need its permissions.
_THROUGH_SSM = "/aws/reference/secretsmanager/"


class UnknownScheme(ValueError):
    """A text whose part before the first colon is the scheme of no store that is known here."""


@dataclass(frozen=True, slots=True)
class SecretReference:
    """The place of a secret."""

    scheme: Scheme
    name: str  #: of the entry, or the path of the file
    key: str = ""  #: of a JSON object; "" = the whole value

    def __str__(self) -> str:
        return f"{self.scheme.value}:{self.name}" + (f"#{self.key}" if self.key else "")

    @property
    def stored(self) -> bool:
        """Whether a service of AWS keeps it."""
        return self.scheme is not Scheme.FILE

    @property
    def region(self) -> str | None:
        """The region that an ARN names; None for a name, which is of the reader's own region."""
        parts = self.name.split(":")
        return parts[3] if self.stored and parts[0] == "arn" else None

    @property
    def entry(self) -> str:
        """The name or ARN of the entry, without the version or label of a parameter."""
        selector = self._selector
        return self.name.removesuffix(selector) if selector else self.name

    @property
    def _selector(self) -> str:
        if self.scheme is not Scheme.PARAMETER_STORE:
            return ""
        found = _PARAMETER.fullmatch(self.name)
        return (found["selector"] or "") if found else ""


def parse_reference(text: str) -> SecretReference:
    """The reference that `text` is. Raises ValueError with a sentence, UnknownScheme."""
    scheme, colon, name = text.partition(":")
    if not colon or scheme not in tuple(Scheme):
        hidden = "the text is not shown, because it could be the secret itself"
        message = f"not a reference to a secret: write {FORMS} ({hidden})"
        raise (UnknownScheme if colon and _SCHEME.fullmatch(scheme) else ValueError)(message)
    if not name:
        raise ValueError(f"names no secret: write {_form(Scheme(scheme))}")
    if len(text) > _CHARACTERS_MAX or not text.isprintable():
        raise ValueError(f"not a name of {_CHARACTERS_MAX} printable characters at most")
    match Scheme(scheme):
        case Scheme.SECRETS_MANAGER:
            return _secret(name)
        case Scheme.PARAMETER_STORE:
            return _parameter(name)
        case Scheme.FILE:
            return SecretReference(Scheme.FILE, name)


def _form(scheme: Scheme) -> str:
    return f"{scheme.value}:{'PATH' if scheme is Scheme.FILE else 'NAME'}"


def _secret(text: str) -> SecretReference:
    name, mark, key = text.partition("#")
    if mark and not key:
        raise ValueError("names no key after #: write secretsmanager:NAME#KEY, or leave # out")
    if not _SECRET.fullmatch(name):
        raise ValueError(
            "not the name or ARN of a secret: letters, digits and /_+=.@!- are allowed in a name"
        )
    return SecretReference(Scheme.SECRETS_MANAGER, name, key)


def _parameter(name: str) -> SecretReference:
    if "#" in name:
        raise ValueError("a parameter has no keys: write ssm:NAME, with one parameter for each")
    if name.startswith(_THROUGH_SSM):
        secret = name.removeprefix(_THROUGH_SSM)
        raise ValueError(f"a secret of Secrets Manager: write secretsmanager:{secret}")
    if not _PARAMETER.fullmatch(name):
        raise ValueError(
            "not the name or ARN of a parameter: letters, digits, _ . - and levels with / are"
            " allowed in a name"
        )
    if "/" in name and not name.startswith(("/", "arn:")):
        raise ValueError(f"a name with levels begins with /: write ssm:/{name}")
    return SecretReference(Scheme.PARAMETER_STORE, name)
