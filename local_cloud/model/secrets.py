"""SSM Parameter Store and Secrets Manager, as far as `orchgpu secret`, the runner and ssgmd use
them.

Sources: the API references of Systems Manager and of Secrets Manager. There is no KMS: values are
stored as they were sent. A secret has its current value alone, without stages and rotation.
"""

from __future__ import annotations

import base64
import hashlib
import re
import string

from corekit.decode import decode, encode
from corekit.ids import IdSource
from corekit.values import Value, replace
from local_cloud.model.arns import Account
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.recorder import Recorded, Recorder, part

SECURE = "SecureString"
TYPES = ("String", "StringList", SECURE)
AWS_KEY = "alias/aws/ssm"  #: KMS's alias of the key that AWS manages for the service
VERSIONS_MAX = 100  #: of a parameter; older ones are forgotten
CURRENT = "AWSCURRENT"  #: the one stage of a secret's value
SECRET_BYTES_MAX = 65536
RECOVERY_DAYS = 30
_PARAMETER = re.compile(r"/?[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_TAKEN = re.compile(r"/?(aws|ssm)", re.IGNORECASE)
_SECRET = re.compile(r"[A-Za-z0-9/_+=.@!-]{1,512}")
_SUFFIX_CHARACTERS = 6
_DAY_S = 86400.0


class ParameterVersion(Value):
    """One value of a parameter."""

    number: int  #: from 1
    value: str
    modified_at_s: float


class Parameter(Value):
    """One parameter."""

    name: str
    type: str
    key: str = ""  #: KMS key of a SecureString
    tier: str = "Standard"
    versions: tuple[ParameterVersion, ...] = ()  #: the newest last

    def shown(self, version: ParameterVersion, *, decrypted: bool) -> str:
        """The value as GetParameter answers it: of a SecureString only `decrypted` is readable."""
        if self.type != SECURE or decrypted:
            return version.value
        digest = hashlib.sha256(f"{self.name}:{version.number}".encode()).digest()
        return base64.b64encode(b"\x01\x02\x02\x00" + digest).decode()


class Parameters:
    """Parameters by name."""

    def __init__(self, account: Account, recorder: Recorder) -> None:
        self._account, self._recorder = account, recorder
        self._parameters: dict[str, Parameter] = {}

    def put(
        self, now_s: float, wanted: Parameter, value: str, *, overwrite: bool
    ) -> ParameterVersion:
        """Make a parameter, or its next version; `wanted.type` may be empty for the latter.

        Raises ValidationException, ParameterAlreadyExists, HierarchyTypeMismatchException.
        """
        _check_parameter(wanted, value)
        old = self._parameters.get(wanted.name)
        if old is None:
            if not wanted.type:
                text = "A parameter type is required when you create a parameter."
                raise refused("ValidationException", text)
            key = (wanted.key or AWS_KEY) if wanted.type == SECURE else ""
            old = replace(wanted, key=key)
        elif not overwrite:
            raise refused("ParameterAlreadyExists", "The parameter exists; set Overwrite.")
        elif wanted.type not in ("", old.type):
            raise refused("HierarchyTypeMismatchException", "A parameter keeps its type.")
        number = old.versions[-1].number + 1 if old.versions else 1
        version = ParameterVersion(number=number, value=value, modified_at_s=now_s)
        made = replace(
            old, key=wanted.key or old.key, versions=(*old.versions, version)[-VERSIONS_MAX:]
        )
        self._parameters[made.name] = made
        self._recorder.put(f"parameter/{part(made.name)}", encode(made))
        return version

    def get(self, reference: str) -> tuple[Parameter, ParameterVersion]:
        """The parameter of a name or ARN, and its newest or selected (`NAME:3`) version.

        Raises ParameterNotFound, ParameterVersionNotFound.
        """
        name, selector = self._split(reference)
        parameter = self._parameters.get(name)
        if parameter is None:
            raise _no_parameter(reference)
        for version in reversed(parameter.versions):
            if selector in ("", str(version.number)):
                return parameter, version
        raise refused("ParameterVersionNotFound", f"{name} has no version {selector}.")

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
            raise _no_parameter(name)
        self._recorder.drop(f"parameter/{part(name)}")

    def all(self) -> list[Parameter]:
        """Every parameter, by name."""
        return [self._parameters[name] for name in sorted(self._parameters)]

    def arn(self, parameter: Parameter) -> str:
        where = f"{self._account.region}:{self._account.id}"
        return f"arn:aws:ssm:{where}:parameter/{parameter.name.removeprefix('/')}"

    def restore(self, value: Recorded) -> None:
        """Restore a recorded parameter."""
        parameter = decode(Parameter, value, "parameter")
        self._parameters[parameter.name] = parameter


def _check_parameter(wanted: Parameter, value: str) -> None:
    name, problem = wanted.name, ""
    most = 4096 if wanted.tier == "Standard" else 8192
    if not _PARAMETER.fullmatch(name) or ("/" in name and not name.startswith("/")):
        problem = f"Parameter name must be a fully qualified name: {name}"
    elif _TAKEN.match(name):
        problem = 'Parameter name: can\'t be prefixed with "aws" or "ssm" (case-insensitive).'
    elif wanted.type and wanted.type not in TYPES:
        problem = f"Member must satisfy enum value set: [{', '.join(TYPES)}]"
    elif not 1 <= len(value) <= most:
        problem = f"{wanted.tier} tier parameters support a value of 1 to {most} characters."
    if problem:
        raise refused("ValidationException", problem)


def _no_parameter(name: str) -> CloudError:
    return refused("ParameterNotFound", f"Parameter {name} not found.")


# ---------------------------------------------------------------------- secrets


class SecretValue(Value):
    """The value of a secret: text, or bytes as base64."""

    id: str  #: of its version
    created_at_s: float
    text: str | None = None
    binary: str | None = None


class Secret(Value):
    """One secret."""

    name: str
    arn: str
    created_at_s: float
    changed_at_s: float
    key: str = ""  #: KMS key; "" = AWS's own
    deleted_at_s: float | None = None  #: marked for deletion, which happens at `gone_at_s`
    gone_at_s: float | None = None
    value: SecretValue | None = None


class Secrets:
    """Secrets by name."""

    def __init__(self, account: Account, ids: IdSource, recorder: Recorder) -> None:
        self._account, self._ids, self._recorder = account, ids, recorder
        self._secrets: dict[str, Secret] = {}

    def create(self, now_s: float, name: str, value: SecretValue | None, key: str = "") -> Secret:
        """Raises ValidationException, ResourceExistsException, InvalidRequestException."""
        if not _SECRET.fullmatch(name):
            raise refused("ValidationException", "A name has letters, digits and -/_+=.@! alone.")
        self._forget_gone(now_s)
        old = self._secrets.get(name)
        if old is not None and old.deleted_at_s is not None:
            raise refused("InvalidRequestException", f"{name} is scheduled for deletion.")
        if old is not None:
            text = f"The operation failed because the secret {name} already exists."
            raise refused("ResourceExistsException", text)
        where = f"{self._account.region}:{self._account.id}"
        arn = f"arn:aws:secretsmanager:{where}:secret:{name}-{self._suffix()}"
        times = {"created_at_s": now_s, "changed_at_s": now_s}
        return self._save(Secret(name=name, arn=arn, key=key, value=value, **times))

    def put(self, now_s: float, reference: str, value: SecretValue) -> Secret:
        """Replace the value; the same one again, by its id, changes nothing.

        Raises ResourceNotFoundException, ResourceExistsException, InvalidRequestException.
        """
        secret = self.get(now_s, reference)
        old = secret.value
        if old is None or old.id != value.id:
            return self._save(replace(secret, value=value, changed_at_s=now_s))
        if (old.text, old.binary) != (value.text, value.binary):
            raise refused("ResourceExistsException", f"{value.id} is of another value already.")
        return secret

    def get(self, now_s: float, reference: str) -> Secret:
        """A secret that is not marked for deletion.

        Raises ResourceNotFoundException, InvalidRequestException.
        """
        secret = self.described(now_s, reference)
        if secret.deleted_at_s is not None:
            raise refused("InvalidRequestException", "The secret was marked for deletion.")
        return secret

    def described(self, now_s: float, reference: str) -> Secret:
        """The secret of a name, ARN or ARN without its last six characters.

        Raises ResourceNotFoundException.
        """
        self._forget_gone(now_s)
        for secret in self._secrets.values():
            if reference in (secret.name, secret.arn, secret.arn[: -_SUFFIX_CHARACTERS - 1]):
                return secret
        text = "Secrets Manager can't find the specified secret."
        raise refused("ResourceNotFoundException", text)

    def delete(self, now_s: float, reference: str, days: int) -> Secret:
        """Mark a secret for deletion; with 0 days it is deleted, marked or not.

        Raises ResourceNotFoundException, InvalidRequestException.
        """
        secret = self.get(now_s, reference) if days else self.described(now_s, reference)
        marked = replace(secret, deleted_at_s=now_s, gone_at_s=now_s + days * _DAY_S)
        self._save(marked)
        self._forget_gone(now_s)
        return marked

    def restore_deleted(self, now_s: float, reference: str) -> Secret:
        """Take back a mark for deletion. Raises ResourceNotFoundException."""
        secret = self.described(now_s, reference)
        return self._save(replace(secret, deleted_at_s=None, gone_at_s=None))

    def restore(self, value: Recorded) -> None:
        """Restore a recorded secret."""
        secret = decode(Secret, value, "secret")
        self._secrets[secret.name] = secret

    def _suffix(self) -> str:
        characters, stream = string.ascii_letters + string.digits, self._ids.stream("secret")
        bits = [stream.getrandbits(16) for _ in range(_SUFFIX_CHARACTERS)]
        return "".join(characters[bit % len(characters)] for bit in bits)

    def _forget_gone(self, now_s: float) -> None:
        for secret in list(self._secrets.values()):
            if secret.gone_at_s is not None and secret.gone_at_s <= now_s:
                del self._secrets[secret.name]
                self._recorder.drop(f"secret/{part(secret.name)}")

    def _save(self, secret: Secret) -> Secret:
        self._secrets[secret.name] = secret
        self._recorder.put(f"secret/{part(secret.name)}", encode(secret))
        return secret
