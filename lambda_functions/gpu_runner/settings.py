"""The settings of a function: the `ORCHGPU_*` variables that deploy sets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from contract.record import JsonObject
from contract.secrets.reference import VARIABLE
from lambda_functions.gpu_runner.errors import RunnerError
from lambda_functions.gpu_runner.script.endpoint import Terms
from lambda_functions.gpu_runner.script.environment import IMPORT_ROOT
from lambda_functions.gpu_runner.script.steps import Step, read_steps
from lambda_functions.gpu_runner.secrets.values import References
from lambda_functions.gpu_runner.storage.outputs import Destination

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The `ORCHGPU_*` variables of the function (docs/reference/function-runtime.md)."""

    mode: str | None  #: "job", "plain"; None: decided by the key of each event
    script: Path | None  #: None: the function was deployed without one
    threshold_s: float  #: SCAR's timeout_threshold: the least time kept back
    #: Of the function's timeout in Lambda: added to its own, for the wait for its device.
    advance_s: float = 0.0
    #: Between two checkpoints; 0 = the user's code has none.
    checkpoint_s: float = 0.0
    outputs: tuple[JsonObject, ...]  #: plain mode; `contract.envelope.Job.outputs`
    variables: Mapping[str, object]  #: plain mode; the user's own
    log_level: str
    handler: str = ""  #: module.function below `folder`: runs instead of a script
    folder: Path = IMPORT_ROOT
    group: tuple[Step, ...] = ()  #: the steps of a group, the first one first
    secrets: References = field(default_factory=dict)  #: step → variable → reference
    #: Descriptor of the host's socket, where the function is an image's command.
    container: int = -1
    endpoint: Terms | None = None  #: None: the function takes no calls
    account: str = ""  #: owner of the buckets; "" = deployed by an older version
    owners: Mapping[str, str] = field(default_factory=dict)  #: bucket → another account

    def steps(self, outputs: Sequence[JsonObject]) -> tuple[Step, ...]:
        """The group's steps, or the one step that writes to `outputs`."""
        if self.group:
            return self.group
        step = Step(
            name="",
            script=self.script,
            handler=self.handler,
            folder=self.folder,
            container=self.container >= 0,
            outputs=tuple(Destination.of(value) for value in outputs),
        )
        return (step,)


def read_settings(environ: Mapping[str, str], container: int = -1) -> Settings:
    """Decode the variables; `container`: as in `Settings`.

    Raises RunnerError naming the variable that is not valid.
    """
    mode = environ.get("ORCHGPU_MODE") or None
    if mode not in (None, "job", "plain"):
        raise RunnerError(f"ORCHGPU_MODE={mode!r} must be job or plain; deploy the function again")
    script = environ.get("ORCHGPU_SCRIPT")
    root = Path(environ.get("LAMBDA_TASK_ROOT") or IMPORT_ROOT)
    return Settings(
        mode=mode,
        script=root / script if script else None,
        threshold_s=_seconds(environ, "ORCHGPU_TIMEOUT_THRESHOLD_S"),
        advance_s=_seconds(environ, "ORCHGPU_ADVANCE_S"),
        checkpoint_s=_seconds(environ, "ORCHGPU_CHECKPOINT_S"),
        outputs=tuple(_json(environ, "ORCHGPU_OUTPUTS", list)),
        variables=_json(environ, "ORCHGPU_VARIABLES", dict),
        log_level=environ.get("ORCHGPU_LOG_LEVEL") or "INFO",
        handler=environ.get("ORCHGPU_HANDLER") or "",
        folder=root / "script",
        group=_group(root, environ.get("ORCHGPU_STEPS")),
        secrets=_secrets(environ),
        container=container,
        endpoint=_endpoint(environ),
        account=environ.get("ORCHGPU_ACCOUNT") or "",
        owners=_json(environ, "ORCHGPU_BUCKET_OWNERS", dict),
    )


def _endpoint(environ: Mapping[str, str]) -> Terms | None:
    idle_s, call_s = (_seconds(environ, f"ORCHGPU_ENDPOINT_{n}_S") for n in ("IDLE", "CALL"))
    calls_max = max(1, int(_seconds(environ, "ORCHGPU_ENDPOINT_CALLS_MAX")))
    return Terms(idle_s=idle_s, call_s=call_s, calls_max=calls_max) if idle_s else None


def _group(root: Path, name: str | None) -> tuple[Step, ...]:
    if not name:
        return ()
    try:
        return read_steps(root, (root / name).read_text("utf-8"))
    except OSError as error:
        raise RunnerError(
            f"the package lacks {name}: {error.strerror}; deploy the function again"
        ) from None


def _secrets(environ: Mapping[str, str]) -> References:
    found = _json(environ, VARIABLE, dict)
    texts = [text for step in found.values() if isinstance(step, dict) for text in step.values()]
    if not all(isinstance(step, dict) for step in found.values()) or not all(
        isinstance(text, str) for text in texts
    ):
        raise RunnerError(f"{VARIABLE} is not an object of references; deploy the function again")
    return found


def _seconds(environ: Mapping[str, str], name: str) -> float:
    try:
        return max(0.0, float(environ.get(name) or 0.0))
    except ValueError:
        raise RunnerError(f"{name}={environ[name]!r} is not a number of seconds") from None


def _json(environ: Mapping[str, str], name: str, kind: type[T]) -> T:
    try:
        value = json.loads(environ[name]) if environ.get(name) else kind()
    except ValueError:
        value = None
    if not isinstance(value, kind):
        word = "array" if kind is list else "object"
        raise RunnerError(f"{name} is not a JSON {word}; deploy the function again")
    return value
