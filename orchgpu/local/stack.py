"""The stack of `orchgpu infra` that a home keeps, so that commands find it without its name."""

from __future__ import annotations

from corekit.aio.files import replace_json
from corekit.decode import decode_json_known, encode
from corekit.errors import invalid
from corekit.values import Value
from orchgpu.local.home import Home

_FILE = "stack.json"


class StackRecord(Value):
    """Outputs of a stack."""

    name: str
    account: str
    region: str
    schedulers: str = ""  #: ADDR:PORT[,…] within its network
    subnets: tuple[str, ...] = ()  #: of functions
    function_group: str = ""  #: their security group
    secret: str = ""  #: name of the secret with the operator's key


def keep_stack(home: Home, stack: StackRecord) -> None:
    """Remember a stack, in place of the one before."""
    home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_json(home.path / _FILE, encode(stack))


def kept_stack(home: Home) -> StackRecord | None:
    """The stack that is remembered. Raises INVALID for a file that cannot be read."""
    try:
        content = (home.path / _FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise invalid(f"{home.path / _FILE} cannot be read: {error}") from error
    return decode_json_known(StackRecord, content, _FILE)[0]


def forget_stack(home: Home, name: str) -> None:
    """Forget the stack, if it is the one that is remembered."""
    kept = kept_stack(home)
    if kept is not None and kept.name == name:
        (home.path / _FILE).unlink(missing_ok=True)
