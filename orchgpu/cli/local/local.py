"""`orchgpu up`, `down`, `status`: the local system's life."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TextIO

import click

from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from orchgpu.cli.terminal.screen import Word, json_option, say, say_json, say_table
from orchgpu.cli.terminal.table import Column
from orchgpu.local.examples import resident_data
from orchgpu.local.home import ProgramState, SystemRecord, default_home
from orchgpu.local.installed import check_installed
from orchgpu.local.programs import CLOUDS
from orchgpu.local.system import Launch, ailing, healthy, running_system, stop_system

#: How a program stopped, by whether it did in time.
_ENDS = {True: "stopped", False: "killed: it did not stop"}
_P = ParamSpec("_P")

START_ANEW = "`orchgpu down`, then `orchgpu up` starts the whole system again"

PROCESSES = (
    Column(name="PROCESS"),
    Column(name="PID", leaves=3),
    Column(name="HEALTH"),
    Column(name="RESTARTS", leaves=2),
    Column(name="ADDRESS", gives=2, least=12, keep="end", leaves=4),
    Column(name="LOG", gives=1, least=16, keep="end", leaves=1),
)

cloud_option = click.option(
    "--cloud",
    type=click.Choice(CLOUDS),
    default="embedded",
    show_default=True,
    help="What holds buckets and queues; functions run in the same sandbox either way.",
)


@click.command(short_help="Start the local system.")
@click.option("--detach", is_flag=True, help="Return once it serves; `orchgpu down` ends it.")
@cloud_option
@click.option(
    "--data",
    multiple=True,
    metavar="NAME=PATH",
    help="Data set that lies on every GPU host (repeatable).",
)
@click.option(
    "--middleware",
    multiple=True,
    metavar="NAME=PROGRAM",
    help="Remote-GPU software that every GPU host offers too (repeatable).",
)
@click.option(
    "--verify-signatures",
    is_flag=True,
    help="Refuse requests to the cloud that its own key pair did not sign.",
)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Host name besides localhost for clients and pages (repeatable).",
)
@json_option
def up(
    detach: bool,
    cloud: str,
    data: tuple[str, ...],
    middleware: tuple[str, ...],
    verify_signatures: bool,
    allow_host: tuple[str, ...],
    as_json: bool,
) -> int:
    """Start the local system: cloud, scheduler, two GPU hosts, orchestrator.

    Buckets, queues and functions stay in its folder over `down` and `up`, but for moto's, which
    keeps everything in memory. Ends with 8 when a system runs already and a program of it is dead.

    \b
    Example:  orchgpu up --detach
    """
    if verify_signatures and cloud != "embedded":
        raise invalid(f"--verify-signatures: {cloud} verifies none; use --cloud embedded")
    home = default_home()
    running = home.read_system()
    if running is not None:
        return _show_running(running, str(home.path), as_json=as_json)
    check_installed(cloud)
    resident = {**resident_data(), **_named_files("--data", data)}
    offered = _named_files("--middleware", middleware)
    launch = Launch(
        home,
        cloud=cloud,
        data=resident,
        middlewares=offered,
        allowed_hosts=allow_host,
        verify_signatures=verify_signatures,
        lifeline=not detach,
    )
    try:
        # what is shown ends no system: `orchgpu up | head -1` closes the pipe after a line
        system = await_up(launch, quiet=as_json, show=heard(show_event))
        if detach:
            launch.leave_running()
        heard(_show_system)(system, as_json=as_json)
        if detach:
            return 0
        heard(lambda: say("Ctrl-C stops it.", err=True))()
        for event in launch.events():
            heard(show_event)(event)
    finally:
        if not launch.left:
            stop_launch(launch, quiet=as_json)
    return 0


def _show_running(system: SystemRecord, home: str, *, as_json: bool) -> int:
    """A second `up`: what runs, and what of it does not run any more."""
    say(f"already running in {home}; `orchgpu down` stops it", err=True)
    _show_system(system, as_json=as_json)
    dead = ailing(system)
    for process in dead:
        say(f"orchgpu: {process.name} does not run; see {process.log}", err=True)
    if any(process.state == ProgramState.GIVEN_UP for process in dead):
        say(f"orchgpu: {START_ANEW}", err=True)
    return EXIT_STATUS[ErrorCode.UNAVAILABLE] if dead else 0


@click.command(short_help="Stop the local system.")
@json_option
def down(as_json: bool) -> None:
    """Stop the local system in order. What it stored stays in its folder, but for moto's.

    \b
    Example:  orchgpu down
    """
    home = default_home()
    system = home.read_system()
    stopped = stop_system(home)
    forgot = stopped and system is not None and system.cloud == "moto"
    if as_json:
        say_json({"stopped": stopped, "cloud_kept": not forgot})
        return
    if not stopped:
        say("nothing was running")
        return
    say(f"stopped; its state stays in {home.path}")
    if forgot:
        say("but for moto's buckets, queues and functions, which were in memory: deploy again")


@click.command(short_help="Processes and endpoints of the local system.")
@json_option
def status(as_json: bool) -> int:
    """Processes and endpoints of the local system; ends with 8 when one is not healthy.

    \b
    Example:  orchgpu status --json
    """
    system = running_system(default_home())
    processes = [
        {
            "name": process.name,
            "pid": process.pid,
            "healthy": healthy(process),
            "state": process.state,
            "restarts": process.restarts,
            "address": process.address,
            "log": process.log,
        }
        for process in system.processes
    ]
    if as_json:
        say_json({"cloud": system.cloud, "endpoints": endpoints_of(system), "processes": processes})
    else:
        rows = [
            (
                str(p["name"]),
                str(p["pid"]),
                _health(p),
                str(p["restarts"]),
                str(p["address"] or "-"),
                str(p["log"]),
            )
            for p in processes
        ]
        say_table(PROCESSES, rows, empty="no process")
        for name, address in endpoints_of(system).items():
            say(f"{name}: {address}")
    good = all(process["healthy"] for process in processes)
    return 0 if good else EXIT_STATUS[ErrorCode.UNAVAILABLE]


def _health(process: Mapping[str, Any]) -> str:
    if process["healthy"]:
        return "healthy"
    state = str(process["state"])
    return "unhealthy" if state == ProgramState.RUNNING else state.replace("_", " ")


def endpoints_of(system: SystemRecord) -> dict[str, str]:
    """Where to point clients."""
    return {
        "aws": system.endpoint,
        "scheduler": system.scheduler,
        "scheduler_http": f"http://{system.scheduler_http}",
    }


def heard(show: Callable[_P, None]) -> Callable[_P, None]:
    """`show`, for as long as somebody reads: what is written to a closed pipe is dropped."""

    def shown(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            show(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            for stream in (sys.stdout, sys.stderr):
                _drop_if_closed(stream)

    return shown


def _drop_if_closed(stream: TextIO) -> None:
    """What follows on a stream without a reader goes nowhere, without an error at each line."""
    poll = select.poll()
    poll.register(stream, select.POLLERR)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def await_up(
    launch: Launch, *, quiet: bool, show: Callable[[Mapping[str, Any]], None] | None = None
) -> SystemRecord:
    """Follow the start to its end. Raises what made it fail, after showing the log's tail."""
    from corekit.decode import decode

    for event in launch.events():
        if event["event"] == "up":
            return decode(SystemRecord, event["system"], "system")
        if event["event"] == "failed":
            raise told_failure(event)
        if not quiet:
            (show or show_event)(event)
    raise AppError.from_json({"code": "unavailable", "message": "the supervisor ended too early"})


