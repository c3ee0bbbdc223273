"""Every way in that is not the way in: hellos and proofs of who must be refused, without end."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from remote_gpu.wire.proof import ConnectionRole, Hello, client_proof, lane_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A lease as its attacker knows it, secret and all."""

    lease: str
    fence: int
    secret: bytes
    session: str = ""  #: nonce of the session that holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try: what is said, what is proven, and the refusals that are right."""

    name: str
    hello: Hello
    prove: Callable[[str, str], str]  #: the gateway's nonce, its authority → the answer
    codes: frozenset[str]


#: What is wrong with an attempt; all the rest of it is as it must be.
KINDS = (
    "forged",
    "foreign",
    "replayed",
    "changed",
    "lane key as secret",
    "garbage",
    "other fence",
    "other host",
    "ended",
    "never installed",
    "second session",
)


def attempts(
    seed: int, host: str, held: list[Target], ended: Target, kinds: tuple[str, ...] = ()
) -> Iterator[Attempt]:
    """For ever. `held`: at least two leases with a session; `ended`: one that is over."""
    draw = random.Random(seed)
    while True:
        for kind in kinds or KINDS:
            yield _attempt(kind, draw, host, held, ended)


def _hex(draw: random.Random, count: int = 16) -> str:
    return draw.randbytes(count).hex()


def _hello(draw: random.Random, host: str, target: Target, **changes: Any) -> Hello:
    hello = Hello(
        role=draw.choice([ConnectionRole.SESSION, ConnectionRole.LANE, ConnectionRole.RELAY]),
        lease=target.lease,
        fence=target.fence,
        host=host,
        session=target.session or _hex(draw),
        nonce=_hex(draw),
        cap_ms=60_000,
        middleware=draw.choice(["", "lupine"]),
    )
    return dataclasses.replace(hello, **changes)


def _key(target: Target, hello: Hello) -> bytes:
    """The right one."""
    if hello.role is ConnectionRole.SESSION:
        return target.secret
    return lane_key(target.secret, hello.lease, hello.fence, hello.host, hello.session)


def _attempt(
    kind: str, draw: random.Random, host: str, held: list[Target], ended: Target
) -> Attempt:
    target, changes, code = draw.choice(held), dict[str, Any](), "DENIED"
    match kind:
        case "ended":
            target, code = ended, "ENDED"
        case "never installed":
            target = Target(lease=f"lease-{_hex(draw)}", fence=1 << 50, secret=draw.randbytes(32))
            code = "NOT_INSTALLED"
        case "other fence":
            changes = {"fence": target.fence + draw.choice([-1, 1, 1 << 40])}
        case "second session":  # another start of the same attempt, or a lane of it
            changes, code = {"session": _hex(draw)}, "CLAIMED"
        case "lane key as secret":  # what a user's program has does not open a session
            changes = {"role": ConnectionRole.SESSION}
    hello = _hello(draw, f"{host}x" if kind == "other host" else host, target, **changes)
    sent, recorded = hello, ""
    key = _key(target, hello)
    match kind:
        case "forged":
            key = draw.randbytes(32)
        case "foreign":
            key = _key(draw.choice([one for one in held if one is not target]), hello)
        case "lane key as secret":
            key = lane_key(target.secret, target.lease, target.fence, host, target.session)
        case "replayed":  # right on another connection, with the very same hello
            recorded = _hex(draw)
        case "changed":  # between client and gateway
            sent = dataclasses.replace(hello, **_change(draw, hello))
        case "garbage":
            text = "".join(draw.choices("0123456789abcdefé\x00", k=draw.randrange(65)))
            return Attempt(name=kind, hello=hello, prove=lambda n, a: text, codes=frozenset({code}))
    return Attempt(
        name=kind,
        hello=sent,
        prove=lambda n, a: client_proof(key, hello, recorded or n, a),
        codes=frozenset({code}),
    )


def _change(draw: random.Random, hello: Hello) -> dict[str, Any]:
    """One word of a hello that is another one."""
    changes: list[dict[str, Any]] = [
        {"cap_ms": 1},
        {"device": 1},
        {"port": 1},
        {"nonce": _hex(draw)},
        {"middleware": "pocl"},
        {
            "role": ConnectionRole.LANE
            if hello.role is not ConnectionRole.LANE
            else ConnectionRole.RELAY
        },
    ]
    return draw.choice(changes)
