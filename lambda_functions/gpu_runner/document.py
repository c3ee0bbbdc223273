"""The document of a result: JSON that the user's code writes to RESULT_FILE.

It is data for readers of the result (`when:` of a workflow, people), so it is small, and checked
like any other file of the user's: a job whose document is not valid has failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from contract.record import JsonObject
from contract.result import DOCUMENT_BYTES_MAX
from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed
from lambda_functions.gpu_runner.provenance import json_masked
from lambda_functions.gpu_runner.sandbox import open_plain

VARIABLE = "RESULT_FILE"
#: Objects and arrays inside each other: every reader of the result must follow them.
DEPTH_MAX = 32


def place_in(folder: Path) -> Path:
    """The file of a job, in its folder."""
    return folder / ".orchgpu-result.json"


def read_document(file: Path, masked: Callable[[str], str] = str) -> JsonObject | None:
    """The document; None where the code wrote none. `masked` hides secrets.

    Raises AttemptFailed(OUTPUT_ERROR) for a file that is not a JSON object, or too large.
    """
    try:
        data = _read(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        _fail(f"cannot be read: {error.strerror}")
    try:
        value = json.loads(data, parse_constant=_refused, parse_int=_integer)
        if not isinstance(value, dict):
            _fail("is not a JSON object")
        if _depth(value) > DEPTH_MAX:
            _fail(f"is nested over {DEPTH_MAX} deep")
        found: JsonObject = json_masked(value, masked)
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is not text
        size = len(json.dumps(found, separators=(",", ":"), allow_nan=False))
    except (ValueError, RecursionError) as error:
        if len(data) > DOCUMENT_BYTES_MAX:
            _fail(f"is larger than {DOCUMENT_BYTES_MAX} bytes")
        _fail(f"is not JSON: {error}")
    if size > DOCUMENT_BYTES_MAX:
        _fail(f"has {size} bytes, more than {DOCUMENT_BYTES_MAX}: write large data as an output")
    return found


def _read(file: Path) -> bytes:
    with open_plain(file) as opened:
        if opened is None:
            _fail("is not a plain file")
        return opened.read(DOCUMENT_BYTES_MAX * 2 + 1)


def _integer(text: str) -> int:
    """Readers in other languages, and ours in C, have 64 bits."""
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{text[:20]}… does not fit into 64 bits")
    return number


def _refused(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number of JSON")


def _depth(value: object) -> int:
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        one, depth = waiting.pop()
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        deepest = max(deepest, depth)
        waiting += [(child, depth + 1) for child in inner if isinstance(child, dict | list)]
    return deepest


def _fail(detail: str) -> NoReturn:
    raise AttemptFailed(Reason.OUTPUT_ERROR, f"the result document ({VARIABLE}) {detail}")
