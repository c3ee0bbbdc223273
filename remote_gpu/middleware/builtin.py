"""`builtin`: our own data plane. The session's variables come from the runner, none from here."""

from __future__ import annotations

from gpu_scheduler.model import GrantedLease, Share
from remote_gpu.middleware.base import Middleware, ServerCommand


class Builtin(Middleware):
    """gpud's workers are the server."""

    name = "builtin"

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
