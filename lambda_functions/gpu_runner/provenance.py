"""The provenance of one attempt: its input, and the data, operations and versions that it used."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable
from pathlib import Path

from contract.provenance import RELEASE
from contract.record import JsonObject
from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed
from remote_gpu.wire.uses import HOST_KINDS, USES_VARIABLE, lacks_in

#: Of the notes of the user's programs, which are not trusted; lines beyond it are left out.
_BYTES_MAX = 256 * 1024
#: Entries of one list, and characters of one text: results are read whole.
_ENTRIES_MAX, _CHARS_MAX = 100, 500


class Collected:
    """Collects the provenance of an attempt. `folder`: its workspace."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / ".orchgpu-uses"
        self._file.touch()
        self._input = hashlib.sha256()
        self._input_read = False

    @property
    def variables(self) -> dict[str, str]:
        """Name the file in which the devices of the user's programs note what they used."""
        return {USES_VARIABLE: str(self._file)}

    def input_begins(self) -> None:
        """The input is read from its beginning."""
        self._input, self._input_read = hashlib.sha256(), False

    def input_part(self, chunk: bytes) -> None:
        """The next bytes of the input, as they are stored."""
        self._input.update(chunk)
        self._input_read = True

    def provenance(
        self, known: JsonObject | None, size: int, masked: Callable[[str], str]
    ) -> JsonObject:
        """The whole, from the envelope's part and what was seen. `masked` hides secrets."""
        complete = self._input_read or size == 0
        seen: JsonObject = {"versions": {"runner": RELEASE, "python": platform.python_version()}}
        if complete:
            seen["input"] = {"sha256": self._input.hexdigest()}
        return json_masked(merged(merged(known or {}, seen), self._uses()), masked)

    def lacks(self) -> dict[str, list[str]]:
        """The data sets and programs that a host did not have, by kind."""
        found: dict[str, list[str]] = {}
        for line in self._lines():
            for kind, name in lacks_in(line).items():
                names = found.setdefault(kind, [])
                if name not in names and len(names) < _ENTRIES_MAX:
                    names.append(name)
        return found

    def explain(self, failure: AttemptFailed) -> None:
        """Give a failed script the reason NOT_ON_HOST, if a host lacked what it asked for."""
        lacks = self.lacks()
        if failure.reason is Reason.EXIT_NONZERO and lacks:
            named = ", ".join(f"{kind} {', '.join(names)}" for kind, names in lacks.items())
            failure.reason = Reason.NOT_ON_HOST
            failure.detail = f"its host has no {named}: {failure.detail}"

    def _uses(self) -> JsonObject:
        operations: list[JsonObject] = []
        resources: list[JsonObject] = []
        host: dict[str, dict[str, str]] = {kind: {} for kind in HOST_KINDS}
        for line in self._lines():
            if "operation" in line and len(operations) < _ENTRIES_MAX:
                _add(operations, name=line["operation"], implementation=line.get("implementation"))
            elif "resource" in line and len(resources) < _ENTRIES_MAX:
                digest = str(line["resource"]).removeprefix("sha256:")
                _add(resources, type=line.get("type"), sha256=digest, source=line.get("source"))
            for kind, names in host.items():
                found = line.get(kind)
                for name, digest in (found if isinstance(found, dict) else {}).items():
                    if len(names) < _ENTRIES_MAX:
                        names[str(name)[:_CHARS_MAX]] = str(digest)[:_CHARS_MAX]
        uses = {"operations": operations, "resources": resources, **host}
        return {name: value for name, value in uses.items() if value}

    def _lines(self) -> list[JsonObject]:
        """The notes of all programs of the attempt; a line that is not an object is passed over."""
        try:
            with self._file.open("rb") as file:
                whole = file.read(_BYTES_MAX).rpartition(b"\n")[0]
        except OSError:  # a program removed it
            return []
        found = []
        for text in whole.splitlines():
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict):
                found.append(line)
        return found


def _add(entries: list[JsonObject], **values: object) -> None:
    entry = {name: str(value)[:_CHARS_MAX] for name, value in values.items() if value}
    if entry not in entries:
        entries.append(entry)


def merged(first: JsonObject, more: JsonObject) -> JsonObject:
    """Both parts; where both have an object, its keys are those of both, and `more` wins."""
    found = dict(first)
    for name, value in more.items():
        known = found.get(name)
        inner = known if isinstance(known, dict) and isinstance(value, dict) else None
        found[name] = value if inner is None else {**inner, **value}
    return found


def json_masked(value: JsonObject, masked: Callable[[str], str]) -> JsonObject:
    """The same JSON, with every text masked."""

    def walk(part: object) -> object:
        if isinstance(part, str):
            return masked(part)
        if isinstance(part, dict):
            return {name: walk(inner) for name, inner in part.items()}
        return [walk(inner) for inner in part] if isinstance(part, list) else part

    return {name: walk(part) for name, part in value.items()}
