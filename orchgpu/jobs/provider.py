"""The provider of the cloud that commands use, found by name."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager

from corekit.errors import AppError, invalid
from orchgpu.adapters import clouds
from orchgpu.cloud_services import Provider
from orchgpu.ports import CloudPorts

PROVIDER_VARIABLE = "ORCHGPU_PROVIDER"
DEFAULT_PROVIDER = "aws"


def provider() -> Provider:
    """The chosen provider; only its module is imported. Raises INVALID for an unknown name."""
    try:
        return clouds.provider(os.environ.get(PROVIDER_VARIABLE) or DEFAULT_PROVIDER)
    except AppError as error:
        raise invalid(f"{PROVIDER_VARIABLE}: {error.message}") from None


def open_ports() -> AbstractAsyncContextManager[CloudPorts]:
    """The same cloud as the orchestrator uses it, for as long as the context lasts."""
    try:
        return clouds.open_cloud(os.environ.get(PROVIDER_VARIABLE) or DEFAULT_PROVIDER)
    except AppError as error:
        raise invalid(f"{PROVIDER_VARIABLE}: {error.message}") from None
