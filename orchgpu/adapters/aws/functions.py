"""`FunctionStarter` over Lambda."""

from __future__ import annotations

from orchgpu.adapters.aws.api import Client
from orchgpu.adapters.aws.errors import translated


class LambdaStarter:
    """Uses one shared client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def start(self, function: str, payload: str) -> None:
        with translated(f"lambda:Invoke {function}"):
            await self._client.invoke(
                FunctionName=function, InvocationType="Event", Payload=payload.encode()
            )
