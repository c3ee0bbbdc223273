"""Runs at fixed times: those of `schedule:` in definitions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import click

from corekit.cli.groups import CommandGroup
from corekit.cli.screen import echo, echo_json, echo_table
from corekit.cli.table import Column
from corekit.cli.times import shown_time, utc_option
from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from corekit.suggest import did_you_mean
from orchgpu.cli.definition.target import open_target
from orchgpu.cli.options import cloud_options
from orchgpu.cloud_services import Address, DeployCloud
from orchgpu.deploy.ports import ScheduleState
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.schedules import last_run, next_run_s, run_now

_TABLE = (
    Column(name="SCHEDULE", shrink_order=2, width_min=16),
    Column(name="TIMES", shrink_order=1, width_min=12, drop_order=2),
    Column(name="ZONE", drop_order=4),
    Column(name="NEXT RUN"),
    Column(name="LAST RUN", drop_order=1),
    Column(name="JOB", drop_order=3),
)
_consent = click.option("--yes-real-aws", is_flag=True, help="Change something on real AWS.")


@click.group("schedule", cls=CommandGroup)
def command() -> None:
    """Functions that run at fixed times (`schedule:` of a definition).

    \b
    Example:  orchgpu schedule ls
    """


@command.command("ls", short_help="List schedules.")
@cloud_options
@utc_option
def ls(address: Address, as_json: bool) -> None:
    """Schedules with their next run, and the newest run with its job.

    \b
    Example:  orchgpu schedule ls --json
    """
    now_s = time.time()
    with open_target(address) as target, _jobs(address) as cloud:
        found = [
            (one, next_run_s(one, now_s), last_run(cloud, one, now_s))
            for one in target.cloud.schedules()
        ]
    if as_json:
        listed = [
            {
                "name": one.schedule.name,
                "function": one.function,
                "cron": one.schedule.cron,
                "timezone": one.schedule.timezone,
                "paused": one.paused,
                "next_s": next_s,
                "last": None if last is None else encode(last),
            }
            for one, next_s, last in found
        ]
        echo_json({"schedules": listed})
        return
    rows = [
        (
            one.schedule.name,
            one.schedule.cron,
            one.schedule.timezone,
            "paused" if next_s is None else shown_time(next_s),
            "-" if last is None else shown_time(last.at_s),
            "-" if last is None else f"{last.job} {last.state}".rstrip(),
        )
        for one, next_s, last in found
    ]
    echo_table(_TABLE, rows, empty="no schedules")


@command.command("run", short_help="Put the object of a run now.")
@click.argument("name")
@cloud_options
@_consent
def run(name: str, address: Address, as_json: bool, yes_real_aws: bool) -> None:
    """Put the object of schedule NAME now, also while it is paused.

    \b
    Example:  orchgpu schedule run report-nightly
    """
    with open_target(address) as target, _jobs(address) as cloud:
        target.guard(yes_real_aws)
        made = run_now(cloud, _found(target, name), time.time())
    if as_json:
        echo_json({"name": name, "bucket": made.bucket, "key": made.key, "job": made.job})
    else:
        echo(f"{made.job}  {made.bucket}/{made.key}")


def _set(name: str, address: Address, *, paused: bool, as_json: bool, real: bool) -> None:
    with open_target(address) as target:
        target.guard(real)
        target.cloud.pause_schedule(_found(target, name).schedule.name, paused=paused)
    if as_json:
        echo_json({"name": name, "paused": paused})
    else:
        echo(f"{name}: {'paused' if paused else 'resumed'}")


@command.command("pause", short_help="Begin no runs.")
@click.argument("name")
@cloud_options
@_consent
def pause(name: str, address: Address, as_json: bool, yes_real_aws: bool) -> None:
    """Pause schedule NAME; a deploy leaves it paused.

    \b
    Example:  orchgpu schedule pause report-nightly
    """
    _set(name, address, paused=True, as_json=as_json, real=yes_real_aws)


@command.command("resume", short_help="Begin runs again.")
@click.argument("name")
@cloud_options
@_consent
def resume(name: str, address: Address, as_json: bool, yes_real_aws: bool) -> None:
    """Resume schedule NAME at its next time; what it missed is not made up for.

    \b
    Example:  orchgpu schedule resume report-nightly
    """
    _set(name, address, paused=False, as_json=as_json, real=yes_real_aws)


@contextmanager
def _jobs(address: Address) -> Iterator[JobCloud]:
    with closing(JobCloud(address.endpoint_url, address.region, address.profile)) as cloud:
        yield cloud


def _found(target: DeployCloud, name: str) -> ScheduleState:
    listed = {one.schedule.name: one for one in target.cloud.schedules()}
    if name not in listed:
        message = f"no schedule {name!r} is deployed{did_you_mean(name, listed)}"
        raise AppError(ErrorCode.NOT_FOUND, f"{message}; `orchgpu schedule ls` lists them")
    return listed[name]
