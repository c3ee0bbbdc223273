"""Every setting in force here, with its source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

import click

from corekit.aio.environment import SCALE_VARIABLE, budget_from_environment
from corekit.cli.groups import CommandGroup
from corekit.cli.screen import echo_json, echo_table, json_option
from corekit.cli.table import Column
from corekit.decode import encode
from corekit.errors import AppError
from corekit.local_system import HOME_VARIABLE
from gpu_scheduler.client.access import CA_VARIABLE, KEY_FILE_VARIABLE, KEY_VARIABLE
from orchgpu.adapters.aws.endpoints import REAL_AWS_VARIABLE
from orchgpu.cli.options import scheduler_option
from orchgpu.cloud_services import Address, Setting
from orchgpu.jobs.provider import DEFAULT_PROVIDER, PROVIDER_VARIABLE, provider
from orchgpu.jobs.scheduler import scheduler_address
from orchgpu.local.home import default_home
from orchgpu.local.stack import STACK_VARIABLE, stack_in_use
from orchgpu.local.system import SCHEDULER_VARIABLE

SETTINGS = (
    Column(name="SETTING"),
    Column(name="VALUE", shrink_order=2, width_min=20, keep="both"),
    Column(name="SOURCE", shrink_order=3, width_min=12, drop_order=1),
    Column(name="PROBLEM", shrink_order=1, width_min=24, drop_order=2),
)
DEFAULT = "default"


@click.group("config", cls=CommandGroup)
def command() -> None:
    """The settings of all commands: addresses of clouds and schedulers, with their sources.

    \b
    Example:  orchgpu config show
    """


@command.command("show", short_help="Every setting with its source.")
@click.option("--endpoint-url", help="As given to another command.")
@click.option("--region", help="As given to another command.")
@scheduler_option
@json_option
@click.pass_context
def show(
    context: click.Context,
    endpoint_url: str | None,
    region: str | None,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Every setting that is in force in this folder, with its value and its source.

    The options are those of other commands, to show the settings in force. No cloud is called.

    \b
    Example:  orchgpu config show --json
    """
    home_given = context.find_root().params.get("home") is not None
    address = Address(endpoint_url=endpoint_url, region=region)
    found = list(settings(address, scheduler, home_given=home_given))
    if as_json:
        echo_json({"settings": [encode(one) for one in found]})
        return
    echo_table(SETTINGS, [(one.name, one.value or "-", one.source, one.problem) for one in found])


def settings(address: Address, scheduler: str | None, *, home_given: bool) -> Iterator[Setting]:
    """All settings; a wrong one is reported beside its name and hides no other."""
    home = default_home()
    source = "--home" if home_given else HOME_VARIABLE if os.environ.get(HOME_VARIABLE) else DEFAULT
    yield Setting(name="home", value=str(home.path), source=source)
    local = _checked("local system", "its folder", _local_system)
    yield local
    yield from _provider(address)
    given = "--scheduler" if scheduler else SCHEDULER_VARIABLE
    known = bool(scheduler or os.environ.get(SCHEDULER_VARIABLE))
    stack = _checked("stack", STACK_VARIABLE if _named() else "its home", _stack)
    yield stack
    otherwise = "the local system" if local.value or not stack.value else "the stack"
    source = given if known else otherwise
    yield _checked("scheduler", source, lambda: scheduler_address(scheduler))
    yield from _variables(os.environ)


def _checked(name: str, source: str, look: Callable[[], str | None]) -> Setting:
    try:
        return Setting(name=name, value=look(), source=source)
    except AppError as error:
        return Setting(name=name, value=None, source=source, problem=error.message)


def _local_system() -> str | None:
    system = default_home().read_system()
    return None if system is None else f"runs, cloud {system.cloud}"


def _named() -> str | None:
    return os.environ.get(STACK_VARIABLE)


def _stack() -> str | None:
    kept = stack_in_use(default_home())
    return _named() if kept is None else f"{kept.name} ({kept.account}, {kept.region})"


def _provider(address: Address) -> Iterator[Setting]:
    name = os.environ.get(PROVIDER_VARIABLE)
    source = PROVIDER_VARIABLE if name else DEFAULT
    try:
        found = provider()
    except AppError as error:
        yield Setting(name="provider", value=None, source=source, problem=error.message)
        return
    yield Setting(name="provider", value=name or DEFAULT_PROVIDER, source=source)
    yield from found.settings(address)


def _variables(environ: Mapping[str, str]) -> Iterator[Setting]:
    # of a key only whether it is set
    if environ.get(KEY_FILE_VARIABLE) or not environ.get(KEY_VARIABLE):
        yield _variable("scheduler key", KEY_FILE_VARIABLE, environ)
    else:
        yield Setting(name="scheduler key", value="set", source=KEY_VARIABLE)
    yield _variable("scheduler CA", CA_VARIABLE, environ)
    consent = environ.get(REAL_AWS_VARIABLE) == "1"
    allowed = "allowed" if consent else "refused without --yes-real-aws"
    yield _variable("deploys to AWS", REAL_AWS_VARIABLE, environ, allowed)

    def scaled() -> str:
        budget_from_environment()
        return environ.get(SCALE_VARIABLE) or "1"

    yield _checked("time scale", SCALE_VARIABLE if environ.get(SCALE_VARIABLE) else DEFAULT, scaled)
    colour = "never" if environ.get("NO_COLOR") else "on a terminal"
    yield _variable("colour", "NO_COLOR", environ, colour)


def _variable(
    name: str, variable: str, environ: Mapping[str, str], shown: str | None = None
) -> Setting:
    value = environ.get(variable) or None
    return Setting(name=name, value=shown or value, source=variable if value else DEFAULT)
