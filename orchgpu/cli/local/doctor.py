"""`orchgpu doctor`: is everything there, does it answer, and does a job get through?"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corekit.addresses import parse_address
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.cli.scheduler import ask, scheduler_address, scheduler_option, scheduler_or_none
from orchgpu.cli.terminal.completing import function as function_name
from orchgpu.cli.terminal.screen import Word, counted, folded, json_option, say, say_json
from orchgpu.local.home import ProgramState, SystemRecord, default_home
from orchgpu.local.system import ailing

if TYPE_CHECKING:
    from gpu_scheduler.protocol.answers import HostView
    from orchgpu.cli.cloud import JobCloud

#: Ends `doctor` when something is wrong.
WRONG_STATUS = 1
#: S3 refuses requests that are 15 minutes off; timelines are of no use long before.
SKEW_S_MAX = 5.0
#: Of one gateway; a network that needs longer is of no use for computing.
DIAL_WITHIN_S = 3.0
#: A canary on an idle system takes seconds; a busy one may need `--timeout`.
CANARY_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check says."""

    check: str
    good: bool
    said: str

    @property
    def word(self) -> str:
        """For people."""
        return "ok" if self.good else "FAILED"


@click.command(short_help="Checks everything a job needs.")
@click.argument("names", nargs=-1, metavar="[FUNCTION]...", shell_complete=function_name)
@click.option(
    "--canary",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Send FILE through the one FUNCTION and wait for its result.",
)
@click.option("--timeout", metavar="DURATION", help="For the canary. [default: 2m]")
@scheduler_option
@json_option
def doctor(
    names: tuple[str, ...],
    canary: Path | None,
    timeout: str | None,
    scheduler: str | None,
    as_json: bool,
) -> int:
    """Check the cloud, its clock, the scheduler, its hosts, and what FUNCTIONs were deployed with.

    Without FUNCTION all are checked. Every check is made, whatever the others say; ends with 1 when
    one fails. The outputs of a canary stay, as those of any job.

    \b
    Example:  orchgpu doctor text-recognition --canary sign.png
    """
    from corekit.units import parse_duration_s
    from orchgpu.cli.cloud import JobCloud

    if canary is not None and len(names) != 1:
        raise invalid("--canary needs exactly one FUNCTION")
    within_s = CANARY_WITHIN_S if timeout is None else parse_duration_s(timeout)
    findings: list[Finding] = []
    with closing(JobCloud()) as cloud:
        for finding in _checks(cloud, names, canary, within_s, scheduler):
            findings.append(finding)
            if not as_json:
                word = Word("healthy" if finding.good else "FAILED", 7, finding.word)
                said = folded(f"{finding.word:<7} {finding.check}: {finding.said}")
                say(word, said[word.width :])
    good = all(finding.good for finding in findings)
    if as_json:
        say_json({"good": good, "findings": [asdict(finding) for finding in findings]})
    return 0 if good else WRONG_STATUS


def _checks(
    cloud: JobCloud,
    names: tuple[str, ...],
    canary: Path | None,
    within_s: float,
    scheduler: str | None,
) -> Iterator[Finding]:
    deployed: list[str] = []
    system = default_home().read_system()
    if system is not None:
        yield checked("local system", lambda: told_processes(system))
    answers = checked("cloud", lambda: _cloud(cloud, deployed))
    yield answers
    yield checked("clock", lambda: told_skew(cloud.identity()[1]))
    hosts: list[HostView] = []
    yield checked("scheduler", lambda: _scheduler(scheduler, hosts))
    if hosts:
        yield checked("gateways", lambda: told_gateways(hosts, near=cloud.local))
    for name in (names or deployed) if answers.good else ():
        yield checked(f"function {name}", partial(_deployed, cloud, name))
    if canary is not None and answers.good:
        address = scheduler_or_none(scheduler)
        yield checked("canary", lambda: _sing(cloud, names[0], canary, within_s, address))


def checked(check: str, look: Callable[[], str]) -> Finding:
    """What `look` says is good; what it raises is not."""
    try:
        return Finding(check=check, good=True, said=look())
    except AppError as error:
        return Finding(check=check, good=False, said=error.message)


