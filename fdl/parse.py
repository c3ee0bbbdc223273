"""Text → `model.Document`: composed, older shapes rewritten, then read key by key."""

from __future__ import annotations

import dataclasses

from fdl.compose import compose
from fdl.keys import DOCUMENT
from fdl.migrate import migrate
from fdl.model import Document
from fdl.reference import belongs
from fdl.schema import Faulty, Reading


def parse(data: bytes | str, name: str = "fdl.yaml") -> Document:
    """The declared document. Raises AppError(INVALID) with file:line:column and an excerpt.

    `name` is what error messages call the file. Nothing else is ever raised, whatever `data` holds.
    """
    composed = compose(data, name)
    reading = Reading(source=composed.source, elsewhere=belongs)
    try:
        root, rewrites = migrate(composed.root, reading)
        document: Document = DOCUMENT.read(root, "", reading)
        reading.end(0)
    except Faulty:
        raise reading.together() from None
    return dataclasses.replace(
        document,
        source=composed.source,
        locations=dict(reading.locations),
        rewrites=rewrites,
        idle=tuple(reading.idle),
    )
