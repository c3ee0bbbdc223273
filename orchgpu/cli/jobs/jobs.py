"""`orchgpu jobs` and `orchgpu gpus`: what the scheduler knows of jobs and devices."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from contract.states import JobState
from corekit.errors import EXIT_STATUS, AppError
from orchgpu.cli.scheduler import ask, scheduler_address, scheduler_option
from orchgpu.cli.terminal.completing import function as function_name
from orchgpu.cli.terminal.screen import folded, json_option, say, say_json, say_table
from orchgpu.cli.terminal.table import Column
from orchgpu.cli.terminal.text import printable
from orchgpu.cli.terminal.times import shown_time, utc_option

if TYPE_CHECKING:
    from gpu_scheduler.client import SchedulerClient
    from gpu_scheduler.model import Record
    from gpu_scheduler.protocol.answers import DeviceView, HostView


#: Waiting jobs whose reason is asked for; each costs the scheduler a look at every device.
EXPLAINED_MAX = 50


STATE = click.Choice([state.value for state in JobState], case_sensitive=False)
JOBS = (
    Column(name="JOB", ids=True, gives=2),
    Column(name="FUNCTION", gives=3, least=10, leaves=3),
    Column(name="STATE"),
    Column(name="REASON", gives=4, least=8, leaves=4),
    Column(name="ATTEMPT", leaves=1),
    Column(name="SINCE", leaves=5),
    Column(name="INPUT", gives=1, least=14, keep="end", leaves=2),
)
DEVICES = (
    Column(name="HOST", gives=3, least=8),
    Column(name="STATE"),
    Column(name="DEVICE", gives=4, least=6),
    Column(name="KIND", leaves=5),
    Column(name="MODEL", gives=2, least=14, leaves=6),
    Column(name="MEMORY FREE"),
    Column(name="COMPUTE FREE", leaves=4),
    Column(name="LEASES", leaves=3),
    Column(name="USE", leaves=2),
    Column(name="DETAIL", gives=1, least=16, leaves=1),
)


@click.command(short_help="Jobs with their states and reasons.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="At most so many jobs.",
)
@click.option(
    "--function",
    "functions",
    multiple=True,
    metavar="NAME",
    shell_complete=function_name,
    help="Only this function's (repeatable).",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=STATE,
    metavar="STATE",
    help="Only in this state, as WAITING or FAILED (repeatable).",
)
@click.option("--since", metavar="DURATION", help="Only changed since then, as in 90s or 2h.")
@scheduler_option
@utc_option
@json_option
def jobs(
    limit: int,
    functions: tuple[str, ...],
    states: tuple[str, ...],
    since: str | None,
    scheduler: str | None,
    as_json: bool,
) -> int:
    """Jobs with their states, newest first; of all that wait, for what and how long still.

    Of a device: the place in the queue, what is short, which leases are in the way and when those
    end. Of all else: the pause before the next attempt, a function that starts, a message that
    nobody has received. While the scheduler does not answer, those that ended are told by their
    results, and the command ends with 8.

    \b
    Example:  orchgpu jobs --json
    """
    from corekit.units import parse_duration_s

    since_s = 0.0 if since is None else time.time() - parse_duration_s(since)
    only = Only(frozenset(functions), frozenset(states), since_s)
    unheard: AppError | None = None
    try:
        found = ask(scheduler_address(scheduler), lambda client: _jobs(client, limit, only))
    except AppError as error:
        unheard, found = error, _ended(error, limit, only)
    found, queued = with_notes(found)
    queued = {name: count for name, count in queued.items() if not functions or name in functions}
    if as_json:
        failed = {} if unheard is None else {"error": unheard.as_json()}
        say_json({"jobs": found, "not_received": queued, **failed})
    else:
        _say_jobs(found, queued)
    if unheard is None:
        return 0
    told = "told are the jobs that ended, by their results"
    say(f"orchgpu: {unheard.message}; {told}", err=True)
    return EXIT_STATUS[unheard.code]


@dataclass(frozen=True, slots=True)
class Only:
    """Which jobs are shown; an empty set is all."""

    functions: frozenset[str]
    states: frozenset[str]
    since_s: float  #: wall clock

    def may_want(self, function: object, updated_s: float) -> bool:
        """Whatever its state is."""
        return (not self.functions or function in self.functions) and updated_s >= self.since_s

    def wants(self, record: Record) -> bool:
        """By all that was asked for."""
        state = record.outcome or record.step.value
        asked = not self.states or state in self.states
        return asked and self.may_want(record.block.get("function"), record.updated_s)


def _ended(unheard: AppError, limit: int, only: Only) -> list[dict[str, Any]]:
    """What the cloud holds of jobs; raises why the scheduler is not heard when that is nothing."""
    from contextlib import closing

    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.jobs.ended import UNHEARD, ended_jobs

    if unheard.code not in UNHEARD:
        raise unheard
    try:
        with closing(JobCloud()) as cloud:
            found = ended_jobs(cloud, limit, only)
    except AppError:
        raise unheard from None
    if not found:
        raise unheard
    return found


def _say_jobs(found: list[dict[str, Any]], queued: dict[str, int]) -> None:
    rows = [
        (
            entry["job_id"],
            entry["function"] or "-",
            entry["state"],
            entry["reason"],
            str(entry["attempt"]),
            shown_time(entry["updated_s"]),
            entry["input"] or "-",
        )
        for entry in found
    ]
    say_table(JOBS, rows, empty="no jobs in the last hour")
    _say_waits(found, queued)
    for function, note in {e["function"]: e["note"] for e in found if e["note"]}.items():
        say(f"{printable(function)}: {note}")


def _say_waits(found: list[dict[str, Any]], queued: dict[str, int]) -> None:
    from orchgpu.cli.jobs.waiting import in_lines

    for entry in found:
        if entry["why"]:
            say(folded(f"{entry['job_id']} waits: {in_lines(printable(entry['why']))}"))
    for function, count in queued.items():
        say(f"{function}: {count} more in its queue, not received yet")


def with_notes(found: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The jobs as `described`, each with `note`: what its function's record adds, else None.

    With them, by function, how many messages wait that nobody has received; none where the cloud
    cannot be asked: the scheduler's word stands by itself.
    """
    from contextlib import closing, suppress

    from orchgpu.cli.cloud import JobCloud

    images: dict[str, str | None] = {}
    counts: dict[str, int] = {}
    with closing(JobCloud()) as cloud, suppress(AppError):
        deployed = cloud.functions()
        if cloud.local:  # it runs the script of an image function outside the image
            images = {one.name: one.image for one in deployed}
        for one in deployed:
            counts[one.name] = cloud.not_received(one)
    noted = [{**entry, "note": _note(images.get(entry["function"]))} for entry in found]
    return noted, {name: count for name, count in counts.items() if count}


