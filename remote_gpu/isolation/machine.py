"""The isolation of this host's leases: probed, decided and logged when gpud starts."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from corekit.errors import AppError, ErrorCode, invalid
from remote_gpu.isolation import places, probe
from remote_gpu.isolation.policy import IsolationPolicy, IsolationSetting, MachineFacts, decide

logger = logging.getLogger(__name__)


def find_policy(
    setting: IsolationSetting, host: places.HostFiles, *, secret: Iterable[Path], kept: Path
) -> IsolationPolicy:
    """The policy for this machine, which is logged. `secret`: files and folders that no lease may
    read; `kept`: the tenants' folder.

    Raises AppError: UNAVAILABLE under `require` where the machine has too few mechanisms, INVALID
    when a secret file lies in a folder that leases may read.
    """
    programs = bool(host.programs)
    kernels = importlib.util.find_spec("pyopencl") is not None
    if setting is IsolationSetting.NONE:
        policy = decide(MachineFacts(), setting, programs=programs, kernels=kernels)
        logger.warning(
            "leases are not isolated: a tenant's code can read and change everything on this host",
            extra={"event": "isolation", "setting": setting.value},
        )
        return policy
    _check_apart(secret, host)
    read = places.libraries()
    facts = probe.ask([*read, *host.data, *host.programs, kept])
    policy = decide(facts, setting, programs=programs, kernels=kernels)
    _log(policy, facts, setting, programs=programs)
    why = policy.kernels_refused or (policy.programs_refused if programs else "")
    if setting is IsolationSetting.REQUIRE and why:
        raise AppError(ErrorCode.UNAVAILABLE, f"--isolation require: {why}")
    if policy.users:
        _warn_of_unreadable(host.data)
    return policy


def _check_apart(secret: Iterable[Path], host: places.HostFiles) -> None:
    for path in secret:
        if (folder := places.read_by_leases(path, host)) is not None:
            raise invalid(
                f"{path} lies in {folder}, which every lease may read; move it to another folder"
            )


def _log(
    policy: IsolationPolicy, facts: MachineFacts, setting: IsolationSetting, *, programs: bool
) -> None:
    about = {
        "event": "isolation",
        "setting": setting.value,
        "mechanisms": policy.mechanisms,
        "missing": dict(facts.why),
    }
    logger.info("leases are isolated by the mechanisms of this machine", extra=about)
    if policy.kernels_refused:
        text = "kernels on CPUs and the operation exec are refused"
        logger.warning(text, extra={"event": "isolation", "why": policy.kernels_refused})
    elif policy.programs_refused and programs:
        text = "the operation exec is refused"
        logger.warning(text, extra={"event": "isolation", "why": policy.programs_refused})


def _warn_of_unreadable(data: Iterable[Path]) -> None:
    for path in data:
        if not path.stat().st_mode & os.R_OK:  # the bit for others has this value
            text = "the users of leases may not read this data; run: chmod -R o+rX"
            logger.warning(text, extra={"event": "isolation", "data": str(path)})
