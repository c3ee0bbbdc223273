"""AWS by boto3's clients and by `orchgpu`'s commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from botocore.exceptions import BotoCoreError, ClientError

from corekit.errors import AppError
from orchgpu.adapters.aws.api import Client
from orchgpu.adapters.aws.endpoints import boto3_client, boto3_session, resolve

#: A call or command that did not work.
FAILURES = (AppError, BotoCoreError, ClientError, RuntimeError)


class Clients:
    """boto3's clients, found by the rules of `orchgpu`."""

    def __init__(self) -> None:
        self._session = boto3_session(resolve("sts"))
        self._made: dict[str, Client] = {}

    def __getitem__(self, service: str) -> Client:
        if service not in self._made:
            found = resolve(service)
            self._made[service] = boto3_client(service, found, session=self._session)
        return self._made[service]

    def close(self) -> None:
        for client in self._made.values():
            client.close()

    def has_bucket(self, name: str) -> bool:
        """Raises ClientError for a bucket of another account."""
        try:
            self["s3"].head_bucket(Bucket=name)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                return False
            raise
        return True

    def has_object(self, bucket: str, key: str) -> bool:
        try:
            self["s3"].head_object(Bucket=bucket, Key=key)
        except ClientError:
            return False
        return True

    def buckets(self, prefix: str) -> list[str]:
        found = self["s3"].list_buckets()["Buckets"]
        return [bucket["Name"] for bucket in found if bucket["Name"].startswith(prefix)]


def orchgpu(*arguments: str) -> Iterator[str]:
    """The lines that a command prints. Raises RuntimeError when it fails."""
    command = [sys.executable, "-m", "orchgpu", *arguments]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield from process.stdout
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise RuntimeError(f"orchgpu {arguments[0]} ended with {process.returncode}")


def say(line: str) -> None:
    """Print one line at once."""
    print(line, flush=True)
