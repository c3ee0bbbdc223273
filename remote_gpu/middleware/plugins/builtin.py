"""`builtin`: our own data plane. The runner sets the session's variables."""

from __future__ import annotations

from gpu_scheduler.model import GrantedLease
from remote_gpu.middleware.base import Middleware, ServerCommand, ServerLease, Summary
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

    def server_command(self, lease: ServerLease) -> ServerCommand | None:
        """None: gpud is the server."""
        del lease
        return None


MIDDLEWARE = Builtin()
