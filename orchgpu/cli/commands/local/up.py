"""Start the local system."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from corekit.aio.output import ignoring_closed_pipe
from corekit.cli.screen import echo, json_option
from corekit.errors import EXIT_STATUS, ErrorCode, invalid
from gpu_scheduler.data_names import is_data_name
from orchgpu.cli.local.launching import (
    START_AGAIN,
    StartProgress,
    await_up,
    check_weather,
    cloud_option,
    show_event,
    show_system,
    stop_launch,
    weather_option,
)
from orchgpu.local.examples import resident_data
from orchgpu.local.fleet import parse_range
from orchgpu.local.home import ProgramState, SystemRecord, default_home
from orchgpu.local.installed import check_installed
from orchgpu.local.programs import LocalSettings
from orchgpu.local.system import Launch, unhealthy


@click.command("up")
@click.option("--detach", is_flag=True, help="Return once it serves; `orchgpu down` ends it.")
@cloud_option
@click.option(
    "--data",
    multiple=True,
    metavar="NAME=PATH",
    help="Data set of every GPU host (repeatable).",
)
@click.option(
    "--middleware",
    multiple=True,
    metavar="NAME=PROGRAM",
    help="Remote-GPU software that every GPU host also offers (repeatable).",
)
@click.option(
    "--program",
    multiple=True,
    metavar="NAME=COMMAND",
    help="Program of every GPU host for the operation exec, as of gpud (repeatable).",
)
@click.option(
    "--data-space",
    type=click.FloatRange(0, 1_000_000),
    default=0.0,
    metavar="GIB",
    help="Space of every GPU host for data sets that functions declare; 0: hosts fetch none.",
)
@click.option(
    "--images-mib",
    type=click.IntRange(0, 1 << 30),
    default=0,
    metavar="MIB",
    help="Run OCI images by podman on every GPU host, and keep this much of them; 0: none is run.",
)
@click.option(
    "--fleet",
    metavar="MIN-MAX",
    help="Instead of two GPU hosts, from MIN to MAX that come and go with the demand"
    " (docs/how-to/fleet.md).",
)
@click.option(
    "--emulate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Emulated devices of the first GPU host, for experiments (docs/how-to/hosts.md).",
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
    help="Additional host name under which clients and web pages may reach the cloud (repeatable).",
)
@weather_option
@json_option
def command(
    detach: bool,
    cloud: str,
    data: tuple[str, ...],
    middleware: tuple[str, ...],
    program: tuple[str, ...],
    data_space: float,
    images_mib: int,
    fleet: str | None,
    emulate: Path | None,
    verify_signatures: bool,
    allow_host: tuple[str, ...],
    weather: str,
    as_json: bool,
) -> int:
    """Start the local system: cloud, scheduler, two GPU hosts, orchestrator.

    Buckets, queues and functions stay in its folder across `down` and `up`; moto keeps them in
    memory only. Ends with 8 when a system runs already and one of its programs is dead.

    \b
    Example:  orchgpu up --detach
    """
    if verify_signatures and cloud != "embedded":
        raise invalid(f"--verify-signatures: {cloud} verifies none; use --cloud embedded")
    if fleet is not None and emulate is not None:
        raise invalid("--fleet: its hosts have no emulated devices; leave --emulate out")
    hosts = None if fleet is None else parse_range(fleet)
    home = default_home()
    running = home.read_system()
    if running is not None:
        return _show_running(running, str(home.path), as_json=as_json)
    check_weather(cloud, weather, quiet=as_json)
    check_installed(cloud)
    launch = Launch(
        home,
        LocalSettings(
            cloud=cloud,
            data={**resident_data(), **_named_files("--data", data)},
            middlewares=_named_files("--middleware", middleware),
            programs=_programs(program),
            data_space_gib=data_space,
            images_mib=images_mib,
            fleet=hosts,
            emulate="" if emulate is None else str(emulate.absolute()),
            allowed_hosts=allow_host,
            verify_signatures=verify_signatures,
            weather=weather,
        ),
        lifeline=not detach,
    )
    try:
        # a closed pipe must not end the system: `orchgpu up | head -1` closes it after a line
        shown = StartProgress(show_event)
        system = await_up(launch, quiet=as_json, show=ignoring_closed_pipe(shown.show))
        if detach:
            launch.leave_running()
        ignoring_closed_pipe(show_system)(system, as_json=as_json)
        if detach:
            return 0
        ignoring_closed_pipe(lambda: echo("Ctrl-C stops it.", err=True))()
        for event in launch.events():
            ignoring_closed_pipe(show_event)(event)
    finally:
        if not launch.left:
            stop_launch(launch, quiet=as_json)
    return 0


def _show_running(system: SystemRecord, home: str, *, as_json: bool) -> int:
    echo(f"already running in {home}; `orchgpu down` stops it", err=True)
    show_system(system, as_json=as_json)
    dead = unhealthy(system)
    for process in dead:
        echo(f"orchgpu: {process.name} does not run; see {process.log}", err=True)
    if any(process.state == ProgramState.GIVEN_UP for process in dead):
        echo(f"orchgpu: {START_AGAIN}", err=True)
    return EXIT_STATUS[ErrorCode.UNAVAILABLE] if dead else 0


def _programs(pairs: Iterable[str]) -> dict[str, str]:
    return dict(_named("--program", "NAME=COMMAND", pairs, is_data_name))


def _named_files(option: str, pairs: Iterable[str]) -> dict[str, str]:
    is_name = is_data_name if option == "--data" else bool
    found = {}
    for name, path in _named(option, "NAME=PATH", pairs, is_name):
        if not Path(path).is_file():
            raise invalid(f"{option} {name}: there is no file {path!r}")
        found[name] = str(Path(path).absolute())
    return found


def _named(
    option: str, form: str, pairs: Iterable[str], is_name: Callable[[str], bool]
) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not value or not is_name(name):
            raise invalid(f"{option} {pair!r} is not {form}")
        yield name, value
