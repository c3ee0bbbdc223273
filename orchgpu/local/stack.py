"""The stack of `orchgpu infra` that commands use: the one they name, else the one a home keeps."""

from __future__ import annotations

import os
from collections.abc import Mapping

from corekit.aio.files import replace_json
from corekit.decode import decode_json_known, encode
from corekit.errors import invalid
from corekit.values import Value, replace
from orchgpu.local.home import Home

#: Names the stack for a whole shell session, as `--stack` for one command; empty: none is used.
STACK_VARIABLE = "ORCHGPU_STACK"
_FILE = "stack.json"


class StackRecord(Value):
    """Outputs and parameters of a stack."""

    name: str
    account: str
    region: str
    schedulers: str = ""  #: ADDR:PORT[,…] within its network
    subnets: tuple[str, ...] = ()  #: of functions; none where functions are outside of a network
    function_group: str = ""  #: their security group
    secret: str = ""  #: name of the secret with the operator's key
    function_prefix: str = ""  #: the names that its roles reach begin so; "" = not known
    bucket_prefix: str = ""  #: the same of buckets
    secret_prefix: str = ""  #: the same of the secrets of functions
    access: str = ""  #: folder with the operator's key and the CA; "" = not fetched


def keep_stack(home: Home, stack: StackRecord) -> None:
    """Remember a stack, in place of the one before; of the same stack its folder of access stays.

    Raises INVALID for a kept file that cannot be read.
    """
    before = kept_stack(home)
    if not stack.access and before is not None and _same(before, stack):
        stack = replace(stack, access=before.access)
    home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_json(home.path / _FILE, encode(stack))


def _same(one: StackRecord, other: StackRecord) -> bool:
    return (one.name, one.account, one.region) == (other.name, other.account, other.region)


def kept_stack(home: Home) -> StackRecord | None:
    """The stack that is remembered. Raises INVALID for a file that cannot be read."""
    try:
        content = (home.path / _FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise invalid(f"{home.path / _FILE} cannot be read: {error}") from error
    return decode_json_known(StackRecord, content, _FILE)[0]


def stack_in_use(home: Home, environ: Mapping[str, str] = os.environ) -> StackRecord | None:
    """The stack that is remembered, unless `STACK_VARIABLE` names another one, or none."""
    kept = kept_stack(home)
    named = environ.get(STACK_VARIABLE)
    return kept if kept is not None and named in (None, kept.name) else None


def forget_stack(home: Home, name: str) -> None:
    """Forget the stack, if it is the one that is remembered."""
    kept = kept_stack(home)
    if kept is not None and kept.name == name:
        (home.path / _FILE).unlink(missing_ok=True)
