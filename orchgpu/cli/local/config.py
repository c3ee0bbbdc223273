"""`orchgpu config show`: what every command goes by here, and who says so; no secrets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

import click

from corekit.errors import AppError
from orchgpu.cli.scheduler import scheduler_address, scheduler_option
from orchgpu.cli.terminal.screen import Commands, json_option, say_json, say_table
from orchgpu.cli.terminal.table import Column
from orchgpu.local.home import HOME_VARIABLE, default_home
from orchgpu.local.system import SCHEDULER_VARIABLE

SETTINGS = (
    Column(name="SETTING"),
    Column(name="VALUE", gives=2, least=20, keep="both"),
    Column(name="SOURCE", gives=3, least=12, leaves=1),
    Column(name="PROBLEM", gives=1, least=24, leaves=2),
)

SERVICES = ("s3", "sqs", "lambda", "logs", "sts", "iam")
#: Shown of a key's id: enough to tell two apart.
SHOWN_OF_ID = 4
DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting as it is in force."""

    name: str
    value: str | None  #: None: not set, or wrong
    source: str  #: the option, the variable, the local system, a file, or the default
    problem: str = ""  #: why it cannot be used


@click.group(cls=Commands, short_help="Every setting in force here, with its source.")
def config() -> None:
    """What commands go by: where clouds and schedulers are, and who says so.

    \b
    Example:  orchgpu config show
    """


@config.command("show", short_help="Every setting with its source.")
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
    """Every setting that is in force in this folder, its value and where that comes from.

    Options are those of other commands: they show what these would do. Nothing is asked of a cloud.

    \b
    Example:  orchgpu config show --json
    """
    home_given = context.find_root().params.get("home") is not None
    found = list(settings(endpoint_url, region, scheduler, home_given=home_given))
    if as_json:
        say_json({"settings": [asdict(one) for one in found]})
        return
    rows = [(one.name, one.value or "-", one.source, one.problem) for one in found]
    say_table(SETTINGS, rows, empty="")


def settings(
    endpoint_url: str | None, region: str | None, scheduler: str | None, *, home_given: bool
) -> Iterator[Setting]:
    """All of them; what is wrong is told beside its name and keeps no other from being told."""
    home = default_home()
    source = "--home" if home_given else HOME_VARIABLE if os.environ.get(HOME_VARIABLE) else DEFAULT
    yield Setting(name="home", value=str(home.path), source=source)
    yield _checked("local system", "its folder", _local_system)
    for service in SERVICES:
        yield _endpoint(service, endpoint_url, region)
    yield _checked("region", "", lambda: _region(endpoint_url, region))
    yield _checked("credentials", "", lambda: _credentials(endpoint_url))
    given = "--scheduler" if scheduler else SCHEDULER_VARIABLE
    known = bool(scheduler or os.environ.get(SCHEDULER_VARIABLE))
    source = given if known else "the local system"
    yield _checked("scheduler", source, lambda: (scheduler_address(scheduler), source))
    yield from _variables(os.environ)


def _checked(name: str, source: str, look: Callable[[], tuple[str | None, str]]) -> Setting:
    try:
        value, source = look()
    except AppError as error:
        return Setting(name=name, value=None, source=source or "-", problem=error.message)
    return Setting(name=name, value=value, source=source)


def _local_system() -> tuple[str | None, str]:
    system = default_home().read_system()
    return (None if system is None else f"runs, cloud {system.cloud}"), "its folder"


def _endpoint(service: str, endpoint_url: str | None, region: str | None) -> Setting:
    from orchgpu.adapters.aws.endpoints import resolve

    def look() -> tuple[str, str]:
        found = resolve(service, endpoint_url=endpoint_url, region=region)
        url = found.endpoint_url or os.environ.get(found.source)  # botocore reads that itself
        return url or "AWS", found.source

    return _checked(f"{service} endpoint", "", look)


def _region(endpoint_url: str | None, region: str | None) -> tuple[str | None, str]:
    from orchgpu.adapters.aws.endpoints import boto3_session, resolve

    if region:
        return region, "--region"
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if os.environ.get(name):
            return os.environ[name], name
    found = resolve("s3", endpoint_url=endpoint_url)
    if found.local:
        return found.region, DEFAULT
    return boto3_session(found).region_name, "the AWS configuration files"


def _credentials(endpoint_url: str | None) -> tuple[str | None, str]:
    from botocore.exceptions import BotoCoreError

    from orchgpu.adapters.aws.endpoints import boto3_session, resolve

    found = resolve("s3", endpoint_url=endpoint_url)
    if found.access_key_id is not None:
        return found.access_key_id, "any key does off AWS"
    session = boto3_session(found)
    try:
        known = session.get_credentials()
    except BotoCoreError as error:
        return None, f"cannot be had: {error}"
    if known is None:
        return None, "none found"
    profile = f", profile {session.profile_name}" if session.profile_name != DEFAULT else ""
    return f"…{known.access_key[-SHOWN_OF_ID:]}", f"{known.method}{profile}"


def _variables(environ: Mapping[str, str]) -> Iterator[Setting]:
    """Those of ours that are no address; of a key only that it is there."""
    from corekit.aio.environment import SCALE_VARIABLE, budget_from_environment
    from gpu_scheduler.client.access import CA_VARIABLE, KEY_FILE_VARIABLE, KEY_VARIABLE
    from orchgpu.adapters.aws.endpoints import REAL_AWS_VARIABLE

    file = environ.get(KEY_FILE_VARIABLE)
    key, source = file, KEY_FILE_VARIABLE
    if not file and environ.get(KEY_VARIABLE):
        key, source = "set", KEY_VARIABLE
    yield Setting(name="scheduler key", value=key or None, source=source if key else DEFAULT)
    ca = environ.get(CA_VARIABLE)
    yield Setting(name="scheduler CA", value=ca or None, source=CA_VARIABLE if ca else DEFAULT)
    real = environ.get(REAL_AWS_VARIABLE)
    allowed = "allowed" if real == "1" else "refused without --yes-real-aws"
    yield Setting(
        name="deploys to AWS", value=allowed, source=REAL_AWS_VARIABLE if real else DEFAULT
    )
    scale = environ.get(SCALE_VARIABLE)

    def scaled() -> tuple[str, str]:
        budget_from_environment()
        return scale or "1", SCALE_VARIABLE if scale else DEFAULT

    yield _checked("time scale", SCALE_VARIABLE, scaled)
    plain = bool(environ.get("NO_COLOR"))
    colour = "never" if plain else "on a terminal"
    yield Setting(name="colour", value=colour, source="NO_COLOR" if plain else DEFAULT)
