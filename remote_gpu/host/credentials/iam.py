"""The presigned `GetCallerIdentity` request with which this host proves its IAM role.

botocore finds the credentials as every AWS SDK does (variables, files, container, the instance's
role) and renews those of a role. The request is never sent from here.
"""

from __future__ import annotations

import asyncio

import botocore.session
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.protocol.host import NONCE_HEADER, SERVER_HEADER

#: Seconds for which the request is valid: it is sent within one.
EXPIRES_S = 60
_QUERY = "Action=GetCallerIdentity&Version=2011-06-15"


class RoleProof:
    """Makes presigned requests with this machine's credentials."""

    def __init__(self, region: str | None = None, endpoint: str | None = None) -> None:
        """`endpoint`: of STS; None: the regional one. Raises INVALID without a region."""
        self._session = botocore.session.get_session()
        region = region or self._session.get_config_variable("region")
        if region is None:
            text = "--join-iam needs a region: set AWS_REGION or AWS_DEFAULT_REGION"
            raise AppError(ErrorCode.INVALID, text)
        self._region = region
        self._endpoint = endpoint or f"https://sts.{region}.{_suffix(region)}"

    async def url(self, server: str, nonce: str) -> str:
        """The presigned URL for a scheduler and its nonce. Raises UNAVAILABLE."""
        return await asyncio.to_thread(self._url, server, nonce)

    def _url(self, server: str, nonce: str) -> str:
        try:
            credentials = self._session.get_credentials()
            if credentials is None:
                text = (
                    "no AWS credentials were found on this machine; does its instance have a role?"
                )
                raise AppError(ErrorCode.UNAVAILABLE, text)
            frozen = credentials.get_frozen_credentials()
        except BotoCoreError as error:
            raise AppError(ErrorCode.UNAVAILABLE, f"AWS credentials: {error}") from None
        headers = {SERVER_HEADER: server, NONCE_HEADER: nonce}
        request = AWSRequest("GET", f"{self._endpoint}/?{_QUERY}", headers=headers)
        SigV4QueryAuth(frozen, "sts", self._region, expires=EXPIRES_S).add_auth(request)
        return str(request.url)


def _suffix(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
