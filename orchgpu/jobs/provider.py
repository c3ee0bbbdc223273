"""The provider of the cloud that commands use, found by name."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager

from corekit.errors import AppError, invalid
from orchgpu.adapters import clouds
from orchgpu.cloud_services import Provider
from orchgpu.local.home import default_home
from orchgpu.local.programs import OWN
from orchgpu.ports import CloudPorts

PROVIDER_VARIABLE = "ORCHGPU_PROVIDER"
DEFAULT_PROVIDER = "aws"


def provider_name() -> str:
    """That of the variable, else of the local system that runs, else AWS.

    The embedded cloud and moto are AWS's provider at another address.
    """
    if named := os.environ.get(PROVIDER_VARIABLE):
        return named
    system = default_home().read_system()
    return OWN if system is not None and system.cloud == OWN else DEFAULT_PROVIDER


def provider() -> Provider:
    """The chosen provider; only its module is imported. Raises INVALID for an unknown name."""
    try:
        return clouds.provider(provider_name())
    except AppError as error:
        raise invalid(f"{PROVIDER_VARIABLE}: {error.message}") from None


def open_ports() -> AbstractAsyncContextManager[CloudPorts]:
    """The same cloud as the orchestrator uses it, for as long as the context lasts."""
    try:
        return clouds.open_cloud(provider_name())
    except AppError as error:
        raise invalid(f"{PROVIDER_VARIABLE}: {error.message}") from None
