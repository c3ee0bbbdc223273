"""The offers file: which hosts can be had, for how much, and the limits of the fleet.

Read as a definition is, with errors at file:line:column. A key that this version does not know
(of a newer one) is ignored with a warning. `ssgmd --capacity` reads the same file, so that a
request which only these hosts could serve waits instead of being refused as impossible.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corekit.errors import invalid
from corekit.suggest import did_you_mean
from corekit.values import replace
from fdl.schema.scalars import Choice, Duration, Flag, Integer, Memory, Number, Text
from fdl.schema.schema import Block, Faulty, Key, ListOf, Reading
from fdl.text.compose import compose
from fdl.text.nodes import Mapping, Node, Sequence, Source
from gpu_scheduler.model import COUNT_MAX, DeviceKind
from gpu_scheduler.names import NAME_CHARS_MAX
from orchgpu.fleet.core.model import HOSTS_MAX, Offer, Offers, PolicyName, Rules

_NAME_CHARS_MAX = 64
_NAME = Text(
    pattern=rf"[A-Za-z0-9._-]{{1,{_NAME_CHARS_MAX}}}", what="a name (letters, digits, ., _ and -)"
)
#: The pool of the hosts in a former group is called `offer@group`.
_GROUP_CHARS_MAX = NAME_CHARS_MAX - _NAME_CHARS_MAX - 1
_GROUP = Text(
    pattern=rf".{{1,{_GROUP_CHARS_MAX}}}", what=f"a name of 1 to {_GROUP_CHARS_MAX} characters"
)
_HOSTS = Integer(low=0, high=HOSTS_MAX, unit="hosts")
_DOLLARS = Number(low=0.0, high=1e9, unit="dollars")
#: The most offers of a file.
OFFERS_MAX = 100


def _offer(kind: str, **values: Any) -> Offer:
    return Offer(kind=DeviceKind(kind), **values)


_OFFER = Block(
    into=_offer,
    defaults=Offer,
    keys={
        "name": Key(reader=_NAME, required=True, about="Name of the pool."),
        "kind": Key(
            reader=Choice(tuple(kind.value for kind in DeviceKind)),
            required=True,
            about="Kind of its devices.",
        ),
        "model": Key(reader=Text(), about="Model of its devices, as gpud reports it."),
        "devices": Key(reader=Integer(low=1, high=COUNT_MAX), about="Devices of each host."),
        "memory": Key(
            reader=Memory(), to="memory_mib", required=True, about="Memory of each device."
        ),
        "usd_per_h": Key(reader=_DOLLARS, about="Price of a host and hour."),
        "spot": Key(reader=Flag(), about="True: the provider may take a host back."),
        "group": Key(reader=_GROUP, about="Name at the provider. [default: its name]"),
        "min": Key(reader=_HOSTS, about="Hosts that are always there."),
        "max": Key(reader=_HOSTS, required=True, about="The most hosts."),
        "buffer": Key(reader=_HOSTS, about="Idle hosts that are kept while jobs come."),
        "idle_s": Key(reader=Duration(), about="Time without a lease after which a host ends."),
        "start_s": Key(
            reader=Duration(low_s=0.1, high_s=86400.0),
            about="Time from its start to its registration, until it is learned.",
        ),
    },
)
_RULES = {
    "target_wait_s": Key(
        reader=Duration(), about="Time in which waiting work is to be done once hosts are there."
    ),
    "patience_s": Key(reader=Duration(), about="A request that waits shorter starts no host."),
    "usd_per_hour_max": Key(reader=_DOLLARS, about="The most that all hosts cost in an hour."),
    "usd_per_month_max": Key(
        reader=_DOLLARS, about="No host is started once this is spent in a calendar month (UTC)."
    ),
    "policy": Key(
        reader=Choice(tuple(policy.value for policy in PolicyName)),
        about="What makes pools larger beside waiting requests.",
    ),
    "skip_s": Key(reader=Duration(), about="Time for which an offer that fails is left out."),
}
#: Keys of an inventory file; `ssgmd --capacity` reads them, a fleet has no use for them.
_FOREIGN = ("devices",)


def _offers(offers: tuple[Offer, ...] = (), **rules: Any) -> Offers:
    names = [offer.name for offer in offers]
    groups = [offer.at_port for offer in offers]
    for what, found in (("name", names), ("group", groups)):
        twice = next((one for one in found if found.count(one) > 1), None)
        if twice is not None:
            raise invalid(f"two offers have the {what} {twice!r}; each is one pool")
    if "policy" in rules:
        rules["policy"] = PolicyName(rules["policy"])
    return Offers(offers=offers, rules=Rules(**rules))


#: The whole file; the simulator reads the same block of its run files.
OFFERS = Block(
    into=_offers,
    keys={
        "offers": Key(
            reader=ListOf(item=_OFFER, items_max=OFFERS_MAX), required=True, about="The pools."
        ),
        **_RULES,
    },
)


def load_offers(path: Path) -> tuple[Offers, tuple[str, ...]]:
    """The offers of a file, and warnings. Raises INVALID with file:line:column."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise invalid(f"offers {path} cannot be read: {error.strerror}") from None
    return parse_offers(data, str(path))


def parse_offers(data: bytes | str, name: str) -> tuple[Offers, tuple[str, ...]]:
    """The offers of a text, and warnings about keys without effect. Raises INVALID."""
    composed = compose(data, name)
    warnings: list[str] = []
    root = _known(composed.root, composed.source, warnings)
    reading = Reading(source=composed.source)
    try:
        offers = OFFERS.read(root, "", reading)
        reading.end(0)
    except Faulty:
        raise reading.combined_error() from None
    return offers, tuple(warnings)


def _known(root: Node, source: Source, warnings: list[str]) -> Node:
    """The nodes without keys of other versions."""
    if not isinstance(root, Mapping):
        return root
    root = _without_unknown(root, {*OFFERS.keys, *_FOREIGN}, source, warnings)
    listed = root.child("offers")
    if isinstance(listed, Sequence):
        items = tuple(
            _without_unknown(item, set(_OFFER.keys), source, warnings)
            if isinstance(item, Mapping)
            else item
            for item in listed.items
        )
        root = root.with_entry("offers", replace(listed, items=items))
    return root.without(*_FOREIGN)


def _without_unknown(node: Mapping, known: set[str], source: Source, found: list[str]) -> Mapping:
    found.extend(_warnings(node, known, source))
    return node.without(*(entry.key for entry in node.entries if entry.key not in known))


def _warnings(node: Mapping, known: set[str], source: Source) -> Iterator[str]:
    for entry in node.entries:
        if entry.key not in known and not entry.key.startswith("x-"):
            hint = did_you_mean(entry.key, sorted(known))
            place = f"{source.name}:{entry.at.line}:{entry.at.column}"
            yield f"{place}: warning: unknown key {entry.key[:60]!r} is ignored{hint}"
