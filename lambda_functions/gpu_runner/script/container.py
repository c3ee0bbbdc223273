"""A step in the container of a run on a host: its start, from the runner's side.

The runner has no right to start containers. It asks its host (`remote_gpu.wire.containers`): first
to have the image ready; then `contained` runs in place of a script.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed
from lambda_functions.gpu_runner.script import confined
from remote_gpu.wire.containers import MESSAGE_BYTES_MAX, decoded, encoded
from remote_gpu.wire.errors import WireError

_CONTAINED = Path(__file__).with_name("contained.py")

#: Download an object, (bucket, key), to a file.
Download = Callable[[str, str], Path]


def command(descriptor: int) -> list[str]:
    """The command that stands for the container, but for the descriptor of its variables."""
    return [sys.executable, "-I", "-S", str(_CONTAINED), str(descriptor)]


def use(descriptor: int) -> None:
    """Run the user's code in the container of the host's socket, from now on."""
    confined.COMMAND[:] = command(descriptor)
    confined.DESCRIPTORS[:] = [descriptor]


def descriptor() -> int:
    """The descriptor of the host's socket; -1 where the user's code has no container."""
    return confined.DESCRIPTORS[0] if confined.DESCRIPTORS else -1


def prepare(descriptor: int, limit_s: float, download: Download) -> None:
    """Have the host make the image ready, which may be a pull of minutes.

    Raises AttemptFailed(SCRIPT_ERROR) with the host's reason, also after `limit_s`.
    """
    given: list[int] = []
    try:
        with socket.socket(fileno=os.dup(descriptor)) as host:
            host.settimeout(max(0.1, limit_s))
            answer = _asked(host, given)
            if isinstance(needs := answer.get("needs"), dict):
                file = download(str(needs["bucket"]), str(needs["key"]))
                given.append(os.open(file, os.O_RDONLY | os.O_CLOEXEC))
                file.unlink()
                answer = _asked(host, given)
    except TimeoutError:
        _fail(f"it was not ready within {limit_s:.0f} s")
    except (OSError, WireError, KeyError) as error:
        _fail(f"its host does not answer: {error}")
    finally:
        for one in given:
            os.close(one)
    if answer:
        _fail(str(answer.get("error", answer)))


def _asked(host: socket.socket, given: list[int]) -> dict[str, object]:
    socket.send_fds(host, [encoded({"prepare": True})], given)
    return decoded(host.recv(MESSAGE_BYTES_MAX))


def _fail(why: str) -> NoReturn:
    raise AttemptFailed(Reason.SCRIPT_ERROR, f"the image of the function: {why}")
