"""A live screen of fleet, queue and jobs."""

from __future__ import annotations

import importlib.util
import sys

import click

from corekit.cli.screen import output_glyphs
from corekit.cli.times import utc_option
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.cli.options import scheduler_http_option, scheduler_option
from orchgpu.jobs.scheduler import events_of, scheduler_address


@click.command("top")
@scheduler_option
@scheduler_http_option
@utc_option
def command(scheduler: str | None, scheduler_http: str | None) -> None:
    """A live screen: fleet, queue, jobs, and one job with its Gantt, its reason and its log.

    Needs a terminal, and the extra `orchgpu[top]`. Keys: 1 to 4 the views, / a filter, s the order,
    Enter a job, Esc back, d drain or undrain a device, c cancel and r retry a job (each asks
    before), ? all keys, q the end. It uses the terminal's own colours, and none with NO_COLOR.

    \b
    Example:  orchgpu top --scheduler 10.0.1.10:4700
    """
    check_installed()
    address = scheduler_address(scheduler)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise invalid("top needs a terminal; `orchgpu jobs --watch` writes lines to a pipe")
    # Textual is an extra, and slow to import
    from orchgpu.cli.top.app import TopApp

    app = TopApp(address, output_glyphs(), events_of(scheduler, scheduler_http))
    app.run()
    if app.failed is not None:
        raise app.failed


def check_installed() -> None:
    """Raise NOT_FOUND with the command that installs what the screen needs."""
    if importlib.util.find_spec("textual") is None:
        text = "top needs a package that is not installed (textual): pip install 'orchgpu[top]', or"
        text += " `make install` in a checkout of the sources, of which `make demo` installs a part"
        raise AppError(ErrorCode.NOT_FOUND, text, missing=["textual"], extra="top")
