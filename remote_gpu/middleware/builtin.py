"""`builtin`: our own data plane. The runner sets the session's variables."""

from __future__ import annotations

from gpu_scheduler.model import GrantedLease, Share
from remote_gpu.middleware.base import Middleware, ServerCommand, Summary
from remote_gpu.wire.variables import ClientRules


class Builtin(Middleware):
    """gpud's workers are the server."""

    name = "builtin"
    client = ClientRules()
    summary = Summary(programs="our client library", image="nothing", server="gpud itself")

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """None: `Session.environment()` makes them once the session is open."""
        del granted
        return {}

    def server_command(
        self, fence: int, shares: tuple[Share, ...], port: int
    ) -> ServerCommand | None:
        """None: gpud is the server."""
        del fence, shares, port
        return None


MIDDLEWARE = Builtin()
