"""Every key with its meaning, from the tables that read it: `fdl explain`, the page's table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from corekit.errors import AppError, ErrorCode
from corekit.suggest import did_you_mean
from corekit.units import format_duration
from fdl.keys.document import DOCUMENT, Element
from fdl.migrate.oscar import OSCAR_SERVICE
from fdl.schema.scalars import Choice
from fdl.schema.schema import Block, Key, ListOf, MapOf, Only, Reader

#: Of a key that belongs in several places, so many are named.
_PLACES_NAMED_MAX = 2


class Standing(StrEnum):
    """What becomes of a key."""

    DONE = "done"
    TRANSLATED = "translated"  #: rewritten before it is read, with a warning
    REFUSED = "refused"  #: known, and an error that says what to write instead
    IDLE = "no effect"  #: SCAR's, read as it is and changing nothing here; lint says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One key."""

    path: str  #: `functions.aws[].lambda.memory`
    key: Key
    default: str  #: for people; "" = none
    block: bool  #: it holds further keys

    @property
    def short(self) -> str:
        """The path as people say it: `lambda.memory`."""
        return self.path.removeprefix("functions.aws[].")

    @property
    def standing(self) -> Standing:
        if self.key.refused:
            return Standing.REFUSED
        if self.key.becomes:
            return Standing.TRANSLATED
        return Standing.IDLE if self.key.idle else Standing.DONE

    @property
    def works(self) -> bool:
        """Whether something follows from writing it where it belongs."""
        if self.standing is Standing.TRANSLATED:
            return not self.key.becomes.startswith("left out")
        return self.standing is Standing.DONE

    @property
    def meaning(self) -> str:
        """One or two sentences."""
        about = self.key.about
        if self.key.refused:
            return f"{about} {_sentence(self.key.refused)}".strip()
        if self.key.becomes:
            return f"{about} Becomes: {self.key.becomes}."
        reader = self.key.reader
        by_reason: dict[str, list[str]] = {}
        for word, why in (reader.refused if isinstance(reader, Choice) else {}).items():
            by_reason.setdefault(why, []).append(f"`{word}`")
        refused = [f"Refused: {', '.join(words)}: {why}." for why, words in by_reason.items()]
        return " ".join([about, *refused])

    def text(self) -> str:
        """All of it, for a terminal."""
        lines = [self.path, f"  {self.meaning}" if self.meaning else ""]
        if not self.key.refused:
            lines.append(f"  value: {self.key.reader.words()}")
        if self.key.required:
            lines.append("  must be there")
        elif self.default:
            lines.append(f"  default: {self.default}")
        lines.append(f"  {self.standing.value}")
        return "\n".join(line for line in lines if line).replace("`", "'")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def known_keys() -> tuple[Known, ...]:
    """All keys of a document, depth first, in the order of the tables."""
    return tuple(_keys(DOCUMENT, ""))


def _keys(block: Block, path: str) -> Iterator[Known]:
    for name, key in block.keys.items():
        inner = f"{path}.{name}" if path else name
        below, suffix = _inside(key.reader)
        yield Known(
            path=inner, key=key, default=_default(block, name, key), block=below is not None
        )
        if below is not None and not key.becomes and not key.refused:
            yield from _keys(below, inner + suffix)


def _inside(reader: Reader) -> tuple[Block | None, str]:
    """The block that a reader reads, if it reads one, and how its path goes on."""
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
        case MapOf():
            return None, ""
    return None, ""


def _default(block: Block, name: str, key: Key) -> str:
    if key.default is not None:
        return key.default
    if not dataclasses.is_dataclass(block.into):
        return ""
    fields = {field.name: field for field in dataclasses.fields(block.into)}
    field = fields.get(key.to or name)
    if field is None or field.default is dataclasses.MISSING:
        return ""
    return _shown(field.default, key.to or name)


def _shown(value: Any, name: str) -> str:
    if value is None or value in ("", ()):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value)
    return format_duration(value) if name.endswith("_s") and value > 900 else str(value)


def explain(word: str) -> tuple[Known, ...]:
    """The keys that a word names: a whole path, or its end. Raises NOT_FOUND."""
    parts = tuple(_words(word))
    found = tuple(key for key in known_keys() if tuple(_words(key.path))[-len(parts) :] == parts)
    if not found:
        names = dict.fromkeys(
            name for key in known_keys() for name in (key.short, *_words(key.path))
        )
        hint = did_you_mean(word, names)
        raise AppError(ErrorCode.NOT_FOUND, f"there is no key {word[:60]!r}{hint}")
    exact = tuple(key for key in found if word in (key.path, key.short))
    return exact or found


def belongs(path: str, key: str) -> str:
    """How to go on with a key that the block at `path` does not know, as the end of a sentence.

    Names only places where the key has an effect; "" where nothing is known of it.
    """
    if path == "functions":
        return "; a function is an element of the list `functions.aws`"
    named = [known for known in known_keys() if known.path.rpartition(".")[2] == key]
    working = [known for known in named if known.works]
    places = dict.fromkeys(_place(known) for known in working)
    if path.startswith("functions.oscar"):
        return "; write the function under `functions.aws` for it" if places else ""
    if places:
        return f"; it belongs {' or '.join(list(places)[:_PLACES_NAMED_MAX])}"
    for known in named:
        if known.standing is Standing.TRANSLATED:
            old, _, instead = known.key.becomes.rpartition("left out: ")
            return f"; leave it out: {instead}" if not old and instead != known.key.becomes else ""
        if known.standing is Standing.IDLE:
            return "; leave it out: it has no effect"
        if known.standing is Standing.REFUSED:
            return f"; {_place(known)}: {known.key.refused}"
    if key in OSCAR_SERVICE.keys:
        service = OSCAR_SERVICE.keys[key]
        return f"; it is OSCAR's: {service.refused or f'leave it out, {service.about}'}"
    return ""


def _place(known: Known) -> str:
    match known.path.rpartition(".")[0]:
        case "":
            return "at the top of the file"
        case "functions.aws[]":
            return "beside 'lambda'"
    return f"in {known.short.rpartition('.')[0].replace('[]', '')!r}"


def _words(path: str) -> list[str]:
    return path.replace("[]", "").split(".")


def table() -> str:
    """All keys as one Markdown table per block, for the page about definitions."""
    groups: dict[str, list[Known]] = {}
    for known in known_keys():
        groups.setdefault(known.path.rpartition(".")[0], []).append(known)
    blocks = [_table(path, keys) for path, keys in groups.items() if not _is_wrapper(keys)]
    return "\n\n".join(blocks)


def _is_wrapper(keys: list[Known]) -> bool:
    """`environment: {Variables: …}`: its one key is told with the block."""
    return [known.path.rpartition(".")[2] for known in keys] == ["Variables"]


def _table(path: str, keys: list[Known]) -> str:
    title = f"`{path}`" if path else "The file"
    rows = ["| key | value | default | | meaning |", "| --- | --- | --- | --- | --- |"]
    for known in keys:
        name = known.path.rpartition(".")[2]
        value = "" if known.key.refused else known.key.reader.words()
        default = "**must be there**" if known.key.required else known.default
        cells = (f"`{name}`", value, default, known.standing.value, known.meaning)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return f"#### {title}\n\n" + "\n".join(rows)
