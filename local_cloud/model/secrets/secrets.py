"""Secrets Manager: secrets with their versions and staging labels, by AWS's documented rules.

Sources: Secrets Manager API reference (CreateSecret, PutSecretValue, GetSecretValue,
DescribeSecret, DeleteSecret, RestoreSecret). There is no KMS and no rotation: values are stored as
they were sent.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field

from corekit.ids import IdSource
from local_cloud.model.arns import Account
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.recorder import NullRecorder, Recorded, Recorder, part

CURRENT, PREVIOUS = "AWSCURRENT", "AWSPREVIOUS"
VALUE_BYTES_MAX = 65536
RECOVERY_DAYS_MIN, RECOVERY_DAYS = 7, 30
_SUFFIX_CHARACTERS = 6
_DAY_S = 86400.0
_NAME = re.compile(r"[A-Za-z0-9/_+=.@!-]{1,512}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretVersion:
    """One value of a secret: text, or bytes as base64."""

    id: str
    created_at_s: float
    text: str | None = None
    binary: str | None = None

    def same_value(self, other: SecretVersion) -> bool:
        return (self.text, self.binary) == (other.text, other.binary)


@dataclass(slots=True, kw_only=True)
class Secret:
    """One secret."""

    name: str
    arn: str
    created_at_s: float
    changed_at_s: float
    key: str = ""  #: KMS key; "" = AWS's own
    description: str = ""
    deleted_at_s: float | None = None  #: marked for deletion, which happens at `gone_at_s`
    gone_at_s: float | None = None
    versions: dict[str, SecretVersion] = field(default_factory=dict)
    stages: dict[str, str] = field(default_factory=dict)  #: staging label → id of a version


class Secrets:
    """Secrets by name."""

    def __init__(
        self,
        account: Account | None = None,
        ids: IdSource | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._account = account or Account()
        self._ids = ids or IdSource("secrets")
        self._recorder = recorder or NullRecorder()
        self._secrets: dict[str, Secret] = {}

    def create(
        self, now_s: float, name: str, version: SecretVersion | None, key: str, description: str
    ) -> Secret:
        """Raises ValidationException, ResourceExistsException, InvalidRequestException."""
        if not _NAME.fullmatch(name):
            raise refused(
                "ValidationException",
                "Invalid name. Must be a valid name containing alphanumeric characters, or any of"
                " the following: -/_+=.@!",
            )
        self._forget_gone(now_s)
        found = self._secrets.get(name)
        if found is not None and found.deleted_at_s is not None:
            raise refused(
                "InvalidRequestException",
                "You can't create this secret because a secret with this name is already scheduled"
                " for deletion.",
            )
        if found is not None:
            raise refused(
                "ResourceExistsException",
                f"The operation failed because the secret {name} already exists.",
            )
        made = Secret(
            name=name,
            arn=f"{self._prefix}{name}-{self._suffix()}",
            created_at_s=now_s,
            changed_at_s=now_s,
            key=key,
            description=description,
        )
        self._secrets[name] = made
        if version is not None:
            _add(made, version)
        self._save(made)
        return made

    def put(self, now_s: float, reference: str, version: SecretVersion) -> Secret:
        """Make a version the current one; the same one again changes nothing.

        Raises ResourceNotFoundException, ResourceExistsException, InvalidRequestException.
        """
        found = self.get(now_s, reference)
        before = found.versions.get(version.id)
        if before is not None and not before.same_value(version):
            raise refused(
                "ResourceExistsException",
                f"You can't use ClientRequestToken {version.id} because that value is already in"
                " use for a version of secret " + found.arn,
            )
        if before is None:
            _add(found, version)
            found.changed_at_s = now_s
            self._save(found)
        return found

    def value(
        self, now_s: float, reference: str, version_id: str = "", stage: str = ""
    ) -> tuple[Secret, SecretVersion]:
        """A version, by default the current one.

        Raises ResourceNotFoundException, InvalidRequestException.
        """
        found = self.get(now_s, reference)
        wanted = version_id or found.stages.get(stage or CURRENT, "")
        version = found.versions.get(wanted)
        if version is None or (stage and found.stages.get(stage) != wanted):
            label = version_id or f"staging label: {stage or CURRENT}"
            raise refused(
                "ResourceNotFoundException",
                f"Secrets Manager can't find the specified secret value for {label}",
            )
        return found, version

    def get(self, now_s: float, reference: str) -> Secret:
        """A secret that is not marked for deletion.

        Raises ResourceNotFoundException, InvalidRequestException.
        """
        found = self.described(now_s, reference)
        if found.deleted_at_s is not None:
            raise refused(
                "InvalidRequestException",
                "You can't perform this operation on the secret because it was marked for"
                " deletion.",
            )
        return found

    def described(self, now_s: float, reference: str) -> Secret:
        """The secret of a name, ARN or ARN without its last six characters.

        Raises ResourceNotFoundException.
        """
        self._forget_gone(now_s)
        for found in self._secrets.values():
            if reference in (found.name, found.arn, found.arn[: -_SUFFIX_CHARACTERS - 1]):
                return found
        raise not_found()

    def delete(self, now_s: float, reference: str, days: int, *, at_once: bool) -> Secret | None:
        """Mark a secret for deletion, or delete it; None: there is none to delete at once.

        Raises ResourceNotFoundException, InvalidRequestException.
        """
        if at_once:
            try:
                found = self.described(now_s, reference)
            except CloudError:
                return None
            self._drop(found)
            found.deleted_at_s = found.gone_at_s = now_s
            return found
        found = self.get(now_s, reference)
        found.deleted_at_s, found.gone_at_s = now_s, now_s + days * _DAY_S
        self._save(found)
        return found

    def keep(self, now_s: float, reference: str) -> Secret:
        """Take back a mark for deletion; nothing changes without one.

        Raises ResourceNotFoundException.
        """
        found = self.described(now_s, reference)
        found.deleted_at_s = found.gone_at_s = None
        self._save(found)
        return found

    def restore(self, name: str, value: Recorded) -> None:
        """Restore a recorded secret."""
        self._secrets[name] = Secret(
            name=name,
            arn=value["arn"],
            created_at_s=value["created_at_s"],
            changed_at_s=value["changed_at_s"],
            key=value["key"],
            description=value["description"],
            deleted_at_s=value["deleted_at_s"],
            gone_at_s=value["gone_at_s"],
            versions={
                number: SecretVersion(
                    id=number,
                    created_at_s=fields["created_at_s"],
                    text=fields["text"],
                    binary=fields["binary"],
                )
                for number, fields in value["versions"].items()
            },
            stages=dict(value["stages"]),
        )

    @property
    def _prefix(self) -> str:
        return f"arn:aws:secretsmanager:{self._account.region}:{self._account.id}:secret:"

    def _suffix(self) -> str:
        characters, stream = string.ascii_letters + string.digits, self._ids.stream("secret")
        bits = [stream.getrandbits(16) for _ in range(_SUFFIX_CHARACTERS)]
        return "".join(characters[bit % len(characters)] for bit in bits)

    def _forget_gone(self, now_s: float) -> None:
        for found in list(self._secrets.values()):
            if found.gone_at_s is not None and found.gone_at_s <= now_s:
                self._drop(found)

    def _drop(self, secret: Secret) -> None:
        del self._secrets[secret.name]
        self._recorder.drop(f"secret/{part(secret.name)}")

    def _save(self, secret: Secret) -> None:
        self._recorder.put(
            f"secret/{part(secret.name)}",
            {
                "arn": secret.arn,
                "created_at_s": secret.created_at_s,
                "changed_at_s": secret.changed_at_s,
                "key": secret.key,
                "description": secret.description,
                "deleted_at_s": secret.deleted_at_s,
                "gone_at_s": secret.gone_at_s,
                "versions": {
                    version.id: {
                        "created_at_s": version.created_at_s,
                        "text": version.text,
                        "binary": version.binary,
                    }
                    for version in secret.versions.values()
                },
                "stages": secret.stages,
            },
        )


def _add(secret: Secret, version: SecretVersion) -> None:
    """Make a version the current one; versions without a label are forgotten."""
    before = secret.stages.get(CURRENT)
    secret.versions[version.id] = version
    secret.stages[CURRENT] = version.id
    if before is not None:
        secret.stages[PREVIOUS] = before
    labelled = list(secret.stages.values())
    secret.versions = {id_: one for id_, one in secret.versions.items() if id_ in labelled}


def not_found() -> CloudError:
    message = "Secrets Manager can't find the specified secret."
    return refused("ResourceNotFoundException", message)
