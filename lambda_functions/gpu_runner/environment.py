"""What the user's script finds in its environment; built from empty, never inherited.

Later layers win: the platform's few, the user's own, SCAR's, the session's, the middleware's. The
function's credentials, its tokens and our settings are in none of them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambda_functions.gpu_runner.errors import EnvelopeError
from lambda_functions.gpu_runner.workspace import Workspace
from remote_gpu.wire.errors import WireError
from remote_gpu.wire.variables import allowed_variables

#: Where this package lies in: the task root in Lambda. `import remote_gpu.client` works from it.
IMPORT_ROOT = Path(__file__).resolve().parents[2]

#: Taken over from the function's own environment where set: search paths and harmless facts.
_PASSED = (
    "LD_LIBRARY_PATH",
    "LAMBDA_TASK_ROOT",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_LAMBDA_FUNCTION_NAME",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
    "TZ",
)
_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/bin"
#: Where Lambda looks for the packages of a Python function's layers.
_LAYERS = (
    "/opt/python",
    f"/opt/python/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages",
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def base_variables(workspace: Workspace) -> dict[str, str]:
    """The platform's variables, with every writable place inside the workspace."""
    found = {name: os.environ[name] for name in _PASSED if name in os.environ}
    path = os.environ.get("PATH") or _PATH
    runtime = str(Path(sys.executable).parent)  # `python3` is the function's own interpreter
    if runtime not in path.split(":"):
        path = f"{runtime}:{path}"
    return found | {
        "PATH": path,
        "HOME": str(workspace.root),
        "TMPDIR": str(workspace.root),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",  # a script that is killed has still said what it said
    }


def user_variables(variables: Mapping[str, Any] | None) -> dict[str, str]:
    """The user's own from the FDL, as declared. Raises EnvelopeError on what is no variable."""
    for name, value in (variables or {}).items():
        if not _NAME.fullmatch(name) or not isinstance(value, str) or "\0" in value:
            raise EnvelopeError(f"variable {name!r} of the function is not a name with a string")
    return dict(variables or {})


def scar_variables(
    workspace: Workspace, *, input_file: Path, key: str, event: Mapping[str, Any]
) -> dict[str, str]:
    """What SCAR's supervisor gives a script: paths, the key, the event with its time."""
    records = event.get("Records") or [{}]
    return {
        "INPUT_FILE_PATH": str(input_file),
        "TMP_INPUT_DIR": str(workspace.input),
        "TMP_OUTPUT_DIR": str(workspace.output),
        "STORAGE_OBJECT_KEY": key,
        "EVENT": json.dumps(event, ensure_ascii=True),
        "EVENT_TIME": str(records[0].get("eventTime", "")),
    }


def middleware_variables(middleware: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Those of an envelope that its middleware may set. Raises EnvelopeError on any other."""
    try:
        return allowed_variables(middleware, variables)
    except WireError as error:
        raise EnvelopeError(str(error)) from None


def merged(*layers: Mapping[str, str]) -> dict[str, str]:
    """The layers one over the other; every PYTHONPATH is kept, before what the function's own code
    imports from: the task root, the layers, and the runtime's packages, as in the function itself.
    """
    result: dict[str, str] = {}
    for layer in layers:
        result.update(layer)
    paths = [layer["PYTHONPATH"] for layer in layers if layer.get("PYTHONPATH")]
    runtime = os.environ.get("LAMBDA_RUNTIME_DIR", "")
    layers_of_lambda = [path for path in _LAYERS if Path(path).is_dir()]
    own = [str(IMPORT_ROOT), *layers_of_lambda, *([runtime] if runtime else [])]
    result["PYTHONPATH"] = ":".join([*paths, *own])
    return result
