"""Store and delete the values of `secrets:`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from contract.secrets.reference import SecretReference, parse_reference
from corekit.cli.groups import CommandGroup
from corekit.cli.screen import echo, echo_json
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.cli.definition.target import open_target
from orchgpu.cli.options import cloud_options
from orchgpu.cloud_services import Address, DeployCloud, SecretStores

#: Of Secrets Manager, the larger of the two stores.
VALUE_BYTES_MAX = 65536

_consent = click.option("--yes-real-aws", is_flag=True, help="Change secrets on real AWS.")


@click.group("secret", cls=CommandGroup)
def command() -> None:
    """The values behind `secrets:` of a definition; no command shows one.

    \b
    Example:  orchgpu secret put ssm:/search/token
    """


@command.command("put", short_help="Store a value.")
@click.argument("reference")
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    help="A file with the value. [default: standard input, which must not be a terminal]",
)
@cloud_options
@_consent
def put(
    reference: str, file: Path | None, address: Address, as_json: bool, yes_real_aws: bool
) -> None:
    """Store a value at REFERENCE: ssm:NAME (a SecureString) or secretsmanager:NAME.

    An entry that exists gets a new version; running functions have it within five minutes. The
    line end of the last line is not part of the value.

    \b
    Example:  orchgpu secret put ssm:/search/token --file token.txt
    """
    found = _stored(reference)
    with open_target(address) as target:
        target.guard(yes_real_aws)
        stores = _stores(target)
        new = stores.put(found, _value(file))
    if as_json:
        echo_json({"reference": str(found), "new": new})
    else:
        echo(f"{found}: {'stored' if new else 'stored as a new version'}")


@command.command("rm", short_help="Delete an entry.")
@click.argument("reference")
@cloud_options
@_consent
def rm(reference: str, address: Address, as_json: bool, yes_real_aws: bool) -> None:
    """Delete the entry of REFERENCE.

    Secrets Manager keeps it for 30 days, unreadable; `put` restores it with a new value.

    \b
    Example:  orchgpu secret rm ssm:/search/token
    """
    found = _stored(reference)
    with open_target(address) as target:
        target.guard(yes_real_aws)
        _stores(target).remove(found)
    if as_json:
        echo_json({"reference": str(found), "removed": True})
    else:
        echo(f"{found}: removed")


def _stored(text: str) -> SecretReference:
    try:
        reference = parse_reference(text)
    except ValueError as error:
        raise invalid(f"REFERENCE: {error}") from None
    if not reference.stored:
        raise invalid("REFERENCE: a file is written by an editor; name ssm: or secretsmanager:")
    return reference


def _stores(target: DeployCloud) -> SecretStores:
    if target.secrets is None:
        raise AppError(ErrorCode.INVALID, f"this cloud has no stores of secrets ({target.where})")
    return target.secrets


def _value(file: Path | None) -> str:
    if file is None and sys.stdin.isatty():
        raise invalid("a value typed here would be shown: pipe it in, or give --file FILE")
    try:
        content = sys.stdin.buffer.read(VALUE_BYTES_MAX + 3) if file is None else file.read_bytes()
    except OSError as error:
        raise invalid(f"{file}: {error.strerror}") from None
    content = content.removesuffix(b"\n").removesuffix(b"\r")
    if not content or len(content) > VALUE_BYTES_MAX:
        raise invalid(f"a value has 1 to {VALUE_BYTES_MAX} bytes, this one {len(content)}")
    try:
        value = content.decode()
    except UnicodeDecodeError:
        value = "\0"
    if "\0" in value:
        raise invalid("a value is UTF-8 text, as a variable must be: store it as base64")
    return value
