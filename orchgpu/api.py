"""The public names for clouds of other packages (`orchgpu.clouds`); CONTRIBUTING has the recipe.

Other modules of this package may move; these names stay. `aws_commands` and `aws_clients` are the
two modules of the cloud AWS, for a cloud that speaks its protocols at an address of its own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from orchgpu.cloud_services import Address, CloudServices, DeployCloud, Provider, Setting
from orchgpu.ports import CloudPorts, JobQueue, Message, ObjectStore

if TYPE_CHECKING:
    from orchgpu.adapters.aws import clients as aws_clients
    from orchgpu.adapters.aws import commands as aws_commands

__all__ = [
    "Address",
    "CloudPorts",
    "CloudServices",
    "DeployCloud",
    "JobQueue",
    "Message",
    "ObjectStore",
    "Provider",
    "Setting",
    "aws_clients",
    "aws_commands",
]


def __getattr__(name: str) -> object:
    """The modules of AWS on first use: commands must not wait for the orchestrator's clients."""
    if name in ("aws_clients", "aws_commands"):
        return importlib.import_module(f"orchgpu.adapters.aws.{name.removeprefix('aws_')}")
    raise AttributeError(f"module 'orchgpu.api' has no attribute {name!r}")
