"""`orchgpu.infra.machine.ports.MachineCloud` by boto3 and the instance metadata."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping, Sequence

import boto3

from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws.api import AwsClient
from orchgpu.infra.machine.model import Identity, Interface
from orchgpu.ports import Tolerating
from remote_gpu.host.departure.metadata import InstanceMetadata, endpoint_of

_ANSWER_S = 5.0
#: The primary network interface has index 0.
_INDEX = 1
_MAC = "network/interfaces/macs"


class AwsMachine:
    """The account by this machine's role."""

    def __init__(self, region: str) -> None:
        self._region = region

    def _client(self, service: str) -> AwsClient:
        return AwsClient(boto3.client(service, region_name=self._region))

    def identity(self) -> Identity:
        return asyncio.run(_identity())

    def interfaces(self, ids: Sequence[str]) -> Sequence[Interface]:
        answer = self._client("ec2").describe_network_interfaces(NetworkInterfaceIds=list(ids))
        return [
            Interface(
                id=str(one["NetworkInterfaceId"]),
                address=str(one["PrivateIpAddress"]),
                subnet=str(one["SubnetId"]),
                instance=str(one.get("Attachment", {}).get("InstanceId", "")),
            )
            for one in answer["NetworkInterfaces"]
        ]

    def attach(self, interface: str, instance: str) -> None:
        try:
            self._client("ec2").attach_network_interface(
                NetworkInterfaceId=interface, InstanceId=instance, DeviceIndex=_INDEX
            )
        except AppError as error:
            if "InvalidNetworkInterface.InUse" not in error.message:
                raise
            raise AppError(ErrorCode.CONFLICT, error.message) from error

    def read_secret(self, name: str) -> str | None:
        with Tolerating(ErrorCode.NOT_FOUND):  # it has no value yet
            return str(
                self._client("secretsmanager").get_secret_value(SecretId=name)["SecretString"]
            )
        return None

    def fill_secret(self, name: str, content: str) -> None:
        # equal tokens make one version: a second one with another content is refused
        token = str(uuid.uuid5(uuid.NAMESPACE_URL, f"orchgpu:{name}"))
        client = self._client("secretsmanager")
        try:
            client.put_secret_value(SecretId=name, SecretString=content, ClientRequestToken=token)
        except AppError as error:
            if "ResourceExistsException" not in error.message:
                raise

    def read_object(self, bucket: str, key: str) -> bytes:
        body: bytes = self._client("s3").body(Bucket=bucket, Key=key)[0]
        return body

    def put_object(self, bucket: str, key: str, body: bytes) -> None:
        self._client("s3").put_object(Bucket=bucket, Key=key, Body=body)

    def group_of(self, instance: str) -> str:
        answer = self._client("autoscaling").describe_auto_scaling_instances(InstanceIds=[instance])
        found = answer["AutoScalingInstances"]
        return str(found[0]["AutoScalingGroupName"]) if found else ""

    def signal(self, stack: str, resource: str, instance: str, *, success: bool) -> None:
        self._client("cloudformation").signal_resource(
            StackName=stack,
            LogicalResourceId=resource,
            UniqueId=instance,
            Status="SUCCESS" if success else "FAILURE",
        )


async def _identity() -> Identity:
    async with InstanceMetadata(endpoint_of(os.environ), _ANSWER_S) as metadata:

        async def item(path: str) -> str:
            return await metadata.item(path) or ""

        return Identity(
            instance=await item("instance-id"),
            subnet=await item(f"{_MAC}/{await item('mac')}/subnet-id"),
            private=await item("local-ipv4"),
            public=await item("public-ipv4"),
        )


def sts_endpoint(region: str, environment: Mapping[str, str]) -> str:
    """The endpoint that hosts of the region sign their requests for."""
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return environment.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.{suffix}"
