"""The parts of a daemon that exist before its journal is read, made under the folder's lock."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corekit.aio.clock import SystemClock
from corekit.aio.process import private_folder
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource, JobId, LeaseId
from corekit.net.addresses import is_loopback, parse_address
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.core.queue.bookings import RUN, read_run
from gpu_scheduler.core.state.state import State
from gpu_scheduler.daemon.access.authorizer import Authorizer, JobOwner
from gpu_scheduler.daemon.access.iam_join import IamKeyIssuer
from gpu_scheduler.daemon.access.keys import NAME as KEYS_NAME
from gpu_scheduler.daemon.access.redaction import Redaction
from gpu_scheduler.daemon.access.secret import LeaseSecrets
from gpu_scheduler.daemon.endpoints.connections import ConnectionRegistry
from gpu_scheduler.daemon.journal.journal import Journal, JournalSettings, Opener
from gpu_scheduler.daemon.log.engines.file import lock_folder
from gpu_scheduler.daemon.log.registry import file_address
from gpu_scheduler.daemon.log.writer import RetryLimits
from gpu_scheduler.daemon.metrics import Metrics
from gpu_scheduler.daemon.settings import DaemonSettings
from gpu_scheduler.policy_registry import installed_policies

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonParts:
    """The parts of a daemon that exist before its journal is read."""

    authorizer: Authorizer
    journal: Journal
    machine: SchedulerMachine
    registry: ConnectionRegistry
    fingerprint: str  #: of the master key


def locked_parts(
    settings: DaemonSettings,
    opener: Opener,
    metrics: Metrics,
    stack: contextlib.AsyncExitStack,
) -> DaemonParts:
    """Lock the state folder, read keys and secrets, and make the parts that are empty yet."""
    with using_folder(settings.state):
        private_folder(settings.state)
        stack.callback(os.close, lock_folder(settings.state))
        journal = _journal_of(settings, opener)
        stack.callback(journal.close)
        is_elsewhere = settings.log is not None and not journal.is_empty
        history = journal.name if is_elsewhere else None
        # under the lock: only its holder may make a key
        secret_of = LeaseSecrets.open(settings.state, settings.master_key, history)
    # ids of a new run must never repeat those of an earlier one: each run has its own seed
    ids = IdSource(secrets.token_hex(16))
    machine = SchedulerMachine(settings.budget, ids, settings.parameters, installed_policies())
    if settings.keys is not None:
        settings.keys.refresh()
    authorizer = Authorizer(
        settings.keys or settings.state / KEYS_NAME,
        lambda lease: _owner_of(machine.state, lease),
        lambda holder: _job_owner_of(machine.state, holder),
        lambda run: _run_tenant_of(machine.state, run),
        None if settings.join_iam is None else IamKeyIssuer(settings.join_iam, SystemClock()),
    )
    _only_loopback_without_keys(settings, authorizer)
    return DaemonParts(
        authorizer=authorizer,
        journal=journal,
        machine=machine,
        registry=ConnectionRegistry(secret_of, metrics, Redaction(authorizer)),
        fingerprint=secret_of.fingerprint,
    )


def _journal_of(settings: DaemonSettings, opener: Opener) -> Journal:
    budget = settings.budget
    in_log = JournalSettings(
        address=settings.log or file_address(settings.state),
        state=settings.state,
        call_s=budget.log_call_s,
        retry=RetryLimits(within_s=budget.log_retry_s),
    )
    return Journal(in_log, opener)


def _owner_of(state: State, lease: str) -> str | None:
    entry = state.leases.get(LeaseId(lease))
    if entry is None:
        return None
    record = state.records.get(entry.lease.holder or JobId(""))
    return entry.session if record is None else record.owner


def _job_owner_of(state: State, holder: str) -> JobOwner | None:
    record = state.records.get(JobId(holder))
    if record is None:
        return None
    return JobOwner(record.owner, record.tenant, record.key)


def _run_tenant_of(state: State, run: str) -> str | None:
    promise = state.memory.values.get(RUN + run)
    return read_run(promise).tenant if isinstance(promise, str) else None


def _only_loopback_without_keys(settings: DaemonSettings, authorizer: Authorizer) -> None:
    if settings.keys is not None and not authorizer.has_keys:
        text = f"the keys file {settings.keys.name} does not exist; create it with `ssgmd keys add`"
        raise AppError(ErrorCode.NOT_FOUND, text)
    if settings.join_iam is not None and not authorizer.has_keys:
        text = (
            "--join-iam needs a keys file: without keys, every program of this machine is a host;"
        )
        raise AppError(ErrorCode.DENIED, f"{text} create it with `ssgmd keys add`")
    outside = [a for a in (settings.listen, settings.http) if not is_loopback(parse_address(a)[0])]
    if authorizer.has_keys:
        if outside and settings.tls is None:
            text = "keys and secrets of leases cross the network unencrypted: no TLS certificate"
            if settings.join_iam is not None:
                raise AppError(
                    ErrorCode.DENIED, f"--join-iam needs --tls-cert and --tls-key: {text}"
                )
            logger.warning(text, extra={"event": "no_tls", "endpoints": outside})
        return
    if outside:
        text = f"{outside[0]} can be reached from other machines, and there are no keys yet; "
        text += "create them with `ssgmd keys add`, or listen on 127.0.0.1"
        raise AppError(ErrorCode.DENIED, text)
    logger.warning("no keys: only this machine is served", extra={"event": "no_keys"})


@contextlib.contextmanager
def using_folder(folder: Path) -> Iterator[None]:
    """Translate an OSError of the state folder: EXHAUSTED for a full disk, INVALID otherwise."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = f"cannot use {folder} as the state folder: {error.strerror or error}"
        raise AppError(ErrorCode.EXHAUSTED if full else ErrorCode.INVALID, text) from error
