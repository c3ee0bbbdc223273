"""The runner on the host of its device: `python -m lambda_functions.gpu_runner.on_host`.

    {"event": "…", "environment": {…}, "confine": […], "request": "…", "function": "f",
     "memory_mib": 512, "ends_at_s": 1234.5, "container": 5, "warm": 6, "calls": 7}

It reads this order on its standard input, makes the environment that Lambda would make, and calls
the same `handler.handle`. `ends_at_s` is on this machine's monotonic clock; `container`, for a
function that is an image's command, is the descriptor of the host's socket (`script.container`);
`calls`, for an endpoint, that of the socket which brings its callers (`script.endpoint`).

`warm` is the descriptor of a socket to a host that keeps this process for the next job. After an
event whose code succeeded and stays (`script.resident`), the runner sends {"idle": {"loading_s":
1.5}} there, a line, and gets the next order, {"event", "request", "ends_at_s"}, or the end.
Exit statuses: 0, the handler returned; 1, it raised; 2, the order is not one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from typing import IO, Any

from lambda_functions.gpu_runner.script import confined, container, endpoint
from lambda_functions.gpu_runner.script.resident import KEPT

_RAISED, _NO_ORDER = 1, 2


class HostContext:
    """The part of Lambda's context object that the runner uses."""

    def __init__(self, request: str, ends_at_s: float) -> None:
        self.aws_request_id = request
        self._ends_at_s = ends_at_s

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the host ends the run."""
        return max(0, int((self._ends_at_s - time.monotonic()) * 1000))


def main() -> int:
    """Run one event, and further ones for a host that keeps this process; returns the exit status
    of the last."""
    try:
        order = json.load(sys.stdin)
        event, context = _event_of(order)
        os.environ.update(order["environment"])
        confined.COMMAND[:] = order["confine"]
        if "container" in order:
            container.use(int(order["container"]))
        if "calls" in order:
            endpoint.use(int(order["calls"]))
        host = _socket_of(int(order["warm"])) if "warm" in order else None
        os.environ["AWS_LAMBDA_FUNCTION_NAME"] = str(order["function"])
        os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] = str(order["memory_mib"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        sys.stderr.write(f"not the order of a run: {error!r}\n")
        return _NO_ORDER
    if host is None:
        return _run(event, context)
    with host, host.makefile("rb") as orders:
        return _run_several(event, context, host, orders)


def _socket_of(descriptor: int) -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=descriptor)


def _event_of(order: Mapping[str, Any]) -> tuple[object, HostContext]:
    """Raises ValueError, KeyError, TypeError."""
    context = HostContext(str(order["request"]), float(order["ends_at_s"]))
    return json.loads(order["event"]), context


def _run_several(
    event: object, context: HostContext, host: socket.socket, orders: IO[bytes]
) -> int:
    host.set_inheritable(False)
    KEPT.wanted = True
    status = _run(event, context)
    while status == 0 and (resident := KEPT.idle) is not None:
        with contextlib.suppress(OSError):  # a host that is gone sends no order
            idle = {"idle": {"loading_s": resident.loading_s}}
            host.sendall(json.dumps(idle).encode("ascii") + b"\n")
        if not (line := orders.readline()):
            break
        event, context = _event_of(json.loads(line))
        status = _run(event, context)
    return status


def _run(event: object, context: HostContext) -> int:
    began_s = time.monotonic()
    _log_like_lambda(context.aws_request_id)
    _say(f"START RequestId: {context.aws_request_id} Version: $HOST")
    status = _handled(event, context)
    ran_ms = (time.monotonic() - began_s) * 1000
    _say(f"END RequestId: {context.aws_request_id}")
    _say(f"REPORT RequestId: {context.aws_request_id}\tDuration: {ran_ms:.2f} ms")
    return status


def _handled(event: object, context: HostContext) -> int:
    try:
        # now: its settings are those of the environment at its import
        from lambda_functions.gpu_runner import handler

        handler.handle(event, context)
    except Exception:
        _say(traceback.format_exc().rstrip())
        return _RAISED
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _log_like_lambda(request: str) -> None:
    """Lines as Lambda's runtime writes them: level, time, request, message."""
    form = f"[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t{request}\t%(message)s"
    handler = logging.StreamHandler(sys.stdout)
    formatter = logging.Formatter(form, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], force=True)


if __name__ == "__main__":
    sys.exit(main())
