"""The start and the stop of a local system, as its commands show them."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Mapping

import click

from corekit.aio.output import ignoring_closed_pipe
from corekit.cli.progress import Bar
from corekit.cli.screen import Coloured, echo, echo_json
from corekit.decode import decode
from corekit.errors import AppError, ErrorCode, invalid
from local_cloud.model.weather import parse_weather
from orchgpu.local.home import SystemRecord
from orchgpu.local.programs import CLOUDS
from orchgpu.local.system import Launch, healthy

#: Reports of a program's end; True: it stopped in time.
_ENDS = {True: "stopped", False: "killed: it did not stop"}

#: The weather of `up` and `demo` without --weather.
WEATHER_VARIABLE = "ORCHGPU_WEATHER"

START_AGAIN = "`orchgpu down`, then `orchgpu up` starts the whole system again"

cloud_option = click.option(
    "--cloud",
    type=click.Choice(CLOUDS),
    default="embedded",
    show_default=True,
    help="The program with buckets and queues, and a sandbox of functions; own: SeaweedFS and"
    " PostgreSQL, and functions run on the hosts (docs/how-to/without-aws.md).",
)


def _seeded(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if parse_weather(text).empty:
        return ""
    if parse_weather(text).seed:
        return text
    return f"{text}{',' if ':' in text else ':'}seed={secrets.randbelow(10**6)}"


weather_option = click.option(
    "--weather",
    default="none",
    show_default=True,
    envvar=WEATHER_VARIABLE,
    metavar="NAME[:FIELD=VALUE,…]",
    callback=_seeded,
    help="Delays and refusals of the embedded cloud: none, aws, or as in aws:scale=0.02,seed=7.",
)


def check_weather(cloud: str, weather: str, *, quiet: bool) -> None:
    """Show the weather of the start. Raises INVALID: only the embedded cloud has one."""
    if weather and cloud != "embedded":
        raise invalid(f"--weather: {cloud} has none; use --cloud embedded")
    if weather and not quiet:
        echo(f"weather       {parse_weather(weather)}   (--weather {weather} repeats it)", err=True)


def await_up(
    launch: Launch, *, quiet: bool, show: Callable[[Mapping[str, object]], None] | None = None
) -> SystemRecord:
    """Follow the start to its end. Raises the failure of a program, after its last lines."""
    for event in launch.events():
        if event["event"] == "up":
            return decode(SystemRecord, event["system"], "system")
        if event["event"] == "failed":
            raise launch_failure(event)
        if not quiet:
            (show or show_event)(event)
    raise AppError.from_json({"code": "unavailable", "message": "the supervisor ended too early"})


def stop_launch(launch: Launch, *, quiet: bool) -> None:
    """Stop the system and show its events; returns when the supervisor has ended.

    Raises UNAVAILABLE when the supervisor was killed first: the kernel ended the programs then.
    """
    launch.ask_to_stop()
    for event in launch.events():
        if not quiet:
            ignoring_closed_pipe(show_event)(event)
    status = launch.wait()
    # our own SIGTERM ends a supervisor that is past its end already, as after a failed start
    if status < 0 and status != -signal.SIGTERM:
        raise AppError(ErrorCode.UNAVAILABLE, f"the supervisor was killed by signal {-status}")


def launch_failure(event: Mapping[str, object]) -> AppError:
    """The supervisor's failure; the last lines of the dead program go to standard error."""
    error = AppError.from_json(event)
    for line in error.details.get("log_tail", []):
        echo(f"  | {line}", err=True)
    return error


def show_event(event: Mapping[str, object]) -> None:
    program = f"{event.get('program')!s:<13}"
    match event:
        case {"event": "ready", "took_s": float() | int() as took_s}:
            where = f" on {event['address']}" if event.get("address") else ""
            echo(f"{program} ready{where} ({took_s:.1f} s)", err=True)
        case {"event": "stopped", "in_time": bool(in_time)}:
            how = Coloured("stopped" if in_time else "FAILED", shown=_ENDS[in_time])
            echo(f"{program} ", how, err=True)
        case {"event": "died"}:
            echo(f"orchgpu: {launch_failure(event).message}", err=True)
        case {"event": "restarting", "in_s": float() | int() as in_s}:
            echo(f"orchgpu: {event['program']} is restarted in {in_s:.1f} s", err=True)
        case {"event": "given_up", "restarts": int(restarts)}:
            died = f"{event['program']} died {restarts + 1} times and is given up"
            echo(f"orchgpu: {died}; see {event['log']}. {START_AGAIN}", err=True)


class StartProgress:
    """The events of a start, with a bar for the indexing of large data sets on a terminal."""

    def __init__(self, show: Callable[[Mapping[str, object]], None]) -> None:
        self._show = show
        self._parts: dict[tuple[str, str], tuple[int, float]] = {}
        self._bar: Bar | None = None

    def show(self, event: Mapping[str, object]) -> None:
        """Show an event; that of indexing counts once it took longer than news are apart."""
        match event:
            case {
                "event": "indexing",
                "program": str(program),
                "data": str(data),
                "sequences": int(sequences),
                "part": float() | int() as part,
            }:
                self._indexing((program, data), sequences, float(part))
            case _:
                self._end()
                self._show(event)
                self._draw()

    def _indexing(self, which: tuple[str, str], sequences: int, part: float) -> None:
        if which not in self._parts:
            if not 0.0 < part < 1.0:
                return  # small: over at once
            self._end()
            echo(f"{which[0]:<13} indexing {which[1]}, {sequences:,} sequences", err=True)
        self._parts[which] = sequences, part
        self._draw()

    def _draw(self) -> None:
        left = {which: at for which, at in self._parts.items() if at[1] < 1.0}
        if not left:
            self._end()
            return
        total = sum(sequences for sequences, _ in left.values())
        done = sum(round(sequences * part) for sequences, part in left.values())
        self._bar = Bar(total, quiet=False)
        self._bar.draw(done, f" {', '.join(dict.fromkeys(data for _, data in left))}")

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.clear()
            self._bar = None


def show_system(system: SystemRecord, *, as_json: bool) -> None:
    if as_json:
        processes = [
            {"name": p.name, "pid": p.pid, "healthy": healthy(p)} for p in system.processes
        ]
        keys = {"access_key": system.access_key, "secret_key": system.secret_key}
        shown = {"credentials": keys} if system.access_key else {}
        about = {"cloud": system.cloud, "endpoints": endpoints_of(system)}
        about |= {"weather": system.weather} if has_weather(system) else {}
        echo_json({**about, **shown, "processes": processes})
        return
    variable = "AWS_ENDPOINT_URL_S3" if system.queues else "AWS_ENDPOINT_URL"
    name = "store        " if system.queues else "AWS endpoint "
    echo(f"{name} {system.endpoint}   (export {variable}={system.endpoint})")
    if system.access_key:
        access = f"AWS_ACCESS_KEY_ID={system.access_key}"
        echo(f"key pair      export {access} AWS_SECRET_ACCESS_KEY={system.secret_key}")
    if system.queues:
        echo(f"queues        export ORCHGPU_QUEUES='{system.queues}'")
    echo(f"scheduler     {system.scheduler}, http://{system.scheduler_http}")
    if system.console:
        echo(f"console       {system.console}")


def has_weather(system: SystemRecord) -> bool:
    return bool(system.weather)


def endpoints_of(system: SystemRecord) -> dict[str, str]:
    return {
        "aws": system.endpoint,
        "scheduler": system.scheduler,
        "scheduler_http": f"http://{system.scheduler_http}",
        **({"console": system.console} if system.console else {}),
    }
