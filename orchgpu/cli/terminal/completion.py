"""`orchgpu completion`: what a shell has to run so that Tab completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

#: Set by the shell's function when Tab is pressed; click answers it.
COMPLETE_VARIABLE = "_ORCHGPU_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Completion for bash, zsh or fish.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes Tab complete `orchgpu` in SHELL.

    \b
    Example:  orchgpu completion bash > ~/.local/share/bash-completion/completions/orchgpu
    """
    found = get_completion_class(shell)
    assert found is not None, f"click completes {shell}"
    root = context.find_root().command
    click.echo(found(root, {}, "orchgpu", COMPLETE_VARIABLE).source())
