"""Names that lead to addresses which no request on a user's behalf may reach."""

from __future__ import annotations

import socket
from collections.abc import Callable

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from corekit.addresses import refused_address


class RefusedAddressError(OSError):
    """A name that leads to such an address."""


class CheckedResolver(AbstractResolver):
    """Checks the very addresses that are connected to: a name may change between two lookups.

    A resolver is not asked about an address: its caller checks those.
    """

    def __init__(self, refused: Callable[[str], bool] = refused_address) -> None:
        self._inner = ThreadedResolver()
        self._refused = refused

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises RefusedAddressError."""
        found = await self._inner.resolve(host, port, family)
        if any(self._refused(one["host"]) for one in found):
            raise RefusedAddressError(f"{host} leads to a refused address")
        return found

    async def close(self) -> None:
        await self._inner.close()
