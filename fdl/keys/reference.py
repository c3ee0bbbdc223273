"""Every key with its meaning, from the tables that read it: `fdl explain`, the page's table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import msgspec

from corekit.errors import AppError, ErrorCode
from corekit.suggest import did_you_mean
from corekit.units import format_duration
from fdl.keys.document import DOCUMENT, ELEMENT, Element
from fdl.keys.oscar import OSCAR_SERVICE
from fdl.keys.workflows import WORKFLOW, Workflows
from fdl.model import LAMBDA_TIMEOUT_S_MAX
from fdl.schema.schema import Block, Key, ListOf, MapOf, Only, Reader

#: Of a key that placement_hint in several places, so many are named.
_PLACES_NAMED_MAX = 2


class KeyStatus(StrEnum):
    """The treatment of a key."""

    SUPPORTED = "supported"
    TRANSLATED = "translated"  #: rewritten before it is read, with a warning
    REFUSED = "refused"  #: known, and an error that names the key to write instead
    NO_EFFECT = "no effect"  #: SCAR's, accepted without effect; lint reports it


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """One key."""

    path: str  #: `functions.aws[].lambda.memory`
    key: Key
    default: str  #: for people; "" = none
    block: bool  #: it holds further keys

    @property
    def short(self) -> str:
        """The path without the list of functions: `lambda.memory`."""
        return self.path.removeprefix("functions.aws[].")

    @property
    def status(self) -> KeyStatus:
        if self.key.refused:
            return KeyStatus.REFUSED
        if self.key.becomes or self.key.dropped:
            return KeyStatus.TRANSLATED
        return KeyStatus.NO_EFFECT if self.key.ignored else KeyStatus.SUPPORTED

    @property
    def works(self) -> bool:
        """Whether the key has an effect in the right block."""
        return self.status in (KeyStatus.SUPPORTED, KeyStatus.TRANSLATED) and not self.key.dropped

    @property
    def meaning(self) -> str:
        """One or two sentences."""
        about = self.key.about
        if self.key.refused:
            return f"{about} {_sentence(self.key.refused)}".strip()
        if self.status is KeyStatus.TRANSLATED:
            becomes = f"Becomes: {self.key.becomes}." if self.key.becomes else ""
            dropped = f"Left out: {self.key.dropped}." if self.key.dropped else ""
            return " ".join(part for part in (about, becomes, dropped) if part)
        return about

    def text(self) -> str:
        """All of it, for a terminal."""
        lines = [self.path, f"  {self.meaning}" if self.meaning else ""]
        if not self.key.refused:
            lines.append(f"  value: {self.key.reader.describe()}")
        if self.key.required:
            lines.append("  required")
        elif self.default:
            lines.append(f"  default: {self.default}")
        lines.append(f"  {self.status.value}")
        return "\n".join(line for line in lines if line).replace("`", "'")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


@cache
def known_keys() -> tuple[KnownKey, ...]:
    """All keys of a document, depth first, in the order of the tables."""
    return tuple(_keys(DOCUMENT, ""))


def _keys(block: Block[object], path: str) -> Iterator[KnownKey]:
    for name, key in block.keys.items():
        inner = f"{path}.{name}" if path else name
        below, suffix = _inside(key.reader)
        yield KnownKey(
            path=inner, key=key, default=_default(block, name, key), block=below is not None
        )
        if below is not None and not (key.becomes or key.dropped or key.refused):
            yield from _keys(below, inner + suffix)


def _inside(reader: Reader[object]) -> tuple[Block[object] | None, str]:
    """The block that a reader reads, if it reads one, and the continuation of its path."""
    match reader:
        case Block():
            return reader, ""
        case Element():
            return reader.block, ""
        case ListOf():
            block, suffix = _inside(reader.item)
            return block, "[]" + suffix
        case Only():
            only = Key(reader=reader.reader, about="Names and values, kept as they are written.")
            return Block(into=dict, keys={reader.key: only}), ""
        case Workflows():
            return WORKFLOW, ".NAME"
        case MapOf():
            block, suffix = _inside(reader.item)
            return block, ".NAME" + suffix if block is not None else ""
    return None, ""


def _default(block: Block[object], name: str, key: Key) -> str:
    if key.default is not None:
        return key.default
    of: Any = block.defaults or block.into
    wanted = key.to or name
    known = msgspec.structs.fields(of) if hasattr(of, "__struct_fields__") else ()
    fields: tuple[Any, ...] = dataclasses.fields(of) if dataclasses.is_dataclass(of) else known
    default = next((field.default for field in fields if field.name == wanted), None)
    return "" if default in (dataclasses.MISSING, msgspec.NODEFAULT) else _shown(default, wanted)


def _shown(value: object, name: str) -> str:
    if value is None or value in ("", ()):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value)
    if isinstance(value, (int, float)) and name.endswith("_s") and value > LAMBDA_TIMEOUT_S_MAX:
        return format_duration(value)
    return str(value)


def explain(word: str) -> tuple[KnownKey, ...]:
    """The keys that a word names: a whole path, or its end. Raises NOT_FOUND."""
    parts = tuple(_words(word))
    found = tuple(key for key in known_keys() if tuple(_words(key.path))[-len(parts) :] == parts)
    if not found:
        names = dict.fromkeys(
            name for key in known_keys() for name in (key.short, *_words(key.path))
        )
        hint = did_you_mean(word, names)
        raise AppError(ErrorCode.NOT_FOUND, f"no key is named {word[:60]!r}{hint}")
    return tuple(key for key in found if word in (key.path, key.short)) or found


def placement_hint(path: str, key: str) -> str:
    """The advice for a key that is unknown to the block at `path`, as the end of a sentence.

    Names only places where the key has an effect; "" where nothing is known of it.
    """
    if path == "functions" and key in ELEMENT.keys:
        return "; it belongs in an element of the list `functions.aws`, next to 'lambda'"
    if path == "functions":
        return "; a function is an element of the list `functions.aws`"
    named = [known for known in known_keys() if known.path.rpartition(".")[2] == key]
    working = [known for known in named if known.works]
    places = dict.fromkeys(_place(known) for known in working)
    if path.startswith("functions.oscar"):
        return "; write the function under `functions.aws` for it" if places else ""
    for known in named:
        if known.key.dropped and path.rpartition(".")[2] == "lambda":
            return f"; leave it out: {known.key.dropped}"
    if places:
        return f"; it belongs {' or '.join(list(places)[:_PLACES_NAMED_MAX])}"
    for known in named:
        if known.key.dropped:
            return f"; leave it out: {known.key.dropped}"
        if known.status is KeyStatus.NO_EFFECT:
            return "; leave it out: it has no effect"
        if known.status is KeyStatus.REFUSED:
            return f"; {_place(known)}: {known.key.refused}"
    if key in OSCAR_SERVICE.keys:
        service = OSCAR_SERVICE.keys[key]
        return f"; it is OSCAR's: {service.refused or f'leave it out, {service.about}'}"
    return ""


def _place(known: KnownKey) -> str:
    match known.path.rpartition(".")[0]:
        case "":
            return "at the top of the file"
        case "functions.aws[]":
            return "next to 'lambda'"
    return f"in {known.short.rpartition('.')[0].replace('[]', '')!r}"


def _words(path: str) -> list[str]:
    return path.replace("[]", "").split(".")


def table() -> str:
    """All keys as one Markdown table per block, for the page about definitions."""
    groups: dict[str, list[KnownKey]] = {}
    for known in known_keys():
        groups.setdefault(known.path.rpartition(".")[0], []).append(known)
    blocks: dict[str, str] = {}  #: the rows of a block, by its place; equal ones are printed once
    for path, keys in groups.items():
        if not _is_wrapper(keys):
            rows = _rows(keys)
            blocks[rows] = f"{blocks[rows]}, `{path}`" if rows in blocks else f"`{path or 'FILE'}`"
    return "\n\n".join(f"#### {places}\n\n{rows}" for rows, places in blocks.items())


def _is_wrapper(keys: list[KnownKey]) -> bool:
    """`environment: {Variables: …}`: its one key is listed with the block."""
    return [known.path.rpartition(".")[2] for known in keys] == ["Variables"]


def _rows(keys: list[KnownKey]) -> str:
    rows = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for known in keys:
        name = known.path.rpartition(".")[2]
        value = "" if known.key.refused else known.key.reader.describe()
        default = "**required**" if known.key.required else known.default
        status = "" if known.status is KeyStatus.SUPPORTED else f"*{known.status.value}.* "
        cells = (f"`{name}`", value, default, status + known.meaning)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)
