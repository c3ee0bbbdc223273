"""The customer's KMS keys by which stores encrypt the secrets of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from contract.secrets.reference import SecretReference
from contract.secrets.stores import description_of, key_of
from fdl.plan.resources import DeployTarget
from orchgpu.adapters.aws.api import Client, found


def secret_keys(
    references: Iterable[SecretReference], place: DeployTarget, client: Callable[[str], Client]
) -> dict[str, str]:
    """Reference → key, as its entry names it: by ARN, id or alias.

    Entries that do not exist yet are left out, with those of other regions and accounts, which do
    not show their keys.
    """
    keys = {}
    for reference in dict.fromkeys(references):
        if not reference.stored or not _here(reference, place):
            continue
        call = description_of(reference)
        method = partial(getattr(client(call.service), call.method), **call.arguments)
        answer = found(f"{call.operation} {reference.entry}", method)
        if answer is not None and (key := key_of(reference, answer)):
            keys[str(reference)] = key
    return keys


def _here(reference: SecretReference, place: DeployTarget) -> bool:
    parts = reference.entry.split(":")
    return parts[0] != "arn" or parts[3:5] == [place.region, place.account]
