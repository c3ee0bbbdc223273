"""`ssgm` commands of an operator: which hosts lend, and by which rules."""

from __future__ import annotations

import click

from gpu_scheduler.client.options import Line, connected


@click.command(epilog="Example: ssgm drain gpu-a")
@click.argument("host")
@connected
def drain(line: Line, host: str) -> None:
    """No new leases on HOST; those that live go on."""
    line.ask(lambda client: client.drain(host))
    line.show({"drained": host}, lambda: f"{host} is drained: no new leases there")


@click.command(epilog="Example: ssgm undrain gpu-a")
@click.argument("host")
@connected
def undrain(line: Line, host: str) -> None:
    """New leases on HOST again."""
    line.ask(lambda client: client.undrain(host))
    line.show({"undrained": host}, lambda: f"{host} takes leases again")


@click.command(epilog="Example: ssgm forget gpu-old")
@click.argument("host")
@connected
def forget(line: Line, host: str) -> None:
    """HOST is gone for good: its devices leave the inventory, its leases end.

    Refused (exit 4) while the host is heard. Requests that only it could serve are impossible
    from then on, and their waiters are told.
    """
    line.ask(lambda client: client.forget(host))
    line.show({"forgotten": host}, lambda: f"{host} is forgotten")


COMMANDS = (drain, undrain, forget)
