"""`ssgmd journal`: check, repair, backup and migration, for every place of a journal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from corekit.aio.environment import budget_from_environment
from corekit.aio.process import exiting_by_code
from corekit.cli.progress import StatusLine
from corekit.cli.screen import counted, echo, echo_json, json_option
from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.access.keys import NAME as KEYS_NAME
from gpu_scheduler.daemon.access.secret import NAME as MASTER_KEY_NAME
from gpu_scheduler.daemon.config import Config, log_address_of, state_of
from gpu_scheduler.daemon.journal import log_repair, repair, transfer
from gpu_scheduler.daemon.journal.transfer import Contents, Copied
from gpu_scheduler.daemon.log.port import Log, LogAddress
from gpu_scheduler.daemon.log.registry import FILE, open_log, parse_log_address


@contextlib.contextmanager
def _opened(address: LogAddress) -> Iterator[Log]:
    log = open_log(address, budget_from_environment().log_call_s)
    try:
        yield log
    finally:
        log.close()


@contextlib.contextmanager
def _watching(as_json: bool) -> Iterator[Callable[[int], None]]:
    """A line with the entries read so far, on a terminal."""
    line = StatusLine(quiet=as_json)
    try:
        yield lambda count: line.show(f"{counted(count, 'entry')} read")
    finally:
        line.clear()


@click.group("journal")
def journal_group() -> None:
    """Check, repair, copy or move the journal."""


@journal_group.command("check")
@json_option
@click.pass_obj
def journal_check(found: Config, as_json: bool) -> None:
    """Read the whole journal without changes. Ends with 1 when it is damaged.

    A journal in the state folder is checked while no daemon uses it; one in a log at any time.

    \b
    Example:  ssgmd --state /var/lib/ssgmd journal check
    """
    with exiting_by_code("ssgmd"):
        address = log_address_of(found)
        if address is None:
            checked = repair.check(state_of(found))
        else:
            with _opened(address) as log:
                checked = log_repair.check_log(log, address.text)
        _show(checked, as_json)
        if checked.damage is not None:
            raise AppError(ErrorCode.INTERNAL, f"damaged: {checked.damage}; run: {checked.remedy}")


@journal_group.command("repair", short_help="Keep the entries before the damage.")
@json_option
@click.pass_obj
def journal_repair(found: Config, as_json: bool) -> None:
    """Keep the entries before the damage, and a copy of the old contents in the state folder.

    Leases and jobs after the damage are lost: hosts revoke leases that the scheduler does not know,
    and redelivered messages start their jobs again. Prints the dropped entries. An undamaged
    journal is not changed.

    \b
    Example:  ssgmd --state /var/lib/ssgmd journal repair
    """
    with exiting_by_code("ssgmd"):
        address = log_address_of(found)
        if address is None:
            _show(repair.repair(state_of(found)), as_json)
            return
        with _opened(address) as log:
            _show(log_repair.repair_log(log, address.text, state_of(found)), as_json)


@journal_group.command("backup", short_help="Copy the journal while the daemon runs.")
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
@click.pass_obj
def journal_backup(found: Config, folder: Path, as_json: bool) -> None:
    """Copy journal, master key and keys into a new state folder, also while the daemon runs.

    `ssgmd --state FOLDER` starts from it. The copy holds everything that was answered before the
    command began. The master key in it opens every session of a live lease. A master key or keys
    that are not in the state folder (--master-key, --keys) are not copied: give them at the start.

    \b
    Example:  ssgmd --state /var/lib/ssgmd journal backup /backup/ssgmd-2026-11-22
    """
    with exiting_by_code("ssgmd"), _watching(as_json) as watch:
        state, address = state_of(found), log_address_of(found)
        if address is None:
            contents = transfer.folder_contents(state, watch)
        else:
            with _opened(address) as log:
                contents = transfer.log_contents(log, address.text, watch)
        copied = transfer.write_folder(contents, folder)
        beside = transfer.copy_beside(state, folder, (MASTER_KEY_NAME, KEYS_NAME))
    _report(copied, as_json, beside)
    if not as_json and MASTER_KEY_NAME not in beside:
        source = found.text("master_key")
        text = "the master key is not in the copy: start with "
        echo(text + (f"--master-key {source}" if source else "the daemon's own"), err=True)


@journal_group.command("migrate", short_help="Move the journal to another place.")
@click.argument("target")
@json_option
@click.pass_obj
def journal_migrate(found: Config, target: str, as_json: bool) -> None:
    """Copy the journal to TARGET, an address as of --log, and verify the copy.

    The daemon must be stopped; one that still writes to the old log ends with exit code 10. Start
    it with `--log TARGET` afterwards (or `--state FOLDER`, for file:///FOLDER), with the same
    master key. The old journal is kept as it is.

    \b
    Example:  ssgmd --state /var/lib/ssgmd journal migrate dynamodb://ssgmd/main?region=eu-west-1
    """
    with exiting_by_code("ssgmd"), _watching(as_json) as watch, contextlib.ExitStack() as stack:
        to, source = parse_log_address(target), log_address_of(found)
        into: Log | None = None
        if to.scheme != FILE:
            into = stack.enter_context(_opened(to))  # a wrong target shows before the source ends
        contents: Contents
        if source is None:
            ended = transfer.ended_folder(state_of(found), watch)
            contents = stack.enter_context(ended)
        else:
            log = stack.enter_context(_opened(source))
            contents = transfer.ended_log(log, source.text, watch)
        if into is None:
            copied = transfer.write_folder(contents, Path("/", to.path))
        else:
            copied = transfer.write_log(contents, into, to.text)
    _report(copied, as_json)


def _report(copied: Copied, as_json: bool, beside: tuple[str, ...] = ()) -> None:
    if as_json:
        echo_json({**encode(copied), "beside": list(beside)})
        return
    names = f"; beside it: {', '.join(beside)}" if beside else ""
    echo(copied.sentence + names)


def _show(checked: repair.Checked, as_json: bool) -> None:
    if as_json:
        echo_json(encode(checked))
    else:
        echo(checked.sentence)
