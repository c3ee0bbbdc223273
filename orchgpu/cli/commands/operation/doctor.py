"""Check everything that a job needs."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import click

from contract.secrets.reference import SecretReference, parse_reference
from corekit.cli.screen import Coloured, counted, echo, echo_json, folded, json_option
from corekit.decode import encode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.net.addresses import parse_address
from corekit.units import parse_duration_s
from corekit.values import Value
from fdl.plan.secrets import deployed_secrets
from gpu_scheduler.client.access import find_access
from gpu_scheduler.client.status import (
    SchedulerRole,
    SchedulerStatus,
    SystemStatus,
    system_status,
)
from gpu_scheduler.model import Health, HostState
from gpu_scheduler.protocol.answers import HostView
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.definition.target import open_target
from orchgpu.cli.inspecting import inspect
from orchgpu.cli.jobs.report import echo_nothing, relative_times
from orchgpu.cli.local.launching import START_AGAIN, has_weather
from orchgpu.cli.options import scheduler_option
from orchgpu.cloud_services import Address, SecretStores
from orchgpu.core.function import Function
from orchgpu.core.runs.workflow import Workflow
from orchgpu.inspection.model import Finding, Verdict
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.following import follow
from orchgpu.jobs.scheduler import ANSWER_WITHIN_S, ask, scheduler_address, scheduler_or_none
from orchgpu.local.home import ProgramState, SystemRecord, default_home
from orchgpu.local.system import health, unhealthy

#: Ends `doctor` when something is wrong.
WRONG_STATUS = 1
#: S3 refuses requests that are 15 minutes off; timelines are misleading long before.
SKEW_S_MAX = 5.0
#: A standby reads its leader's log several times a second.
LAG_S_MAX = 3.0
#: The limit for one gateway; a slower network is too slow for computing.
DIAL_WITHIN_S = 3.0
#: A canary on an idle system takes seconds; a busy one may need `--timeout`.
CANARY_WITHIN_S = 120.0


class CheckResult(Value):
    """The outcome of one check."""

    check: str
    good: bool
    message: str
    verdict: str = (
        ""  #: of checks of AWS: good, warning, unknown or wrong; only the last ends with 1
    )
    where: str = ""  #: the resource, for checks of AWS
    remedy: str = ""  #: the command or change that helps


@click.command("doctor")
@click.argument("names", nargs=-1, metavar="[FUNCTION]...", shell_complete=function_name)
@click.option(
    "--canary",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Send FILE through the one FUNCTION and wait for its result.",
)
@click.option(
    "--timeout", metavar="DURATION", help="Limit of the canary, as in 90s or 5m. [default: 2m]"
)
@click.option(
    "--aws",
    "definition",
    is_flag=False,
    flag_value="",
    metavar="[FILE]",
    help="Also check the account: policies, concurrency, buckets, secrets, targets of notices,"
    " networks, runtimes; with FILE for its functions, before they are deployed.",
)
@click.option(
    "--orchestrator-role", metavar="NAME", default="", help="Role of orchestrators, for --aws."
)
@scheduler_option
@json_option
def command(
    names: tuple[str, ...],
    canary: Path | None,
    timeout: str | None,
    definition: str | None,
    orchestrator_role: str,
    scheduler: str | None,
    as_json: bool,
) -> int:
    """Check the cloud, its clock, the scheduler, its hosts, and the resources of FUNCTIONs.

    Without FUNCTION all functions are checked. Every check runs, even after a failed one; the
    command ends with 1 when one fails. The outputs of a canary stay, like those of any job.

    --aws changes nothing in the account. Where a call is not allowed, the check is unknown, and
    names the action; warnings and unknown checks do not end the command with 1.

    \b
    Example:  orchgpu doctor text-recognition --canary sign.png
              orchgpu doctor --aws fdl.yaml --orchestrator-role orchgpu-orchestrator
    """
    if canary is not None and len(names) != 1:
        raise invalid("--canary needs exactly one FUNCTION")
    within_s = CANARY_WITHIN_S if timeout is None else parse_duration_s(timeout)
    findings: list[CheckResult] = []
    with closing(JobCloud()) as cloud:
        hosts: list[HostView] = []
        found = _checks(cloud, () if definition else names, canary, within_s, scheduler, hosts)
        if definition is not None:
            file = Path(definition) if definition else None
            # `hosts` is filled by the check of the scheduler, before the first of these
            inspected = inspect(cloud, file, names, hosts, orchestrator_role)
            found = chain(found, _of_account(inspected))
        for finding in found:
            findings.append(finding)
            if not as_json:
                _echo(finding)
    good = all(finding.good for finding in findings)
    if as_json:
        echo_json({"good": good, "findings": [encode(finding) for finding in findings]})
    return 0 if good else WRONG_STATUS


def _of_account(inspected: Iterable[tuple[str, Finding]]) -> Iterator[CheckResult]:
    try:
        for title, found in inspected:
            yield CheckResult(
                check=title,
                good=found.verdict is not Verdict.WRONG,
                message=found.message,
                verdict=found.verdict.value,
                where=found.where,
                remedy=found.remedy,
            )
    except AppError as error:
        yield CheckResult(check="account", good=False, message=error.message)


#: Words of verdicts for people, with their colours.
_WORDS = {"warning": ("warning", "waiting"), "unknown": ("unknown", "unknown")}


def _echo(finding: CheckResult) -> None:
    usual = ("ok", "healthy") if finding.good else ("FAILED", "FAILED")
    word, colour = _WORDS.get(finding.verdict, usual)
    where = f" {finding.where}:" if finding.where else ""
    remedy = f" → {finding.remedy}" if finding.remedy else ""
    text = folded(f"{word:<7} {finding.check}:{where} {finding.message}{remedy}")
    echo(Coloured(colour, 7, word), text[7:])


def _checks(
    cloud: JobCloud,
    names: tuple[str, ...],
    canary: Path | None,
    within_s: float,
    scheduler: str | None,
    hosts: list[HostView],
) -> Iterator[CheckResult]:
    deployed: list[str] = []
    system = default_home().read_system()
    if system is not None:
        yield checked("local system", lambda: check_processes(system))
        if has_weather(system):
            yield checked("weather", lambda: check_weather(system))
    answers = checked("cloud", lambda: _cloud(cloud, deployed))
    yield answers
    yield checked("clock", lambda: check_clock(cloud.identity()[1]))
    yield checked("scheduler", lambda: _scheduler(scheduler, hosts))
    if "," in (scheduler_or_none(scheduler) or ""):
        yield checked("standbys", lambda: _standbys(scheduler))
    if hosts:
        yield checked("gateways", lambda: check_gateways(hosts, near=cloud.local))
    for name in (names or deployed) if answers.good else ():
        yield checked(f"function {name}", partial(_deployed, cloud, name))
    if canary is not None and answers.good:
        address = scheduler_or_none(scheduler)
        yield checked("canary", lambda: _canary(cloud, names[0], canary, within_s, address))


def checked(check: str, look: Callable[[], str]) -> CheckResult:
    """A good finding with the text that `look` returns, or a bad one with its error."""
    try:
        return CheckResult(check=check, good=True, message=look())
    except AppError as error:
        return CheckResult(check=check, good=False, message=error.message)


def check_weather(system: SystemRecord) -> str:
    """The weather of the embedded cloud, and how often each rule took effect."""
    try:
        with closing(HTTPConnection(urlsplit(system.endpoint).netloc, timeout=10)) as connection:
            connection.request("GET", "/_local_cloud/weather")
            found = json.load(connection.getresponse())
            counts, late = found["counts"], found.get("late_rules", ())
    except (OSError, ValueError, KeyError) as error:
        raise AppError(ErrorCode.UNAVAILABLE, f"the cloud shows no weather: {error}") from error
    shown = ", ".join(f"{rule}: {count}" for rule, count in counts.items())
    waiting = f"; notification rules not in force yet: {', '.join(late)}" if late else ""
    return f"{system.weather}; {shown or 'no rule took effect yet'}{waiting}"


def check_processes(system: SystemRecord) -> str:
    """Check the programs. Raises UNAVAILABLE with the dead ones and the restarts of each."""
    dead = unhealthy(system)
    if dead:
        named = ", ".join(
            f"{process.name} ({health(process, good=False)}, "
            f"{counted(process.restarts, 'restart')}; log: {process.log})"
            for process in dead
        )
        lost = any(process.state == ProgramState.GIVEN_UP for process in dead)
        message = f"not healthy: {named}" + (f"; {START_AGAIN}" if lost else "")
        raise AppError(ErrorCode.UNAVAILABLE, message)
    again = [f"{p.name} {p.restarts}" for p in system.processes if p.restarts]
    restarts = f"; restarts since the start: {', '.join(again)}" if again else ""
    return f"its {len(system.processes)} programs run{restarts}"


def _cloud(cloud: JobCloud, deployed: list[str]) -> str:
    deployed += cloud.deployed()
    return (
        f"it answers; caller: {cloud.identity()[0].name}; "
        f"deployed: {', '.join(deployed) or 'nothing'}"
    )


def check_clock(ahead_s: float | None) -> str:
    """Compare the clocks. Raises INVALID when requests or timelines suffer from the difference."""
    if ahead_s is None:
        return "not known: the cloud does not report its time"
    if abs(ahead_s) > SKEW_S_MAX:
        way = "behind" if ahead_s > 0 else "ahead of"
        raise invalid(f"this machine is {abs(ahead_s):.0f} s {way} the cloud; set its clock")
    return f"within {SKEW_S_MAX:g} s of the cloud's"


def check_gateways(hosts: Sequence[HostView], *, near: bool) -> str:
    """The number of hosts that accept a connection, of those that are up.

    Raises UNAVAILABLE for the others, if functions run in the same network as this machine.
    """
    gateways = {
        host.host: host.gateway for host in hosts if host.state is HostState.UP and host.gateway
    }
    closed = [f"{name} ({gateway})" for name, gateway in gateways.items() if not _open(gateway)]
    summary = f"{len(gateways) - len(closed)} of {len(gateways)} can be reached"
    if not near:
        return f"{summary} from here; functions reach them from their own network"
    if closed:
        message = f"{summary}; not: {', '.join(closed)}"
        raise AppError(ErrorCode.UNAVAILABLE, message)
    return summary


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
    up = [host for host in inventory.hosts if host.state is HostState.UP]
    devices = [view.device for host in up for view in host.devices]
    sound = [device for device in devices if device.health is Health.OK]
    summary = (
        f"{len(up)} of {len(inventory.hosts)} hosts up, {len(sound)} of {len(devices)} devices"
    )
    if not sound:
        raise invalid(f"{address} answers, but no job can be served: {summary} sound")
    return f"{address} answers: {summary} sound"


def _standbys(given: str | None) -> str:
    status = asyncio.run(system_status(scheduler_address(given), find_access(), ANSWER_WITHIN_S))
    return check_standbys(status)


def check_standbys(status: SystemStatus) -> str:
    """Check that one scheduler leads and the others follow it closely. Raises UNAVAILABLE."""
    words, wrong = [], []
    for one in status.schedulers:
        words.append(_standing(one))
        behind = one.role is SchedulerRole.STANDBY and (one.lag_s or 0.0) > LAG_S_MAX
        if behind or one.role is SchedulerRole.UNKNOWN:
            wrong.append(one.address)
    summary = "; ".join(words)
    if status.leader is None:
        raise AppError(ErrorCode.UNAVAILABLE, f"none of them leads: {summary}")
    if wrong:
        raise AppError(ErrorCode.UNAVAILABLE, f"{', '.join(wrong)} could not take over: {summary}")
    return summary


def _standing(one: SchedulerStatus) -> str:
    match one.role:
        case SchedulerRole.LEADER:
            return f"{one.address} leads (epoch {one.epoch})"
        case SchedulerRole.STANDBY:
            return f"{one.address} stands by, {one.lag_s:.1f} s behind"
        case _:
            return f"{one.address}: {one.problem}"


def _workflow(cloud: JobCloud, workflow: Workflow) -> str:
    """The state of a workflow. Raises INVALID when something of it is gone."""
    served = cloud.served()
    gone = [f"function/{step.name}" for step in workflow.steps if step.name not in served]
    if missing := [*cloud.services.missing(workflow.name), *gone]:
        names = ", ".join(missing)
        raise invalid(f"gone since it was deployed: {names}; `orchgpu deploy` creates them again")
    dead = cloud.messages(workflow.dead_letter_url)
    letters = f", {counted(dead, 'dead letter')}" if dead else ""
    live = counted(cloud.messages(workflow.queue_url), "message")
    return f"all its resources and {counted(len(workflow.steps), 'step')} exist; {live}{letters}"


def _deployed(cloud: JobCloud, name: str) -> str:
    workflow = cloud.workflow(name)
    if workflow is not None:
        return _workflow(cloud, workflow)
    missing = cloud.services.missing(name)
    if missing:
        names = ", ".join(missing)
        raise invalid(f"gone since it was deployed: {names}; `orchgpu deploy` creates them again")
    ledger = cloud.ledger(name)
    if ledger is not None and ledger.visits:
        return "all its resources exist; an orchestrator without a server"
    direct = cloud.direct(name)
    function = cloud.function(name) if direct is None else None
    held = _secrets(cloud, name, function)
    either = function or direct
    dead = 0 if either is None else cloud.letters(either)
    letters = f", {counted(dead, 'dead letter')} (`orchgpu dlq ls {name}`)" if dead else ""
    if function is None:
        places = " and ".join(direct.places if direct else ()) or "nothing"
        return f"all its resources exist{held}; no jobs: objects in {places} start it{letters}"
    waiting = cloud.messages(function.queue_url)
    return f"all its resources exist{held}; {counted(waiting, 'message')}{letters}"


def _secrets(cloud: JobCloud, name: str, function: Function | None) -> str:
    if function is not None and function.host is not None:
        variables = function.host.process
    else:
        variables = cloud.services.function_settings(name).variables
    secrets = deployed_secrets(variables)
    if not secrets:
        return ""
    with open_target(Address()) as target:
        problems = list(secret_problems(secrets, target.secrets))
    if problems:
        raise invalid("; ".join(problems))
    return f", with {counted(len(secrets), 'secret')}"


def secret_problems(secrets: Mapping[str, str], stores: SecretStores | None) -> Iterator[str]:
    """A sentence for each variable whose secret does not exist; `secrets`: variable → reference.

    What may not be looked at counts as there. Raises UNAVAILABLE.
    """
    for name, text in secrets.items():
        try:
            reference = parse_reference(text)
        except ValueError as error:
            yield f"secret {name}: {error}"
            continue
        if problem := _secret_problem(reference, stores):
            yield f"secret {name} ({reference}) {problem}"


def _secret_problem(reference: SecretReference, stores: SecretStores | None) -> str:
    if not reference.stored:
        return _file_problem(Path(reference.name))
    if stores is None:
        return ""
    try:
        known = stores.exists(reference)
    except AppError as error:
        if error.code is ErrorCode.DENIED:
            return ""
        raise
    store = f"{reference.scheme.value}:{reference.entry}"
    return "" if known else f"does not exist here; `orchgpu secret put {store}` stores it"


def _file_problem(path: Path) -> str:
    if not path.is_file():
        return "does not exist, or is not a file" if not path.is_dir() else "is a folder"
    return "" if os.access(path, os.R_OK) else "may not be read by this user"


def _canary(cloud: JobCloud, name: str, file: Path, within_s: float, address: str | None) -> str:
    submitted = cloud.submit(cloud.function(name), file, now_s=time.time())
    (job,) = asyncio.run(follow(cloud, address, [submitted], echo_nothing, within_s=within_s))
    if not job.succeeded:
        detail = job.result.detail if job.result is not None else job.sentence
        raise invalid(f"{job.job_id} {job.state} {job.reason}: {detail}")
    took_s = relative_times(job)["RLat"]
    return f"{job.job_id} SUCCEEDED" + ("" if took_s is None else f" in {took_s:.1f} s")
