"""Checks that secrets of a function can be found; no content is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from contract.secrets.reference import SecretReference, parse_reference
from corekit.errors import AppError, ErrorCode
from orchgpu.cloud_services import SecretStores


def secret_problems(secrets: Mapping[str, str], stores: SecretStores | None) -> Iterator[str]:
    """A sentence for each variable whose secret does not exist; `secrets`: variable → reference.

    What may not be looked at counts as there. Raises UNAVAILABLE.
    """
    for name, text in secrets.items():
        try:
            reference = parse_reference(text)
        except ValueError as error:
            yield f"secret {name}: {error}"
            continue
        if problem := _problem(reference, stores):
            yield f"secret {name} ({reference}) {problem}"


def _problem(reference: SecretReference, stores: SecretStores | None) -> str:
    if not reference.stored:
        return file_problem(Path(reference.name))
    if stores is None:
        return ""
    try:
        known = stores.exists(reference)
    except AppError as error:
        if error.code is ErrorCode.DENIED:
            return ""
        raise
    store = f"{reference.scheme.value}:{reference.entry}"
    return "" if known else f"does not exist here; `orchgpu secret put {store}` stores it"


def file_problem(path: Path) -> str:
    """The reason for which a file cannot be read; "" = it can."""
    if not path.is_file():
        return "does not exist, or is not a file" if not path.is_dir() else "is a folder"
    return "" if os.access(path, os.R_OK) else "may not be read by this user"
