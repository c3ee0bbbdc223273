"""Every way in that is not the way in: hellos and proofs of who must be refused, without end."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from remote_gpu.wire.proof import Hello, Role, client_proof, lane_key


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


def attempts(
    seed: int, host: str, held: list[Target], ended: Target, kinds: tuple[str, ...] = ()
) -> Iterator[Attempt]:
    """For ever. `held`: at least two leases with a session; `ended`: one that is over."""
    draw = random.Random(seed)
    makers = {name: make for name, make in _MAKERS.items() if not kinds or name in kinds}
    while True:
        for name, make in makers.items():
            yield dataclasses.replace(make(draw, host, held, ended), name=name)


def _hex(draw: random.Random, count: int = 16) -> str:
    return draw.randbytes(count).hex()


def _hello(draw: random.Random, host: str, target: Target, **changes: Any) -> Hello:
    hello = Hello(
        role=draw.choice([Role.SESSION, Role.LANE, Role.RELAY]),
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
    if hello.role is Role.SESSION:
        return target.secret
    return lane_key(target.secret, hello.lease, hello.fence, hello.host, hello.session)


def _attempt(hello: Hello, prove: Callable[[str, str], str], *codes: str) -> Attempt:
    return Attempt(name="", hello=hello, prove=prove, codes=frozenset(codes))


def _forged(draw: random.Random, host: str, held: list[Target], ended: Target) -> Attempt:
    hello, key = _hello(draw, host, draw.choice(held)), draw.randbytes(32)
    return _attempt(hello, lambda n, a: client_proof(key, hello, n, a), "DENIED")


def _foreign(draw: random.Random, host: str, held: list[Target], ended: Target) -> Attempt:
    one, other = draw.sample(held, 2)
    hello = _hello(draw, host, one)
    return _attempt(hello, lambda n, a: client_proof(_key(other, hello), hello, n, a), "DENIED")


def _replayed(draw: random.Random, host: str, held: list[Target], ended: Target) -> Attempt:
    """What was right on another connection, with the very same hello."""
    target = draw.choice(held)
    hello, recorded = _hello(draw, host, target), _hex(draw)
    return _attempt(
        hello, lambda n, a: client_proof(_key(target, hello), hello, recorded, a), "DENIED"
    )


def _changed(draw: random.Random, host: str, held: list[Target], ended: Target) -> Attempt:
    """Somebody between client and gateway changes a word of the hello."""
    target = draw.choice(held)
    said = _hello(draw, host, target)
    changes: list[dict[str, Any]] = [
        {"cap_ms": 1},
        {"device": 1},
        {"port": 1},
        {"nonce": _hex(draw)},
        {"middleware": "pocl"},
        {"role": Role.LANE if said.role is not Role.LANE else Role.RELAY},
    ]
    heard = dataclasses.replace(said, **draw.choice(changes))
    return _attempt(heard, lambda n, a: client_proof(_key(target, said), said, n, a), "DENIED")


def _lane_key_as_secret(
    draw: random.Random, host: str, held: list[Target], ended: Target
) -> Attempt:
    """What a user's program has does not open a session."""
    target = draw.choice(held)
    hello = _hello(draw, host, target, role=Role.SESSION)
    key = lane_key(target.secret, target.lease, target.fence, host, target.session)
    return _attempt(hello, lambda n, a: client_proof(key, hello, n, a), "DENIED")


def _garbage(draw: random.Random, host: str, held: list[Target], ended: Target) -> Attempt:
    text = "".join(draw.choices("0123456789abcdefé\x00", k=draw.randrange(65)))
    return _attempt(_hello(draw, host, draw.choice(held)), lambda n, a: text, "DENIED")


def _other_fence(draw: random.Random, host: str, held: list[Target], ended: Target) -> Attempt:
    target = draw.choice(held)
    hello = _hello(draw, host, target, fence=target.fence + draw.choice([-1, 1, 1 << 40]))
    return _attempt(hello, lambda n, a: client_proof(_key(target, hello), hello, n, a), "DENIED")


def _other_host(draw: random.Random, host: str, held: list[Target], ended: Target) -> Attempt:
    target = draw.choice(held)
    hello = _hello(draw, host + "x", target)
    return _attempt(hello, lambda n, a: client_proof(_key(target, hello), hello, n, a), "DENIED")


def _ended(draw: random.Random, host: str, held: list[Target], ended: Target) -> Attempt:
    hello = _hello(draw, host, ended)
    return _attempt(hello, lambda n, a: client_proof(_key(ended, hello), hello, n, a), "ENDED")


def _never_installed(draw: random.Random, host: str, held: list[Target], ended: Target) -> Attempt:
    target = Target(lease=f"lease-{_hex(draw)}", fence=1 << 50, secret=draw.randbytes(32))
    hello = _hello(draw, host, target)
    return _attempt(
        hello, lambda n, a: client_proof(_key(target, hello), hello, n, a), "NOT_INSTALLED"
    )


def _second_session(draw: random.Random, host: str, held: list[Target], ended: Target) -> Attempt:
    """Another start of the same attempt, or a lane of it: the right secret comes too late."""
    target = draw.choice(held)
    hello = _hello(draw, host, target, session=_hex(draw))
    return _attempt(hello, lambda n, a: client_proof(_key(target, hello), hello, n, a), "CLAIMED")


_MAKERS = {
    "forged": _forged,
    "foreign": _foreign,
    "replayed": _replayed,
    "changed": _changed,
    "lane key as secret": _lane_key_as_secret,
    "garbage": _garbage,
    "other fence": _other_fence,
    "other host": _other_host,
    "ended": _ended,
    "never installed": _never_installed,
    "second session": _second_session,
}
