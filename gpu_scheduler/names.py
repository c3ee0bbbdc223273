"""Rules of names: of a tenant, a model, a job, a request, a session, a device, a warm key.

Names are kept in the journal, compared, and shown in terminals and logs: they are short, and have
no character that moves the cursor, turns the direction of writing or cannot be seen. Pure.
"""

from __future__ import annotations

import re

from corekit.errors import invalid
from corekit.values import Meta

#: Ids are names, not texts; ours have fewer than 100 characters.
NAME_CHARS_MAX = 256
#: Controls, invisible spaces and joiners, marks of direction, line separators.
_UNSEEN = r"\u0000-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
#: The same rule for JSON Schema, whose texts have no half characters.
NAME_PATTERN = f"^[^{_UNSEEN}]*$"
_SEEN = re.compile(rf"[^{_UNSEEN}\ud800-\udfff]*")


def name_problem(name: str, at_least: int = 1) -> str | None:
    """The part of a sentence that follows the name of the field; None: it is a valid name."""
    if not at_least <= len(name) <= NAME_CHARS_MAX:
        return f"must have {at_least} to {NAME_CHARS_MAX} characters, not {len(name)}"
    if not (name.isascii() and name.isprintable()) and not _SEEN.fullmatch(name):
        return f"{ascii(name)[:80]} has characters that cannot be seen"
    return None


def name_problem(what: str, name: str, *, at_least: int = 1) -> str | None:
    """The sentence about a name that is not valid; `what` is its subject."""
    problem = name_problem(name, at_least)
    return None if problem is None else f"{what} {problem}"


def named(what: str, name: str | None) -> None:
    """Raises INVALID for a name that is not valid; None may be left out."""
    problem = None if name is None else name_problem(what, name)
    if problem is not None:
        raise invalid(problem)


#: The limits of a field that holds a name: `Annotated[str, NAME]`.
NAME = Meta(
    min_length=1,
    max_length=NAME_CHARS_MAX,
    extra_json_schema={"pattern": NAME_PATTERN},
    extra={"problem": name_problem},
)
