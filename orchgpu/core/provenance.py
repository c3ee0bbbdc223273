"""The part of a result's provenance that the orchestrator knows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from contract.parameters import PREFIX, parameters_in
from contract.provenance import RELEASE
from contract.record import JsonObject
from corekit.clear_secrets import looks_secret
from gpu_scheduler.model import GrantedLease
from orchgpu.core.function import Function
from orchgpu.core.routing import InputEvent

HIDDEN = "***"  #: the value of a parameter that looks like a secret


def provenance_of(
    function: Function,
    source: InputEvent,
    granted: GrantedLease | None,
    etag: str = "",
    metadata: Mapping[str, str] = MappingProxyType({}),
    place: str = "",
) -> JsonObject:
    """The function, its parameters, the input and the devices.

    `etag`: of the input as read; `metadata`: of it, with the parameters of a run among it.
    """
    shares = granted.lease.shares if granted is not None else ()
    return {
        "function": _known(
            {
                "name": function.name,
                "revision": function.revision,
                "package_sha256": function.package_sha256,
                "image": function.image,
                "place": place if function.host is not None else None,
            }
        ),
        "input": _known(
            {
                "bucket": source.bucket,
                "key": source.key,
                "version": source.version_id,
                "etag": etag or source.etag,
                "size": source.size,
            }
        ),
        "tenant": function.request.tenant,
        "parameters": parameters_of({**function.variables, **_set(metadata)}),
        "devices": [
            _known(
                {
                    "host": share.host,
                    "kind": share.kind.value,
                    "model": share.model,
                    "driver": share.driver,
                }
            )
            for share in shares
        ],
        "versions": {"orchgpu": RELEASE},
    }


def _set(metadata: Mapping[str, str]) -> dict[str, str]:
    """The variables of the parameters; of an entry that is not valid the function reports it."""
    try:
        return {f"{PREFIX}{name}": value for name, value in parameters_in(metadata).items()}
    except ValueError:
        return {}


def parameters_of(variables: Mapping[str, str]) -> dict[str, str]:
    """The user's variables, without values that look like secrets."""
    return {
        name: HIDDEN if looks_secret(name, value) else value for name, value in variables.items()
    }


def _known(values: JsonObject) -> JsonObject:
    return {name: value for name, value in values.items() if value not in (None, "")}
