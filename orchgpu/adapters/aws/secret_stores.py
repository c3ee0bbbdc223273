"""Secrets Manager and SSM Parameter Store as the commands use them: no content is ever shown."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from contract.secrets.reference import Scheme, SecretReference
from contract.secrets.stores import description_of, key_of
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.adapters.aws.api import Client, found
from orchgpu.adapters.aws.errors import translated


class AwsSecretStores:
    """`SecretStores` by boto3 clients, made on first use."""

    def __init__(self, client: Callable[[str], Client]) -> None:
        self._client = client

    def exists(self, reference: SecretReference) -> bool:
        """See `SecretStores`."""
        call = description_of(reference)
        describe = partial(getattr(self._client(call.service), call.method), **call.arguments)
        answer = found(f"{call.action} {reference.entry}", describe)
        return answer is not None and key_of(reference, answer) is not None

    def put(self, reference: SecretReference, value: str) -> bool:
        """See `SecretStores`."""
        if reference.key or reference.entry != reference.name:
            raise invalid(f"{reference}: a whole value is stored; name its entry alone")
        name, new = reference.name, not self.exists(reference)
        if reference.scheme is Scheme.PARAMETER_STORE:
            with translated(f"ssm:PutParameter {name}"):
                self._client("ssm").put_parameter(
                    Name=name,
                    Value=value,
                    Overwrite=True,
                    **({"Type": "SecureString"} if new else {}),
                )
        elif new:
            with translated(f"secretsmanager:CreateSecret {name}"):
                self._client("secretsmanager").create_secret(Name=name, SecretString=value)
        else:
            with translated(f"secretsmanager:PutSecretValue {name}"):
                self._client("secretsmanager").put_secret_value(SecretId=name, SecretString=value)
        return new

    def remove(self, reference: SecretReference) -> None:
        """See `SecretStores`."""
        name = reference.entry
        if not self.exists(reference):
            raise AppError(ErrorCode.NOT_FOUND, f"{reference} does not exist here")
        if reference.scheme is Scheme.PARAMETER_STORE:
            with translated(f"ssm:DeleteParameter {name}"):
                self._client("ssm").delete_parameter(Name=name)
        else:
            with translated(f"secretsmanager:DeleteSecret {name}"):
                self._client("secretsmanager").delete_secret(SecretId=name)
