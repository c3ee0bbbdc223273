"""`noop`: gives its inputs back. The smallest proof that a device can be reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remote_gpu.worker.operation import Context, Limits, Outcome


class Noop:
    """Any inputs → the same, unchanged; values: `{"args": the arguments}` when there were any."""

    name = "noop"
    version = 1
    kinds = ("cpu",)
    implementation = "none"
    limits = Limits(inputs_max=16)

    def prepare(self, context: Context) -> None:
        """Needs nothing."""

    def run(
        self, context: Context, args: Mapping[str, Any], inputs: Sequence[memoryview]
    ) -> Outcome:
        del context  # uses nothing of the host
        return ({"args": dict(args)} if args else {}), list(inputs)


OPERATIONS = (Noop(),)
