"""The port of a machine to its account."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from orchgpu.infra.machine.model import Identity, Interface


class MachineCloud(Protocol):
    """The calls of a machine of a stack. Every method raises only `AppError`."""

    def identity(self) -> Identity:
        """This machine."""
        ...

    def interfaces(self, ids: Sequence[str]) -> Sequence[Interface]:
        """Network interfaces."""
        ...

    def attach(self, interface: str, instance: str) -> None:
        """Attach an interface. Raises CONFLICT while another machine has it."""
        ...

    def read_secret(self, name: str) -> str | None:
        """The content of a secret; None while it is empty."""
        ...

    def fill_secret(self, name: str, content: str) -> None:
        """Fill a secret that is empty; of several machines that do, the first one wins."""
        ...

    def read_object(self, bucket: str, key: str) -> bytes:
        """An object. Raises NOT_FOUND, or DENIED, while there is none."""
        ...

    def put_object(self, bucket: str, key: str, body: bytes) -> None:
        """Write an object."""
        ...

    def group_of(self, instance: str) -> str:
        """The Auto Scaling group of a machine; "" = none."""
        ...

    def signal(self, stack: str, resource: str, instance: str, *, success: bool) -> None:
        """Report to CloudFormation that the machine serves, or does not."""
        ...
