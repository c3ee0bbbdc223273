"""The environment of the user's script: built from empty, not inherited.

Later layers win: the platform's few, the user's own, SCAR's, the session's, the middleware's. No
layer holds the function's credentials, its tokens or the runner's settings.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from contract.parameters import METADATA
from contract.record import JsonObject
from lambda_functions.gpu_runner.errors import EnvelopeError
from lambda_functions.gpu_runner.sandbox import Workspace
from remote_gpu.wire.errors import WireError
from remote_gpu.wire.variables import allowed_variables

#: The parent folder of this package: the task root in Lambda, from which `remote_gpu` is imported.
IMPORT_ROOT = Path(__file__).resolve().parents[3]

#: Copied from the function's own environment where set: search paths and harmless facts.
_PASSED = (
    "LD_LIBRARY_PATH",
    "LAMBDA_TASK_ROOT",
    "DATA_DIR",  # of a run on the host of its device, with declared data sets
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_LAMBDA_FUNCTION_NAME",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
    "TZ",
)
#: Of the devices of a lease, on their host.
_PASSED_PREFIX = "CUDA_"
_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/bin"
#: Lambda's folders for the packages of a Python function's layers.
_LAYERS = (
    "/opt/python",
    f"/opt/python/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages",
)
#: Variables that the runner sets for some runs alone: by their absence a script learns that it has
#: none, so no value of the user's takes their place.
SET_AT_TIMES = (
    METADATA,
    "RESULT_FILE",
    "RUN_DIR",
    "TRACEPARENT",
    "PROGRESS_FILE",
    "CHECKPOINT_DIR",
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def base_variables(workspace: Workspace) -> dict[str, str]:
    """The platform's variables, with every writable folder inside the workspace."""
    found = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIX)
    }
    path = os.environ.get("PATH") or _PATH
    runtime = str(Path(sys.executable).parent)  # makes `python3` the function's own interpreter
    if runtime not in path.split(":"):
        path = f"{runtime}:{path}"
    return found | {
        "PATH": path,
        "HOME": str(workspace.root),
        "TMPDIR": str(workspace.root),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",  # the output before a kill is not lost
    }


def container_variables(workspace: Workspace) -> dict[str, str]:
    """The platform's variables in a container, whose image has the others."""
    names = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_LAMBDA_FUNCTION_NAME")
    found = {name: os.environ[name] for name in names if name in os.environ}
    return found | {"HOME": str(workspace.root), "TMPDIR": "/tmp"}  # noqa: S108 - the container's


def user_variables(variables: Mapping[str, object] | None) -> dict[str, str]:
    """The user's own variables from the FDL, without names that the runner alone may set.

    Raises EnvelopeError on one that is not valid.
    """
    checked: dict[str, str] = {}
    for name, value in (variables or {}).items():
        if not _NAME.fullmatch(name) or not isinstance(value, str) or "\0" in value:
            raise EnvelopeError(f"variable {name!r} of the function is not a name with a string")
        if name not in SET_AT_TIMES:
            checked[name] = value
    return checked


def scar_variables(
    workspace: Workspace, *, input_file: Path, key: str, event: JsonObject
) -> dict[str, str]:
    """The variables of SCAR's supervisor: paths, the key, the event and its time; RUN_DIR."""
    records = event.get("Records") or [{}]
    return {
        "INPUT_FILE_PATH": str(input_file),
        "TMP_INPUT_DIR": str(workspace.input),
        "TMP_OUTPUT_DIR": str(workspace.output),
        "STORAGE_OBJECT_KEY": key,
        "EVENT": json.dumps(event, ensure_ascii=True),
        "EVENT_TIME": str(records[0].get("eventTime", "")),
        **({} if workspace.run is None else {"RUN_DIR": str(workspace.run)}),
    }


def middleware_variables(middleware: str, variables: Mapping[str, str]) -> dict[str, str]:
    """An envelope's variables for its middleware. Raises EnvelopeError on one not allowed."""
    try:
        return allowed_variables(middleware, variables)
    except WireError as error:
        raise EnvelopeError(str(error)) from None


def merged(*layers: Mapping[str, str], own_packages: bool = True) -> dict[str, str]:
    """All layers in one environment, later ones over earlier ones.

    With `own_packages`, PYTHONPATH has those of all layers, then the import path of the function
    itself: the task root, Lambda's layers and the runtime's packages.
    """
    result: dict[str, str] = {}
    for layer in layers:
        result.update(layer)
    if not own_packages:
        return result
    paths = [layer["PYTHONPATH"] for layer in layers if layer.get("PYTHONPATH")]
    runtime = os.environ.get("LAMBDA_RUNTIME_DIR", "")
    layers_of_lambda = [path for path in _LAYERS if Path(path).is_dir()]
    own = [str(IMPORT_ROOT), *layers_of_lambda, *([runtime] if runtime else [])]
    result["PYTHONPATH"] = ":".join([*paths, *own])
    return result
