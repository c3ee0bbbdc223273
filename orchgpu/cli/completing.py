"""Shell completion: ids of jobs with their states, names of functions, definition files.

Nothing is printed and every call has a short limit, because a person is typing: late answers are
not offered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from corekit.errors import AppError
from corekit.local_system import HOME_VARIABLE
from gpu_scheduler.model import Record
from orchgpu.cli.options import DEFINITIONS
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.records import newest_records
from orchgpu.jobs.scheduler import ask, scheduler_address
from orchgpu.local.home import default_home

T = TypeVar("T")

#: For each call of the scheduler or the cloud.
ANSWER_WITHIN_S = 1.0
#: The newest jobs that are searched, and those of them that are offered: more than this makes a
#: shell ask whether to show them all.
JOBS_MAX = 200
OFFERED_MAX = 20

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def jobs_in(wanted: Callable[[Record], bool]) -> Complete:
    """The newest jobs for which `wanted` is true, each with its state and function."""

    def complete(
        context: click.Context, _: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [
            CompletionItem(one.holder, help=_described(one))
            for one in _offered(context, lambda: _records(context))
            if one.holder.startswith(incomplete) and wanted(one)
        ][:OFFERED_MAX]

    return complete


def _described(record: Record) -> str:
    return f"{record.outcome or record.step.value} {record.block.get('function') or ''}".rstrip()


any_job = jobs_in(lambda _: True)
live_job = jobs_in(lambda record: record.outcome is None)
failed_job = jobs_in(lambda record: record.outcome in ("FAILED", "REJECTED"))


def function(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    names = _offered(context, _deployed)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def job_function_or_program(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    functions = function(context, parameter, incomplete)
    programs = sorted(file.stem for file in default_home().logs.glob("*.log"))
    found = [CompletionItem(name) for name in programs if name.startswith(incomplete)]
    return [*functions, *found, *any_job(context, parameter, incomplete)]


def function_or_definition(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    files = definition(context, parameter, incomplete)
    return [*files, *function(context, parameter, incomplete)]


def definition(_c: click.Context, _p: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """YAML files, and the folders on the way to them."""
    folder, begin = os.path.split(incomplete)
    try:
        entries = sorted(Path(folder or ".").iterdir())
    except OSError:
        return []
    shown = [one for one in entries if begin.startswith(".") or not one.name.startswith(".")]
    return [
        CompletionItem(os.path.join(folder, one.name) + ("/" if one.is_dir() else ""))  # noqa: PTH118  # as it was typed
        for one in shown
        if one.name.startswith(begin) and (one.is_dir() or one.suffix in DEFINITIONS)
    ]


def _offered(context: click.Context, look: Callable[[], Iterable[T]]) -> list[T]:
    home = context.find_root().params.get("home")
    if home is not None:  # the command itself would do so, but it does not run
        os.environ[HOME_VARIABLE] = str(Path(home).absolute())
    try:
        return list(look())
    except (AppError, OSError):
        return []


def _records(context: click.Context) -> list[Record]:
    address = scheduler_address(context.params.get("scheduler"))
    return ask(address, lambda one: newest_records(one, JOBS_MAX), within_s=ANSWER_WITHIN_S)


def _deployed() -> list[str]:
    with closing(JobCloud(within_s=ANSWER_WITHIN_S)) as cloud:
        return cloud.deployed()
