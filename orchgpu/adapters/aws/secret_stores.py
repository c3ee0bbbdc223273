"""Secrets Manager and SSM Parameter Store as the commands use them: no content is ever shown."""

from __future__ import annotations

from collections.abc import Callable

from contract.secrets.reference import Scheme, SecretReference
from contract.secrets.stores import description_of, key_of
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.adapters.aws.api import Client, Shape, answer_or_none

_SECURE = "SecureString"
_NEW = {"Type": _SECURE}
#: Fields of a parameter's description that its next version has too.
_KEPT = ("Type", "KeyId", "Tier")
#: Of a secret that is marked for deletion.
_DELETED = "DeletedDate"


class AwsSecretStores:
    """`SecretStores` by boto3 clients, made on first use."""

    def __init__(self, client: Callable[[str], Client]) -> None:
        self._client = client

    def exists(self, reference: SecretReference) -> bool:
        entry = self._described(reference)
        return entry is not None and _DELETED not in entry

    def put(self, reference: SecretReference, value: str) -> bool:
        if reference.key or reference.entry != reference.name:
            raise invalid(f"{reference}: a whole value is stored; name its entry alone")
        entry = self._described(reference)
        if reference.scheme is Scheme.PARAMETER_STORE:
            self._put_parameter(reference, value, entry)
        else:
            self._put_secret(reference.name, value, entry)
        return entry is None

    def _put_parameter(self, reference: SecretReference, value: str, entry: Shape | None) -> None:
        """A version without key and tier could get the defaults instead of the parameter's."""
        kept = {field: entry[field] for field in _KEPT if field in entry} if entry else _NEW
        if kept.get("Type") != _SECURE:
            kind = f"{reference} is a {kept.get('Type')}, which is stored in clear"
            raise invalid(f"{kind}: `orchgpu secret rm {reference}`, then store it again")
        self._client("ssm").put_parameter(Name=reference.name, Value=value, Overwrite=True, **kept)

    def _put_secret(self, name: str, value: str, entry: Shape | None) -> None:
        if entry is None:
            self._client("secretsmanager").create_secret(Name=name, SecretString=value)
            return
        if _DELETED in entry:
            self._client("secretsmanager").restore_secret(SecretId=name)
        self._client("secretsmanager").put_secret_value(SecretId=name, SecretString=value)

    def _described(self, reference: SecretReference) -> Shape | None:
        call = description_of(reference)
        answer = answer_or_none(getattr(self._client(call.service), call.method), **call.arguments)
        if answer is None or key_of(reference, answer) is None:
            return None
        described: Shape = answer
        if reference.scheme is Scheme.PARAMETER_STORE:
            described = answer["Parameters"][0]
        return described

    def remove(self, reference: SecretReference) -> None:
        name = reference.entry
        if not self.exists(reference):
            raise AppError(ErrorCode.NOT_FOUND, f"{reference} does not exist here")
        if reference.scheme is Scheme.PARAMETER_STORE:
            self._client("ssm").delete_parameter(Name=name)
        else:
            self._client("secretsmanager").delete_secret(SecretId=name)
