"""`echo serve` of echo.c for machines without a C compiler."""

from __future__ import annotations

import socket
import struct

_CALL = struct.Struct("=QQ")


def _whole(stream: socket.socket, view: memoryview) -> bool:
    while view:
        count = stream.recv_into(view)
        if count == 0:
            return False
        view = view[count:]
    return True


def main() -> None:
    memory = memoryview(bytearray(128 << 20))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            stream, _ = listener.accept()
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with stream:
                head = memoryview(bytearray(_CALL.size))
                while _whole(stream, head):
                    there, back = _CALL.unpack(head)
                    _whole(stream, memory[:there])
                    stream.sendall(memory[:back])


if __name__ == "__main__":
    main()
