"""A GPU host's side of the link with ssgmd, played by a thread of the test."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any


class PlayedHost(threading.Thread):
    """Registers its devices, then reports until it is closed."""

    def __init__(
        self, scheduler: str, name: str, gateway: str, *devices: dict[str, Any],
        report_s: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(name=name, daemon=True)
        self._report_s = report_s
        address, _, port = scheduler.rpartition(":")
        self._over = threading.Event()
        self._peer = socket.create_connection((address, int(port)), timeout=30)
        self._lines = self._peer.makefile("rw")
        ids = [f"GPU-{name}-{index}" for index in range(len(devices))]
        said = [{"id": id_, "index": i, **devices[i]} for i, id_ in enumerate(ids)]
        self._say(
            0, "hello", role="host", host=name, incarnation="1", gateway=gateway, devices=said,
            epoch_seen=0, installed=[], version=1,
        )  # fmt: skip
        welcome = json.loads(self._lines.readline())
        assert "ok" in welcome, welcome
        self._usage = [
            {"device": id_, "memory_used_mib": 1200, "utilisation_pct": 37} for id_ in ids
        ]
        self.start()

    def run(self) -> None:
        number = 1
        while not self._over.is_set():
            self._say(number, "report", usage=self._usage)
            number += 1
            self._over.wait(self._report_s)

    def close(self) -> None:
        self._over.set()
        self.join()
        self._lines.close()
        self._peer.close()

    def _say(self, number: int, op: str, **fields: Any) -> None:
        self._lines.write(json.dumps({"id": number, "op": op, **fields}) + "\n")
        self._lines.flush()
