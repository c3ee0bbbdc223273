"""The click command of a daemon: lost output ends it as it ends every other command."""

from __future__ import annotations

from typing import Any

import click

from corekit.aio.output import exiting_by_output


class DaemonCommand(click.Command):
    """A closed pipe ends it with 141, a full disk with 74 (docs/exit-codes.md)."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run as click does; the daemon continues when its log on standard error is lost."""
        with exiting_by_output(self.name or "", errors=False):
            return super().main(*args, **extra)


class DaemonGroup(DaemonCommand, click.Group):
    """The same for a daemon that has commands."""
