"""`ssgmd journal`: check, repair, backup and migration, for every place of a journal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from corekit.aio.environment import budget_from_environment
from corekit.aio.process import exiting_by_code, private_folder
from corekit.cli.progress import StatusLine
from corekit.cli.screen import counted, echo, echo_json, json_option
from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.access.keys import NAME as KEYS_NAME
from gpu_scheduler.daemon.access.secret import NAME as MASTER_KEY_NAME
from gpu_scheduler.daemon.config import Config, log_address_of, state_of
from gpu_scheduler.daemon.journal import repair, transfer
from gpu_scheduler.daemon.journal.format import no_journal
from gpu_scheduler.daemon.journal.repair import JournalRead
from gpu_scheduler.daemon.journal.transfer import Copied
from gpu_scheduler.daemon.log.engines.file import NAME as JOURNAL_NAME
from gpu_scheduler.daemon.log.engines.file import lock_folder
from gpu_scheduler.daemon.log.port import FILE, Log, LogAddress
from gpu_scheduler.daemon.log.registry import file_address, open_log, parse_log_address
from gpu_scheduler.daemon.log.sync_marker import NAME as MARKER_NAME


@contextlib.contextmanager
def _opened(address: LogAddress, *, alone: bool = False) -> Iterator[tuple[Log, str]]:
    is_file, folder = address.scheme == FILE, Path("/", address.path)
    where = file_address(folder).text if is_file else address.text
    with contextlib.ExitStack() as stack:
        if is_file and alone:
            if not _has_journal(folder):
                raise no_journal(str(folder))
            stack.callback(os.close, lock_folder(folder))
        log = open_log(address, budget_from_environment().log_call_s)
        stack.callback(log.close)
        yield log, where


def _has_journal(folder: Path) -> bool:
    return any((folder / name).exists() for name in (JOURNAL_NAME, MARKER_NAME))


def _address_of(found: Config) -> LogAddress:
    return log_address_of(found) or file_address(state_of(found))


@contextlib.contextmanager
def _watching(as_json: bool) -> Iterator[Callable[[int], None]]:
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
        with _opened(_address_of(found), alone=True) as (log, where):
            checked = repair.check(log, where)
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
    with exiting_by_code("ssgmd"), _opened(_address_of(found), alone=True) as (log, where):
        _show(repair.repair(log, where, state_of(found)), as_json)


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
        state = state_of(found)
        with _opened(_address_of(found)) as (log, where):
            source = transfer.whole_journal(log, where, watch)
        copied = _written(source, file_address(folder))
        beside = transfer.copy_beside(state, folder, (MASTER_KEY_NAME, KEYS_NAME))
    _report(copied, as_json, beside)
    if not as_json and MASTER_KEY_NAME not in beside:
        key = found.text("master_key")
        text = "the master key is not in the copy: start with "
        echo(text + (f"--master-key {key}" if key else "the daemon's own"), err=True)


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
        to = parse_log_address(target)
        if to.scheme != FILE:
            stack.enter_context(_opened(to))  # a wrong target shows before the source ends
        log, where = stack.enter_context(_opened(_address_of(found), alone=True))
        copied = _written(transfer.ended(log, where, watch), to)
    _report(copied, as_json)


def _written(journal: JournalRead, target: LogAddress) -> Copied:
    with contextlib.ExitStack() as stack:
        if target.scheme == FILE:
            folder = Path("/", target.path)
            private_folder(folder)
            if _has_journal(folder):
                raise AppError(ErrorCode.CONFLICT, f"there is a journal in {folder} already")
            stack.callback(os.close, lock_folder(folder))
        log, where = stack.enter_context(_opened(target))
        return transfer.write(journal, log, where)


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