def told_processes(system: SystemRecord) -> str:
    """Raises UNAVAILABLE naming what is down, and whether its supervisor starts it again."""
    from orchgpu.cli.local.local import START_ANEW

    dead = ailing(system)
    if dead:
        told = ", ".join(
            f"{process.name} ({process.state}, {process.restarts} restarts; log: {process.log})"
            for process in dead
        )
        lost = any(process.state == ProgramState.GIVEN_UP for process in dead)
        message = f"not running: {told}" + (f"; {START_ANEW}" if lost else "")
        raise AppError(ErrorCode.UNAVAILABLE, message)
    again = [f"{p.name} {p.restarts}" for p in system.processes if p.restarts]
    restarts = f"; restarts since it is up: {', '.join(again)}" if again else ""
    return f"its {len(system.processes)} programs run{restarts}"


def _cloud(cloud: JobCloud, deployed: list[str]) -> str:
    deployed += cloud.deployed()
    known_as, _ = cloud.identity()
    return f"it answers {known_as}; deployed: {', '.join(deployed) or 'nothing'}"


def told_skew(ahead_s: float | None) -> str:
    """Raises INVALID for clocks so far apart that requests or timelines suffer."""
    if ahead_s is None:
        return "not known: the cloud does not say its time"
    if abs(ahead_s) > SKEW_S_MAX:
        way = "behind" if ahead_s > 0 else "ahead of"
        raise invalid(f"this machine is {abs(ahead_s):.0f} s {way} the cloud; set its clock")
    return f"within {SKEW_S_MAX:g} s of the cloud's"


def told_gateways(hosts: Sequence[HostView], *, near: bool) -> str:
    """How many hosts that are up let a connection in; devices are used through nothing else.

    Raises UNAVAILABLE for those that do not, if functions run as near to them as we do.
    """
    doors = {host.host: host.gateway for host in hosts if host.state.value == "UP" and host.gateway}
    closed = [f"{name} ({gateway})" for name, gateway in doors.items() if not _open(gateway)]
    said = f"{len(doors) - len(closed)} of {len(doors)} can be reached"
    if not near:
        return f"{said} from here; functions reach them from their own network"
    if closed:
        message = f"{said}; not: {', '.join(closed)}"
        raise AppError(ErrorCode.UNAVAILABLE, message)
    return said


def _open(gateway: str) -> bool:
    try:
        with socket.create_connection(parse_address(gateway), timeout=DIAL_WITHIN_S):
            return True
    except (OSError, AppError):
        return False


def _scheduler(given: str | None, hosts: list[HostView]) -> str:
    address = scheduler_address(given)
    inventory = ask(address, lambda client: client.inventory())
    hosts += inventory.hosts
    up = [host for host in inventory.hosts if host.state.value == "UP"]
    devices = [view.device for host in up for view in host.devices]
    sound = [device for device in devices if device.health.value == "OK"]
    said = f"{len(up)} of {len(inventory.hosts)} hosts up, {len(sound)} of {len(devices)} devices"
    if not sound:
        raise invalid(f"{address} answers, but no job can be served: {said} sound")
    return f"{address} answers: {said} sound"


def _deployed(cloud: JobCloud, name: str) -> str:
    from orchgpu.cli.objects.direct import plain

    alone = plain(cloud, name)
    function = cloud.function(name) if alone is None else None
    missing = cloud.missing(name)
    if missing:
        names = ", ".join(missing)
        raise invalid(f"gone since it was deployed: {names}; `orchgpu deploy` makes them again")
    if function is None:
        places = " and ".join(alone.places if alone else ()) or "nothing"
        return f"all it was deployed with is there; objects in {places} start it"
    dead = cloud.messages(function.dead_letter_url)
    waiting = cloud.messages(function.queue_url)
    letters = f", {counted(dead, 'dead letter')} (`orchgpu dlq ls {function.name}`)" if dead else ""
    return f"all it was deployed with is there; {counted(waiting, 'message')}{letters}"


def _sing(cloud: JobCloud, name: str, file: Path, within_s: float, address: str | None) -> str:
    from orchgpu.cli.jobs.follow import follow
    from orchgpu.cli.jobs.report import say_nothing, timeline

    submitted = cloud.submit(cloud.function(name), file, now_s=time.time())
    (job,) = asyncio.run(follow(cloud, address, [submitted], say_nothing, within_s=within_s))
    if not job.succeeded:
        detail = job.result.detail if job.result is not None else job.sentence
        raise invalid(f"{job.job_id} {job.state} {job.reason}: {detail}")
    took_s = timeline(job)["RLat"]
    return f"{job.job_id} SUCCEEDED" + ("" if took_s is None else f" in {took_s:.1f} s")
