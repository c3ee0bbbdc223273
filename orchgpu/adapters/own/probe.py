"""The verdict on a store that calls itself S3-compatible, from the outcome of a few calls. Pure.

A deploy does not rely on a store's name or version: it makes a bucket, tries what this product
needs of S3, and removes the bucket again (`orchgpu.adapters.own.trying`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from corekit.values import Value

#: Kinds of a plan's resources, and a property of its buckets, that a place may not have.
EXPIRY, VERSIONING = "expiry", "versioning"


class StoreFacts(Value):
    """The outcome of each call, as the store answered it."""

    winners: int  #: of `RACERS` simultaneous writes with `If-None-Match: *`, those that succeeded
    keeps_existing: (
        bool  #: a write with `If-None-Match: *` over an object is refused, by 412 or 409
    )
    keeps_changed: bool  #: a write with the `If-Match` of another etag is refused
    replaces_known: bool  #: a write with the `If-Match` of the newest etag succeeds
    reads_pinned: bool  #: a GET with the `If-Match` of another etag is refused
    versions: bool  #: a versioned bucket keeps and lists what was overwritten
    checks_owner: bool  #: a call that names another owner of the bucket is refused
    notifies: bool  #: a notification configuration is kept
    expires: bool  #: a lifecycle configuration is kept
    keeps_filled: bool  #: a bucket with objects cannot be deleted


class StoreVerdict(Value):
    """The consequences for a deployment."""

    refused: tuple[str, ...] = ()  #: reasons why the store cannot be used; empty = it can
    lacks: Mapping[str, str] = {}  #: kinds that plans leave out → the consequence
    notes: tuple[str, ...] = ()  #: what holds on AWS and not here

    @property
    def statements(self) -> tuple[str, ...]:
        """Everything a user should know of a store that is used."""
        return (*self.lacks.values(), *self.notes)


def judge(facts: StoreFacts) -> StoreVerdict:
    """The verdict. Results, claims and locks are conditional writes: without them two runs of a job
    could both be its result, and nothing could find out."""
    return StoreVerdict(
        refused=tuple(_refusals(facts)), lacks=_lacks(facts), notes=tuple(_notes(facts))
    )


def _refusals(facts: StoreFacts) -> Iterator[str]:
    if not facts.keeps_existing:
        yield "a write with `If-None-Match: *` replaces an existing object"
    elif facts.winners != 1:
        yield f"{facts.winners} of several simultaneous writes with `If-None-Match: *` succeed"
    if not facts.keeps_changed:
        yield "a write with `If-Match` replaces an object with another etag"
    if not facts.replaces_known:
        yield "a write with the `If-Match` of the newest etag fails"


def _lacks(facts: StoreFacts) -> dict[str, str]:
    found = {}
    if not facts.versions:
        found[VERSIONING] = (
            "the store keeps no versions: an input that is overwritten before its job has read it"
            " ends as SUPERSEDED, and two uploads of equal content in one second are one job"
        )
    if not facts.expires:
        found[EXPIRY] = (
            "the store has no lifecycle rules: envelopes and old results stay until you delete them"
        )
    return found


def _notes(facts: StoreFacts) -> Iterator[str]:
    if not facts.checks_owner:
        yield (
            "the store does not check the owner of a bucket: only its keys decide who writes where"
        )
    if not facts.reads_pinned:
        yield "the store ignores `If-Match` of reads: a job may get a newer input than its event's"
    if not facts.notifies:
        yield (
            "the store takes no notification rules from S3 clients: events come by its webhook"
            " (docs/how-to/without-aws.md), else uploads are found by search alone"
        )
    if not facts.keeps_filled:
        yield (
            "the store deletes buckets that hold objects: `orchgpu rm` looks into each bucket just"
            " before it deletes it, and other programs should not have the right to"
        )
