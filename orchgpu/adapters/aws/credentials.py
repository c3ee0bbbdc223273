"""Temporary credentials of functions' roles, from STS."""

from __future__ import annotations

from collections.abc import Mapping

from contract.aws.clients import Client
from orchgpu.adapters.aws.api import translated
from orchgpu.ports import Credentials

#: The longest that AWS gives a caller that has a role itself ("role chaining", IAM user guide).
DURATION_S = 3600
_NAME_CHARS_MAX = 64  #: of a session


class StsCredentials:
    """`FunctionCredentials` by AssumeRole; roles must trust the orchestrator's account."""

    def __init__(self, client: Client, variables: Mapping[str, str]) -> None:
        """`variables`: region and endpoints, as every program of this cloud has them."""
        self._client = client
        self._variables = variables

    async def issue(self, role: str, name: str) -> Credentials:
        with translated(f"sts:AssumeRole {role}"):
            answer = await self._client.assume_role(
                RoleArn=role, RoleSessionName=name[:_NAME_CHARS_MAX], DurationSeconds=DURATION_S
            )
            keys = answer["Credentials"]
            own = {
                "AWS_ACCESS_KEY_ID": keys["AccessKeyId"],
                "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"],
                "AWS_SESSION_TOKEN": keys["SessionToken"],
            }
            ends_s = keys["Expiration"].timestamp()
        return Credentials(variables={**self._variables, **own}, ends_s=ends_s)
