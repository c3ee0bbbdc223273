"""The provider of the cloud that commands use, found by name."""

from __future__ import annotations

import importlib
import os
import pkgutil
from typing import cast

from corekit.errors import invalid
from corekit.suggest import one_of_known
from orchgpu import adapters
from orchgpu.cloud_services import Provider

PROVIDER_VARIABLE = "ORCHGPU_PROVIDER"
DEFAULT_PROVIDER = "aws"


def provider() -> Provider:
    """The chosen provider; only its module is imported. Raises INVALID for an unknown name."""
    name = os.environ.get(PROVIDER_VARIABLE) or DEFAULT_PROVIDER
    known = [one.name for one in pkgutil.iter_modules(adapters.__path__) if one.ispkg]
    if name not in known:
        raise invalid(f"{PROVIDER_VARIABLE}={name!r} is unknown{one_of_known(name, known)}")
    return cast("Provider", importlib.import_module(f"{adapters.__name__}.{name}.commands"))
