"""A system in an AWS account, by one template."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from corekit.aio.files import replace_file
from corekit.cli.groups import CommandGroup
from corekit.cli.program import refused
from corekit.cli.progress import StatusLine, bar
from corekit.cli.screen import echo, echo_json, echo_table
from corekit.cli.table import Column
from corekit.decode import encode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import replace
from gpu_scheduler.client.access import CA_VARIABLE, KEY_FILE_VARIABLE
from orchgpu.cli.definition.target import open_target
from orchgpu.cli.options import cloud_options, stack_option
from orchgpu.cloud_services import Address, DeployCloud
from orchgpu.infra import bundles, deployment
from orchgpu.infra.changes import lines, settings, summary
from orchgpu.infra.deployment import Asked, Lack, Proposed
from orchgpu.infra.model import STACK, VERSION_TAG, Stack
from orchgpu.infra.outputs import found_stack, record_of
from orchgpu.infra.ports import Stacks
from orchgpu.infra.template import read_template
from orchgpu.jobs.parameters import named_values
from orchgpu.jobs.stack import CA_FILE, KEY_FILE
from orchgpu.local.home import default_home
from orchgpu.local.stack import (
    STACK_VARIABLE,
    StackRecord,
    forget_stack,
    keep_stack,
    kept_stack,
)
from orchgpu.local.system import SCHEDULER_VARIABLE

#: Exit status of `plan` when there are changes to make.
CHANGES_STATUS = 2
#: Of `plan` for wrong input, because 2 already means changes.
WRONG_STATUS = 1
RESOURCES = (
    Column(name="RESOURCE"),
    Column(name="KIND", shrink_order=1, width_min=12),
    Column(name="STATUS"),
    Column(name="ID", shrink_order=2, width_min=12, drop_order=1),
)

_set_option = click.option(
    "--set",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of the template, such as GpuType=g5.xlarge; repeatable. [default: as it is]",
)
_template_option = click.option(
    "--template",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="A template of your own, made from this one. [default: infra/cloudformation/orchgpu.yaml]",
)
_consent = click.option("--yes-real-aws", is_flag=True, help="Change resources on real AWS.")


def stack_options(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """`--stack`, and the options of a cloud; the command gets both as values."""

    @functools.wraps(command)
    def call(**options: object) -> int | None:
        named = os.environ.get(STACK_VARIABLE)
        if named == "":
            raise invalid("--stack: name one; '' stands for none, which other commands can use")
        named = named or _kept_name()
        return command(stack=named or STACK, **options)

    return stack_option(STACK)(cloud_options(call))


@click.group("infra", cls=CommandGroup)
def command() -> None:
    """A whole system in an AWS account, by one CloudFormation template.

    Two small schedulers in two zones, GPU hosts from 0 on, roles, alarms, a budget. Everything has
    a parameter (`--set`); without any, it costs about 27 USD a month while nothing runs.

    \b
    Example:  orchgpu infra plan
              orchgpu infra deploy --set AlarmEmail=ann@lab.example --yes-real-aws
    """


@command.command("plan", short_help="What a deploy would make, and its monthly price.")
@stack_options
@_set_option
@_template_option
def plan(
    stack: str, address: Address, given: tuple[str, ...], template: Path | None, as_json: bool
) -> int:
    """Show what `infra deploy` would change, what it costs a month, and which quotas are too small.

    Ends with 2 when there are changes to make, 1 for a wrong parameter, else 0. Nothing is made:
    CloudFormation computes the difference, and it is deleted again. A template above 51,200 bytes
    is read from the bucket of orchgpu's state, which is made for it when there is none.

    \b
    Example:  orchgpu infra plan --set Machines=one
    """
    try:
        with _stacks(address) as (target, stacks):
            parameters = named_values(given, "--set")
            asked = deployment.asked_of(stacks, stack, read_template(template), parameters)
            found = deployment.proposed(stacks, asked)
            stacks.discard(found.change_set)
            where = target.where
    except AppError as error:
        if error.code is not ErrorCode.INVALID:
            raise
        refused(error, "orchgpu", as_json=as_json)
        return WRONG_STATUS
    if as_json:
        echo_json(_plan_json(found))
    else:
        echo(f"{stack} ({where})")
        _echo_plan(found)
    return CHANGES_STATUS if found.change_set.changes else 0


@command.command("deploy", short_help="Make the stack, or change it.")
@stack_options
@_set_option
@_template_option
@click.option(
    "--host-extras",
    default="host,cuda",
    show_default=True,
    metavar="EXTRA[,…]",
    help="Parts of orchgpu on GPU hosts; `host-cuda`, 2.5 GB, has cuBLAS and ONNX models on cards.",
)
@click.option(
    "--wheels",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="A folder with all wheels, for accounts without a package index. [default: pip's index]",
)
@_consent
def deploy(
    stack: str,
    address: Address,
    given: tuple[str, ...],
    template: Path | None,
    host_extras: str,
    wheels: Path | None,
    as_json: bool,
    yes_real_aws: bool,
) -> int:
    """Make the stack, or change it to the parameters and to this version of orchgpu.

    Asks AWS for the quotas first, since their answer takes hours to days; then packs what machines
    install, shows the changes and the monthly price, and waits until the schedulers serve. May be
    repeated. `orchgpu infra rm` removes the stack.

    \b
    Example:  orchgpu infra deploy --set GpuMin=1 --yes-real-aws
    """
    with _stacks(address) as (target, stacks):
        target.guard(yes_real_aws)
        parameters = named_values(given, "--set")
        asked = deployment.asked_of(stacks, stack, read_template(template), parameters)
        if not as_json:
            echo(f"{stack} ({target.where})")
        _ask_for_quotas(stacks, asked, quiet=as_json)
        asked = _with_bundles(stacks, asked, host_extras, wheels, quiet=as_json)
        found = deployment.proposed(stacks, asked)
        if not as_json:
            _echo_plan(found)
        if found.change_set.changes:
            line = StatusLine(quiet=as_json)
            made = deployment.execute(stacks, found, _progress(line))
            line.clear()
        else:
            stacks.discard(found.change_set)
            assert asked.before is not None, "a new stack has changes"
            made = asked.before
        record = record_of(made, stacks.place)
        keep_stack(default_home(), record)
    if as_json:
        echo_json({**_plan_json(found), "outputs": dict(made.outputs)})
    else:
        echo(f"{stack}: {made.status}")
        _echo_outputs(made, record)
    return 0


@command.command("status", short_help="The stack, its resources, and what failed.")
@stack_options
def status(stack: str, address: Address, as_json: bool) -> int:
    """Show the state of the stack; ends with 1 when its last operation failed, 3 when it is absent.

    \b
    Example:  orchgpu infra status
    """
    with _stacks(address) as (target, stacks):
        found = found_stack(stacks, stack)
        resources = stacks.resources(stack)
        failures = stacks.failures(stack) if found.failed else ()
        where = target.where
    if as_json:
        echo_json(
            {
                "stack": encode(found),
                "resources": [encode(one) for one in resources],
                "failures": list(failures),
            }
        )
    else:
        version = found.tags.get(VERSION_TAG, "?")
        echo(f"{stack} ({where}): {found.status}, orchgpu {version}")
        for reason in failures:
            echo(f"  {reason}")
        rows = ((r.logical, r.kind.removeprefix("AWS::"), r.status, r.physical) for r in resources)
        echo_table(RESOURCES, sorted(rows, key=lambda row: (row[1], row[0])))
    return 1 if found.failed else 0


@command.command("outputs", short_help="Addresses and names that other commands use.")
@stack_options
@click.option(
    "--access",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Also write the operator's key and the scheduler's CA into DIR.",
)
def outputs(stack: str, address: Address, access: Path | None, as_json: bool) -> int:
    """Show the outputs of the stack, with the lines that other commands and definitions need.

    They are kept in the home of this folder: other commands find them there, without `--stack`.

    \b
    Example:  orchgpu infra outputs --access ~/.orchgpu-lab
    """
    with _stacks(address) as (_target, stacks):
        found = found_stack(stacks, stack)
        record = record_of(found, stacks.place)
        if access is not None:
            _write_access(access, stacks.read_secret(record.secret))
            record = replace(record, access=str(access.absolute()))
        keep_stack(default_home(), record)
    if as_json:
        echo_json({"stack": stack, "outputs": dict(found.outputs)})
    else:
        _echo_outputs(found, record)
        if access is not None:
            files = f"{KEY_FILE_VARIABLE}={access / KEY_FILE} {CA_VARIABLE}={access / CA_FILE}"
            echo(f"through that way:  export {SCHEDULER_VARIABLE}=127.0.0.1:4700 {files}")
    return 0


@command.command("rm", short_help="Remove the stack.")
@stack_options
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also the journal's table, the secret with all keys, the logs, and the packages.",
)
@_consent
def rm(stack: str, address: Address, everything: bool, as_json: bool, yes_real_aws: bool) -> int:
    """Remove the stack: machines, groups, network, roles. Jobs that run on its hosts end.

    Table, secret and logs stay, and a later deploy of the same name uses them again; --all removes
    them too. Functions, and the bucket of orchgpu's state, are those of `orchgpu deploy` and stay;
    functions in the stack's network are to be removed before. The policy of functions' roles stays.

    \b
    Example:  orchgpu infra rm --yes-real-aws
    """
    with _stacks(address) as (target, stacks):
        target.guard(yes_real_aws)
        line = StatusLine(quiet=as_json)
        kept = deployment.remove(stacks, stack, _progress(line), everything=everything)
        line.clear()
        forget_stack(default_home(), stack)
        bucket = stacks.place.state_bucket
    if as_json:
        echo_json({"stack": stack, "kept": list(kept), "state_bucket": bucket})
        return 0
    echo(f"{stack}: removed")
    for one in kept:
        echo(f"kept: {one}")
    if kept:
        echo("`orchgpu infra rm --all` removes these, too; a deploy uses them again")
    echo(f"kept: bucket {bucket}, with the records of functions (`orchgpu rm` removes those)")
    return 0


# --- parts


def _write_access(folder: Path, secret: Mapping[str, object]) -> None:
    if not secret:
        text = "the stack has no keys yet: its first scheduler makes them"
        raise AppError(ErrorCode.UNAVAILABLE, f"{text}; `orchgpu infra status`")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(folder / KEY_FILE, f"{secret['operator']}\n".encode())
        replace_file(folder / CA_FILE, str(secret["ca"]).encode(), mode=0o644)
    except OSError as error:
        raise invalid(f"--access {folder}: {error}") from error


@contextmanager
def _stacks(address: Address) -> Iterator[tuple[DeployCloud, Stacks]]:
    with open_target(address) as target:
        if target.stacks is None:
            raise invalid(f"this cloud makes no stacks ({target.where})")
        yield target, target.stacks


def _kept_name() -> str | None:
    kept = kept_stack(default_home())
    return None if kept is None else kept.name


def _ask_for_quotas(stacks: Stacks, asked: Asked, *, quiet: bool) -> None:
    for lack in deployment.lacks(stacks, asked.values):
        if lack.has is None:
            continue  # AWS does not answer for it: `infra plan` shows it
        try:
            new = stacks.request_quota(lack.quota)
        except AppError as error:
            echo(f"quota: {lack.quota.name}: {error.message}", err=True)
            continue
        words = "asked for" if new else "already asked for"
        if not quiet:
            echo(f"quota: {lack.quota.name}: {lack.has:.0f}; {lack.quota.needed:.0f} {words}")


def _with_bundles(
    stacks: Stacks, asked: Asked, host_extras: str, wheels: Path | None, *, quiet: bool
) -> Asked:
    def notice(text: str) -> None:
        if not quiet:
            echo(text)

    one = asked.values["Machines"] == "one"
    scheduler = bundles.architecture(asked.values["SchedulerType"])
    extras = f"scheduler,{host_extras}" if one else "scheduler"
    with tempfile.TemporaryDirectory(prefix="orchgpu-") as temporary:
        folder = Path(temporary)
        host = bundles.architecture(asked.values["GpuType"])
        notice(f"packs orchgpu[{host_extras}] for {host} and orchgpu[{extras}] for {scheduler}")
        own = bundles.own_wheel(folder)
        of_hosts = bundles.build(own, host, host_extras, wheels)
        of_schedulers = bundles.build(own, scheduler, extras, wheels)
        return deployment.with_bundles(stacks, asked, of_schedulers, of_hosts)


def _progress(line: StatusLine) -> deployment.Progress:
    return lambda done, count, words: line.show(f"{bar(done, count)}{words}")


def _echo_plan(found: Proposed) -> None:
    before = found.asked.before
    if before is not None:
        old, new = before.tags.get(VERSION_TAG, "?"), deployment.own_version()
        if old != new:
            echo(f"orchgpu: {old} → {new}; schedulers are replaced one after the other")
        for text in settings(before.parameters, found.asked.values):
            echo(text)
    for text in lines(found.change_set.changes):
        echo(text)
    echo(f"{summary(found.change_set.changes)}")
    prices = found.prices
    echo(f"monthly, while nothing runs (list prices of {prices.region}, {prices.as_of}):")
    for cost in found.costs:
        echo(f"  {cost.usd_month:6.2f} USD  {cost.what}")
    echo(f"  {found.usd_month:6.2f} USD  in all; GPU hosts, jobs and their objects by use")
    for lack in found.lacks:
        echo(_lack_text(lack))


def _lack_text(lack: Lack) -> str:
    has = "unknown here" if lack.has is None else f"{lack.has:.0f}"
    return f"quota: {lack.quota.name}: {has}, needed {lack.quota.needed:.0f}"


def _plan_json(found: Proposed) -> dict[str, object]:
    return {
        "stack": found.asked.name,
        "changes": [encode(one) for one in found.change_set.changes],
        "costs": [encode(one) for one in found.costs],
        "usd_month": round(found.usd_month, 2),
        "prices_as_of": found.prices.as_of,
        "quotas": [
            {"name": one.quota.name, "has": one.has, "needed": one.quota.needed}
            for one in found.lacks
        ],
    }


def _echo_outputs(stack: Stack, record: StackRecord) -> None:
    for name, value in sorted(stack.outputs.items()):
        echo(f"{name}: {value}")
    echo(
        f"names begin so:   functions {record.function_prefix}, buckets {record.bucket_prefix},"
        f" secrets {record.secret_prefix}"
    )
    if record.subnets:
        subnets, group = ", ".join(record.subnets), record.function_group
        echo(f"network of functions:  vpc: {{SubnetIds: [{subnets}], SecurityGroupIds: [{group}]}}")
    first = record.schedulers.partition(",")[0]
    # aws takes one forward: of two, the last one alone would count
    for what, forward in (("scheduler", f"4700:{first}"), ("console", "4790:127.0.0.1:4790")):
        echo(
            f"{f'a way to the {what}:':<26}aws ec2-instance-connect ssh --connection-type eice"
            f" --os-user ec2-user --local-forwarding {forward} --instance-id ID"
        )
