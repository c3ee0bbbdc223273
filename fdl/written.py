"""The part of a file that declares one function, as it was written, without values in clear."""

from __future__ import annotations

import re
from collections.abc import Iterator

from corekit.clear_secrets import sounds_secret
from corekit.values import Value
from fdl.model import Document
from fdl.text.compose import Comment, Composed, compose
from fdl.text.nodes import Entry, Mapping, Node, Scalar, Sequence

#: The value of a variable may be a secret, whatever its name.
_VARIABLES = re.compile("variables|environment", re.IGNORECASE)
#: Under this key are references to secrets, which name a place and are none themselves.
_REFERENCES = "secrets"
_MASK = "***"
#: The text of a line without its indentation: lines stay where they are.
_LINE = re.compile(r"\S.*")


class Written(Value):
    """The lines of one function in its file."""

    file: str
    line: int  #: of the first one
    text: str


def written(document: Document, name: str) -> Written | None:
    """The lines of the deployed function or group of that name; None: the file lacks it.

    Values of variables, of keys that sound secret, and comments about such are `***`.
    """
    members = [
        at
        for at, function in enumerate(document.functions.aws)
        if name == (function.group or function.name)
    ]
    if not members:
        return None
    source = document.source
    lines = _masked(compose(source.text, source.name)).splitlines()
    begins = [document.location(f"functions.aws[{at}]").line for at in range(_count(document))]
    if not all(lines[line - 1].lstrip().startswith("-") for line in begins):
        return Written(file=source.name, line=1, text="\n".join(lines))  # an older shape: no list
    ends = [*begins[1:], len(lines) + 1]
    parts = ["\n".join(lines[begins[at] - 1 : ends[at] - 1]).rstrip() for at in members]
    return Written(file=source.name, line=begins[members[0]], text="\n".join(parts))


def _count(document: Document) -> int:
    return len(document.functions.aws)


def _masked(composed: Composed) -> str:
    """The text with `***` in place of what may be secret."""
    text = composed.source.text
    scalars = list(_scalars(composed.root, hidden=False))
    spans = [span for hidden, span in zip(scalars, composed.spans, strict=True) if hidden]
    spans += [_span(text, one) for one in composed.comments() if sounds_secret(one.text)]
    for start, end in sorted(spans, reverse=True):
        text = text[:start] + _LINE.sub(_MASK, text[start:end]) + text[end:]
    return text


def _scalars(node: Node, *, hidden: bool) -> Iterator[bool]:
    """Of every scalar, in the order of the text, whether it is hidden."""
    match node:
        case Scalar():
            yield hidden
        case Sequence():
            for item in node.items:
                yield from _scalars(item, hidden=hidden)
        case Mapping():
            for entry in node.entries:
                yield False  # the key
                yield from _scalars(entry.value, hidden=hidden or _hides(entry))


def _hides(entry: Entry) -> bool:
    if entry.key == _REFERENCES:
        return False
    return bool(_VARIABLES.search(entry.key) or sounds_secret(entry.key))


def _span(text: str, comment: Comment) -> tuple[int, int]:
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: comment.at.line - 1])) + comment.at.column - 1
    return start, start + len(comment.text)
