"""The scheduler of a stack, as far as this machine has its key and reaches it."""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path

from corekit.errors import AppError, ErrorCode, invalid
from corekit.net.addresses import parse_addresses
from gpu_scheduler.client.access import CA_VARIABLE, KEY_FILE_VARIABLE, KEY_VARIABLE
from orchgpu.cloud_services import Address
from orchgpu.jobs.provider import provider
from orchgpu.local.home import default_home
from orchgpu.local.stack import STACK_VARIABLE, StackRecord, stack_in_use

#: Names of the files in the folder of `orchgpu infra outputs --access`.
KEY_FILE, CA_FILE = "operator.key", "ca.pem"
#: A machine of the network, or of a VPN to it, connects within this; elsewhere nothing answers.
REACHED_WITHIN_S = 0.5


def stack_scheduler(cloud: Address) -> str | None:
    """Addresses of the schedulers of the stack in use; None: no stack is in use.

    One that is named, and not the kept one, is looked up in this cloud.

    The key and the certificate of its authority are those of the environment, else those that
    `orchgpu infra outputs --access` wrote: they are in the environment of this process then.
    Raises UNAVAILABLE without them, and where no scheduler can be reached.
    """
    kept = stack_in_use(default_home())
    name = os.environ.get(STACK_VARIABLE) if kept is None else kept.name
    if not name:
        return None
    way = f"`orchgpu infra outputs --stack {name} --access DIR`"
    whose = f"the scheduler of the stack {name}"
    if not _use_access(kept):
        raise _unavailable(f"{whose} needs a key: {way} fetches it, and prints a way to it")
    addresses = (kept or _looked_up(name, cloud)).schedulers
    if not _reached(addresses):
        text = f"{whose} ({addresses}) cannot be reached from here, outside of its network"
        raise _unavailable(f"{text}: {way} prints a way to it")
    return addresses


def _use_access(stack: StackRecord | None) -> bool:
    """True when key and certificate are there; the stack's own are used unless others are set."""
    if stack is not None and stack.access:
        if not os.environ.get(KEY_VARIABLE):
            os.environ.setdefault(KEY_FILE_VARIABLE, str(Path(stack.access, KEY_FILE)))
        os.environ.setdefault(CA_VARIABLE, str(Path(stack.access, CA_FILE)))
    keys = (KEY_VARIABLE, KEY_FILE_VARIABLE)
    return bool(os.environ.get(CA_VARIABLE)) and any(os.environ.get(name) for name in keys)


@lru_cache
def _looked_up(name: str, cloud: Address) -> StackRecord:
    """The stack of that name, as its account has it now. Raises NOT_FOUND."""
    from orchgpu.infra.outputs import found_stack, record_of  # most commands need no CloudFormation

    with provider().deploy_cloud(cloud, Address()) as target:
        if target.stacks is None:
            raise invalid(f"this cloud has no stacks ({target.where})")
        return record_of(found_stack(target.stacks, name), target.cloud.place)


@lru_cache
def _reached(addresses: str) -> bool:
    """True when one of them takes a connection; tried once in a process."""
    for address in parse_addresses(addresses) if addresses else ():
        try:
            socket.create_connection(address, timeout=REACHED_WITHIN_S).close()
        except OSError:
            continue
        return True
    return False


def _unavailable(text: str) -> AppError:
    return AppError(ErrorCode.UNAVAILABLE, text)