def stop_launch(launch: Launch, *, quiet: bool) -> None:
    """Stop the system and show it happen; returns when the supervisor is gone.

    Raises UNAVAILABLE when it was gone before it could stop anything: the kernel did then.
    """
    launch.ask_to_stop()
    for event in launch.events():
        if not quiet:
            heard(show_event)(event)
    status = launch.wait()
    if status < 0:
        raise AppError(ErrorCode.UNAVAILABLE, f"the supervisor was killed by signal {-status}")


def told_failure(event: Mapping[str, Any]) -> AppError:
    """The supervisor's failure as ours; the dead program's last words go to standard error."""
    error = AppError.from_json(event)
    for line in error.details.get("log_tail", []):
        say(f"  | {line}", err=True)
    return error


def show_event(event: Mapping[str, Any]) -> None:
    """One line of progress on standard error."""
    match event["event"]:
        case "ready":
            where = f" on {event['address']}" if event.get("address") else ""
            say(f"{event['program']:<13} ready{where} ({event['took_s']:.1f} s)", err=True)
        case "stopped":
            how = Word("stopped" if event["in_time"] else "FAILED", shown=_ENDS[event["in_time"]])
            say(f"{event['program']:<13} ", how, err=True)
        case "died":
            say(f"orchgpu: {told_failure(event).message}", err=True)
        case "restarting":
            told = f"{event['program']} is started again in {event['in_s']:.1f} s"
            say(f"orchgpu: {told}", err=True)
        case "given_up":
            told = f"{event['program']} died {event['restarts'] + 1} times and is given up"
            say(f"orchgpu: {told}; see {event['log']}. {START_ANEW}", err=True)


def _show_system(system: SystemRecord, *, as_json: bool) -> None:
    if as_json:
        processes = [
            {"name": p.name, "pid": p.pid, "healthy": healthy(p)} for p in system.processes
        ]
        keys = {"access_key": system.access_key, "secret_key": system.secret_key}
        shown = {"credentials": keys} if system.access_key else {}
        about = {"cloud": system.cloud, "endpoints": endpoints_of(system)}
        say_json({**about, **shown, "processes": processes})
        return
    say(f"AWS endpoint  {system.endpoint}   (export AWS_ENDPOINT_URL={system.endpoint})")
    if system.access_key:
        keys_shown = f"AWS_ACCESS_KEY_ID={system.access_key}"
        say(f"key pair      export {keys_shown} AWS_SECRET_ACCESS_KEY={system.secret_key}")
    say(f"scheduler     {system.scheduler}, http://{system.scheduler_http}")


def _named_files(option: str, pairs: Iterable[str]) -> dict[str, Path]:
    found = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not (name and equals and path):
            raise invalid(f"{option} {pair!r} is not NAME=PATH")
        if not Path(path).is_file():
            raise invalid(f"{option} {name}: there is no file {path!r}")
        found[name] = Path(path).absolute()
    return found
