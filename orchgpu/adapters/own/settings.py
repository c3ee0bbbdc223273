"""The addresses of a cloud of own hosts: variables, or the local system that runs."""

from __future__ import annotations

import os
from collections.abc import Mapping

from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import DeployTarget
from orchgpu.adapters.aws.endpoints import LOCAL_ACCOUNT, LOCAL_REGION, ClientSettings, resolve
from orchgpu.cloud_services import Address
from orchgpu.local.home import default_home

#: The database of queues and bucket rules: `postgresql://[USER@]HOST[:PORT]/DATABASE[?OPTION=…]`.
QUEUES_VARIABLE = "ORCHGPU_QUEUES"
#: `ADDR:PORT` where the orchestrator receives the store's webhook; not set: it listens nowhere.
EVENTS_VARIABLE = "ORCHGPU_STORE_EVENTS"
#: The file with the token that the store's webhook must send.
TOKEN_VARIABLE = "ORCHGPU_STORE_EVENTS_TOKEN_FILE"  # noqa: S105 - a file's name


def queues_address(environ: Mapping[str, str] = os.environ) -> str:
    """The address of the database of queues. Raises UNAVAILABLE when none is known."""
    if environ.get(QUEUES_VARIABLE):
        return environ[QUEUES_VARIABLE]
    system = default_home().read_system()
    if system is not None and system.queues:
        return system.queues
    raise AppError(
        ErrorCode.UNAVAILABLE,
        f"no database of queues is configured: set {QUEUES_VARIABLE} to"
        " postgresql://[USER@]HOST[:PORT]/DATABASE, or start a local system with"
        " `orchgpu up --cloud own`",
    )


#: The way out of every refusal of what only Lambda has.
USE_HOSTS = (
    "write `execution: host` and `gpu:` (a device has a host), or `service: URL` of Knative or"
    " OpenFaaS, and deploy again"
)
#: Other rules decide.
ANYWHERE = Address()


def store_settings(address: Address = ANYWHERE) -> ClientSettings:
    """The settings of the store's client: `AWS_ENDPOINT_URL_S3` and keys, as every S3 client has
    them. Raises UNAVAILABLE when they lead to AWS."""
    found = resolve(
        "s3",
        endpoint_url=address.endpoint_url,
        region=address.region,
        profile=address.profile,
    )
    if not found.local:
        raise AppError(
            ErrorCode.UNAVAILABLE,
            "cloud `own`: no store is configured: set AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY, or start a local system with `orchgpu up --cloud own`",
        )
    return found


def place_of(settings: ClientSettings) -> DeployTarget:
    """A store has no accounts: its state bucket has the account of local clouds in its name."""
    region = settings.region or LOCAL_REGION
    return DeployTarget(account=LOCAL_ACCOUNT, region=region, local=True, by_services=True)
