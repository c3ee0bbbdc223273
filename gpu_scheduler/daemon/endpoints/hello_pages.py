"""A host's hello that is too long for one message: its pages, until the last one has arrived.

One object per connection. The core is not involved until the hello is complete.
"""

from __future__ import annotations

from corekit.errors import invalid
from corekit.ids import LeaseId
from corekit.values import replace
from gpu_scheduler.names import NAME_CHARS_MAX
from gpu_scheduler.protocol.host import INSTALLED_MAX, HostHello


class HelloPages:
    """The received pages of the hello of one connection."""

    def __init__(self) -> None:
        self._hello: HostHello | None = None  # incomplete
        self._reply_to = ""
        self._installed: list[LeaseId] = []
        self._more = False

    def begin(self, hello: HostHello, reply_to: str) -> None:
        """Begin a new hello, and drop an unfinished one. Raises INVALID."""
        self._hello, self._reply_to, self._installed = hello, reply_to, []
        self._take(hello.installed, more=hello.more)

    def add(self, leases: tuple[LeaseId, ...], *, more: bool) -> None:
        """Add a page. Raises INVALID when no hello is incomplete."""
        if self._hello is None:
            raise invalid("op 'installed': no hello of this connection is incomplete")
        self._take(leases, more=more)

    def _take(self, leases: tuple[LeaseId, ...], *, more: bool) -> None:
        longest = max(map(len, leases), default=0)
        if longest > NAME_CHARS_MAX:
            self._drop()
            text = f"hello: a lease name has {longest} characters; at most {NAME_CHARS_MAX}"
            raise invalid(text)
        if len(self._installed) + len(leases) > INSTALLED_MAX:
            self._drop()
            raise invalid(f"hello: more than {INSTALLED_MAX} leases are installed on one host")
        self._installed += leases
        self._more = more

    @property
    def incomplete(self) -> bool:
        """True while more pages of a hello are expected."""
        return self._hello is not None

    def whole(self) -> tuple[HostHello, str] | None:
        """The hello with all leases, and the `reply_to` of its answer; only once, after the last
        page."""
        if self._hello is None or self._more:
            return None
        whole = replace(self._hello, installed=tuple(self._installed), more=False)
        found = whole, self._reply_to
        self._drop()
        return found

    def _drop(self) -> None:
        self._hello, self._installed = None, []
