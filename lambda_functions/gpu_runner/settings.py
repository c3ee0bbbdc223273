"""What deploy set for this function, and how much of Lambda's time a run may use."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.timing import CAP_SLACK_S, kept_back
from lambda_functions.gpu_runner.environment import IMPORT_ROOT
from lambda_functions.gpu_runner.errors import RunnerError
from lambda_functions.gpu_runner.outputs import Destination
from lambda_functions.gpu_runner.steps import Step, read_steps

#: Of what is kept back, the part that a script has between SIGTERM and SIGKILL; the rest is ours.
GRACE_PART = 0.4
GRACE_S_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The `ORCHGPU_*` variables of the function (docs/function-runtime.md)."""

    mode: str | None  #: "job", "plain", or None: the key of each event says it
    script: Path | None  #: None: the function was deployed without one
    threshold_s: float  #: SCAR's timeout_threshold; a reserve is never below it
    outputs: tuple[Mapping[str, Any], ...]  #: plain mode; `contract.envelope.Job.outputs`
    variables: Mapping[str, Any]  #: plain mode; the user's own
    log_level: str
    handler: str = ""  #: module.function below `folder`: runs instead of a script
    folder: Path = IMPORT_ROOT
    group: tuple[Step, ...] = ()  #: the steps of a group, the first one first

    def steps(self, outputs: Sequence[Mapping[str, Any]]) -> tuple[Step, ...]:
        """What runs: the group's steps, or the one that writes to `outputs`."""
        if self.group:
            return self.group
        places = tuple(Destination.of(value) for value in outputs)
        return (
            Step(
                name="",
                script=self.script,
                handler=self.handler,
                folder=self.folder,
                outputs=places,
            ),
        )


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Decode them. Raises RunnerError naming the variable that is wrong."""
    mode = environ.get("ORCHGPU_MODE") or None
    if mode not in (None, "job", "plain"):
        raise RunnerError(f"ORCHGPU_MODE={mode!r} must be job or plain; deploy the function again")
    script = environ.get("ORCHGPU_SCRIPT")
    root = Path(environ.get("LAMBDA_TASK_ROOT") or IMPORT_ROOT)
    return Settings(
        mode=mode,
        script=root / script if script else None,
        threshold_s=_seconds(environ, "ORCHGPU_TIMEOUT_THRESHOLD_S"),
        outputs=tuple(_json(environ, "ORCHGPU_OUTPUTS", list, "[]")),
        variables=_json(environ, "ORCHGPU_VARIABLES", dict, "{}"),
        log_level=environ.get("ORCHGPU_LOG_LEVEL") or "INFO",
        handler=environ.get("ORCHGPU_HANDLER") or "",
        folder=root / "script",
        group=_group(root, environ.get("ORCHGPU_STEPS")),
    )


def _group(root: Path, name: str | None) -> tuple[Step, ...]:
    if not name:
        return ()
    try:
        return read_steps(root, (root / name).read_text("utf-8"))
    except OSError as error:
        raise RunnerError(f"the package lacks {name}: {error.strerror}") from None


def _seconds(environ: Mapping[str, str], name: str) -> float:
    try:
        return max(0.0, float(environ.get(name) or 0.0))
    except ValueError:
        raise RunnerError(f"{name}={environ[name]!r} is not a number of seconds") from None


def _json(environ: Mapping[str, str], name: str, kind: type, default: str) -> Any:
    try:
        value = json.loads(environ.get(name) or default)
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise RunnerError(f"{name} is not a JSON {kind.__name__}; deploy the function again")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """When things must be over, on the monotonic clock."""

    script_s: float  #: SIGTERM to the script
    grace_s: float  #: from SIGTERM to SIGKILL
    end_s: float  #: Lambda ends the function
    limit: str  #: where `script_s` comes from, for people

    @classmethod
    def left(cls, remaining_s: float, threshold_s: float = 0.0) -> Time:
        """Divide what remains at the start of an invocation."""
        now_s = time.monotonic()
        reserve_s, rule = kept_back(remaining_s, threshold_s)
        kept = f"timeout_threshold keeps {reserve_s:g} s"
        if rule != "timeout_threshold":
            kept = f"{'half' if rule == 'half' else f'{reserve_s:.1f} s'} is kept"
        return cls(
            limit=f"of the {remaining_s:.0f} s that the function's timeout gives a run, {kept} for"
            " outputs and result",
            script_s=now_s + remaining_s - reserve_s,
            grace_s=min(GRACE_S_MAX, GRACE_PART * reserve_s),
            end_s=now_s + remaining_s,
        )

    @property
    def cap_s(self) -> float:
        """For the session: seconds from now after which its hosts end the lease."""
        return max(0.0, self.end_s - time.monotonic()) + CAP_SLACK_S


def settings_of_process() -> Settings:
    """Those of this Lambda environment."""
    return read_settings(os.environ)
