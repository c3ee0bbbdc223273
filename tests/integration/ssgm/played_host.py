"""A GPU host's side of the link with ssgmd, played by a thread of the test."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any


class PlayedHost(threading.Thread):
    """Registers its devices, then reports until it is closed."""

    def __init__(
        self,
        scheduler: str,
        name: str,
        gateway: str,
        *devices: dict[str, Any],
        report_s: float = 1.0,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._report_s = report_s
        address, _, port = scheduler.rpartition(":")
        self._over = threading.Event()
        self._writing = threading.Lock()
        self._port = f"{gateway.rpartition(':')[0]}:20000"  #: of every lease that has its own
        self._peer = socket.create_connection((address, int(port)), timeout=30)
        self._lines, self._words = self._peer.makefile("r"), self._peer.makefile("w")
        ids = [f"GPU-{name}-{index}" for index in range(len(devices))]
        said = [{"id": id_, "index": i, **devices[i]} for i, id_ in enumerate(ids)]
        self._say(
            0,
            "hello",
            role="host",
            host=name,
            incarnation="1",
            gateway=gateway,
            devices=said,
            epoch_seen=0,
            installed=[],
            version=1,
        )
        welcome = json.loads(self._lines.readline())
        assert "ok" in welcome, welcome
        self._usage = [
            {"device": id_, "memory_used_mib": 1200, "utilisation_pct": 37} for id_ in ids
        ]
        self._listener = threading.Thread(target=self._listen, name=f"{name} listens", daemon=True)
        self._listener.start()
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
        self._peer.shutdown(socket.SHUT_RDWR)
        self._listener.join()
        self._lines.close()
        self._words.close()
        self._peer.close()

    def _listen(self) -> None:
        """Opens the port of every lease that wants one."""
        while line := self._lines.readline():
            install = json.loads(line).get("install")
            if install is not None and install["door"] == "port":
                self._say(1 << 30, "door", lease=install["lease"], address=self._port)

    def _say(self, number: int, op: str, **fields: Any) -> None:
        with self._writing:
            self._words.write(json.dumps({"id": number, "op": op, **fields}) + "\n")
            self._words.flush()
