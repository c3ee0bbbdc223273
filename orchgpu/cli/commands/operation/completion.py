"""Completion for bash, zsh or fish."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from corekit.cli.screen import echo_raw

#: Set by the shell's function when Tab is pressed; read by click.
COMPLETE_VARIABLE = "_ORCHGPU_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script with which Tab completes `orchgpu` in SHELL.

    \b
    Example:  orchgpu completion bash > ~/.local/share/bash-completion/completions/orchgpu
    """
    found = get_completion_class(shell)
    assert found is not None, f"click completes {shell}"
    root = context.find_root().command
    echo_raw(found(root, {}, "orchgpu", COMPLETE_VARIABLE).source())