def _note(image: str | None) -> str | None:
    if image is None:
        return None
    return f"image {image} is not used here: the script runs on this machine's files"


async def _jobs(client: SchedulerClient, limit: int, only: Only) -> list[dict[str, Any]]:
    from corekit.decode import encode
    from gpu_scheduler.model import Step
    from orchgpu.cli.jobs.waiting import (
        in_the_way,
        newest_records,
        reason_of_wait,
        told_pause,
        told_waiting,
        waits,
    )

    records = await newest_records(client, limit, only.wants)
    waiting = [record for record in records if record.step is Step.WAITING][-EXPLAINED_MAX:]
    live = await client.live_leases() if waiting else None
    told: dict[str, dict[str, Any]] = {}
    for record in waiting:
        why = await waits(client, record)
        if why is not None and live is not None:
            others = in_the_way(why, live)
            told[record.holder] = {
                "reason": reason_of_wait(why).value,
                "why": told_waiting(why, others),
                "waits": encode(why),
                "in_the_way": encode(others),
            }
    now_s = time.time()
    return [
        {
            **described(r),
            "why": told_pause(r, now_s),
            "waits": None,
            "in_the_way": [],
            **told.get(r.holder, {}),
        }
        for r in records
    ]


def described(record: Record) -> dict[str, Any]:
    """A job record as JSON for people and programs: the block says what the job is about."""
    from gpu_scheduler.model import Step
    from orchgpu.cli.jobs.follow import reason_of

    block = record.block
    given = block.get("input")
    source = given if isinstance(given, dict) else {}
    waits = record.step is Step.WAITING and record.waiting_since_s is not None
    return {
        "job_id": record.holder,
        "function": block.get("function"),
        "input": f"{source['bucket']}/{source['key']}" if "key" in source else None,
        "state": record.outcome or record.step.value,
        "reason": reason_of(record),
        "attempt": record.attempt,
        "owner": record.owner,
        "lease": record.lease,
        "waiting_s": time.time() - (record.waiting_since_s or 0.0) if waits else None,
        "updated_s": record.updated_s,
        "times": dict(record.times),
    }


@click.command(short_help="Hosts and devices, and what is promised.")
@scheduler_option
@json_option
def gpus(scheduler: str | None, as_json: bool) -> None:
    """Hosts and devices: what they are, what is promised of them, what they do now.

    \b
    Example:  orchgpu gpus
    """
    from corekit.decode import encode

    inventory = ask(scheduler_address(scheduler), lambda client: client.inventory())
    hosts = sorted(inventory.hosts, key=lambda host: host.host)
    if as_json:
        say_json({"hosts": encode(hosts), "declared": encode(inventory.declared)})
        return
    rows = [_device_row(host, view) for host in hosts for view in host.devices]
    say_table(DEVICES, rows, empty="no host has registered")


def _device_row(host: HostView, view: DeviceView) -> tuple[str, ...]:
    device = view.device
    troubles = [
        *(["drained"] if view.drained else []),
        *([device.health.value] if device.health != "OK" else []),
    ]
    lost = host.state.value == "LOST"  # nobody knows what is free there, and nobody gets it
    used = "-" if lost or view.usage is None else f"{view.usage.utilisation_pct} %"
    return (
        host.host,
        host.state.value,
        str(device.index) + "".join(f" ({word})" for word in troubles),
        device.kind.value,
        device.model,
        f"{'-' if lost else view.memory_free_mib}/{device.memory_mib} MiB",
        "-" if lost else f"{view.compute_free_pct} %",
        str(len(view.leases)),
        used,
        device.detail,
    )
