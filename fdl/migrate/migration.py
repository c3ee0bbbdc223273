"""One pass of rewriting over one file: its warnings, and the origin of each key.

The steps of `fdl.migrate` and its neighbours work on this; all of them turn nodes into nodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fdl.model import Rewrite
from fdl.schema.schema import Reading
from fdl.text.nodes import Location, Mapping, Node, Scalar, Sequence

#: Needs no quotes anywhere in YAML.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*")


@dataclass(slots=True)
class Migration:
    """One pass over one file."""

    reading: Reading
    rewrites: list[Rewrite] = field(default_factory=list)
    #: Name of an old `storages:` entry → its type.
    storages: dict[str, str] = field(default_factory=dict)

    def warn(self, path: str, at: Location, message: str) -> None:
        """Warn that something is read as something else; the path is shown as it was written."""
        written = self.reading.written(path)
        self.rewrites.append(Rewrite(path=written, at=at, message=message))

    def moved(self, path: str, origin: str) -> None:
        """Map a path as it is read to its origin in the file, which messages name."""
        self.reading.origins[path] = self.reading.written(origin)


def text(value: object, at: Location) -> Scalar:
    """A new scalar; quoted when it would mean something else in plain."""
    return Scalar(text=str(value), plain=_PLAIN.fullmatch(str(value)) is not None, at=at)


def scalar_text(node: Node | None) -> str | None:
    """The text of a scalar that is not empty."""
    return node.text if isinstance(node, Scalar) and not node.is_null else None


def with_elements(functions: Mapping, elements: tuple[Node, ...], at: Location) -> Mapping:
    """`functions` with more elements at the end of `aws`."""
    aws = functions.child("aws")
    if isinstance(aws, Sequence):
        return functions.with_entry("aws", Sequence(items=(*aws.items, *elements), at=aws.at))
    if isinstance(aws, Mapping) or scalar_text(aws) is not None:
        return functions  # an error of the reader
    return functions.with_entry("aws", Sequence(items=elements, at=at))


def elements_of(functions: Mapping) -> int:
    """The number of elements of `functions.aws`."""
    aws = functions.child("aws")
    return len(aws.items) if isinstance(aws, Sequence) else 0
