"""Validation of names: of tenants, models, jobs, requests, sessions, devices, warm keys.

Names are kept in the journal, compared, and shown in terminals and logs: they are short, without
invisible characters, cursor movements and changes of the writing direction. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from corekit.errors import invalid
from corekit.values import Meta

#: Generated ids have fewer than 100 characters.
NAME_CHARS_MAX = 256
#: Controls, invisible spaces and joiners, marks of direction, line separators.
_INVISIBLE = r"\u0000-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
#: The same rule for JSON Schema, whose strings have no surrogates.
NAME_PATTERN = f"^[^{_INVISIBLE}]*$"
_VISIBLE = re.compile(rf"[^{_INVISIBLE}\ud800-\udfff]*")

#: Begins the model of every emulated device, so that none is mistaken for a real one.
EMULATED_PREFIX = "emulated "


def is_emulated(model: str) -> bool:
    """True for the model of an emulated device: calls take stated times there."""
    return model.startswith(EMULATED_PREFIX)


def name_problem(name: str, at_least: int = 1, at_most: int = NAME_CHARS_MAX) -> str | None:
    """The problem of a name, as the predicate of a sentence about it; None for a valid name."""
    if not at_least <= len(name) <= at_most:
        return f"must have {at_least} to {at_most} characters, not {len(name)}"
    if not (name.isascii() and name.isprintable()) and not _VISIBLE.fullmatch(name):
        return f"{ascii(name)[:80]} has invisible characters"
    return None


def named(what: str, name: str | None) -> None:
    """Raise INVALID for a name that is not valid; None, an absent name, is valid."""
    problem = None if name is None else name_problem(name)
    if problem is not None:
        raise invalid(f"{what} {problem}")


#: The limits of a field that holds a name: `Annotated[str, NAME]`.
NAME = Meta(
    min_length=1,
    max_length=NAME_CHARS_MAX,
    extra_json_schema={"pattern": NAME_PATTERN},
    extra={"problem": name_problem},
)

#: The programs by which a host states that it runs functions, that it runs images, and that the
#: operator lets these have a network.
HOST_RUNNER, HOST_CONTAINERS, HOST_IMAGES_NETWORK = (
    "function-runner",
    "containers",
    "images-network",
)
HOST_PROGRAMS = (HOST_RUNNER, HOST_CONTAINERS, HOST_IMAGES_NETWORK)

#: Images are named with their content's digest, so that a name means one image: one of a registry,
#: and a tar in S3. Its key has none of IAM's wildcards and variables: a role's statement names it.
_REGISTRY_IMAGE = r"[a-z0-9][\w.:/-]{0,400}@sha256:[0-9a-f]{64}"
_IMAGE_ARCHIVE = r"s3://([a-z0-9][a-z0-9.-]{1,62})/([^#*?$\s]{1,512})#sha256:([0-9a-f]{64})"
#: For JSON Schema too.
IMAGE_PATTERN = f"{_REGISTRY_IMAGE}|{_IMAGE_ARCHIVE}"


@dataclass(frozen=True, slots=True)
class ImageArchive:
    """A tar in S3, of `podman save` or `docker save`, with exactly one image."""

    bucket: str
    key: str
    sha256: str  #: of the whole file, hex


def archive_of(image: str) -> ImageArchive | None:
    """The archive that a reference names; None for an image of a registry.

    Raises INVALID for a text that is neither `name@sha256:…` nor `s3://bucket/key.tar#sha256:…`.
    """
    if found := re.fullmatch(_IMAGE_ARCHIVE, image, re.ASCII):
        return ImageArchive(*found.groups())
    if re.fullmatch(_REGISTRY_IMAGE, image, re.ASCII):
        return None
    raise invalid(
        f"image {image!r}: write name@sha256:… with 64 hex digits, or"
        " s3://bucket/key.tar#sha256:… for an archive"
    )


#: Begin of the ids of devices of a pool, whose hosts have not come: `pool/<name>/<host>/<index>`.
POOL = "pool/"

#: Begins the owner, behind its key, of a job whose orchestrator waits to be woken (op `hand_back`);
#: the name of the queue for its wake-ups follows.
AWAY = "away:"
_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,80}")


def away_of(session: str, queue: str) -> str:
    """The owner of what this session leaves. Raises INVALID for what is not a queue's name."""
    if not _QUEUE.fullmatch(queue):
        raise invalid(f"away: {queue!r:.100} is not the name of a queue")
    name, slash, _ = session.partition("/")
    return f"{name}/{AWAY}{queue}" if slash else AWAY + queue


def away_queue(owner: str | None) -> str:
    """The queue for wake-ups of an owner that is away; "" for any other."""
    last = (owner or "").rpartition("/")[2]
    return last.removeprefix(AWAY) if last.startswith(AWAY) else ""


def is_away(owner: str | None) -> bool:
    return away_queue(owner) != ""
