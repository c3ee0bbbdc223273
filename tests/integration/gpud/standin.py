"""A server as those of other middlewares: it gets its port and serves as they do.

Each connection is greeted with one frame (4 bytes of length, then bytes), then every frame comes
back. `facts` is answered with what the process was given, `die` ends it. Each connection gets a
process of its own, as Lupine's do. SIGTERM is ignored. As Cricket's, a server that gets `local
PATH` by a client that takes it for one on its own machine opens that file of /dev/shm.
"""

import json
import os
import re
import signal
import socket
import struct
import sys
from pathlib import Path

#: Consecutive ports of the server; a test writes another number.
PORTS = 1
#: gpud gives its servers ports from 20000 to 31999.
PORT = re.compile(r"\b(2\d{4}|3[01]\d{3})\b")


def ports() -> list[int]:
    """The port in an argument, a variable or a file of its folder; else any free one."""
    files = [path.read_text() for path in Path().iterdir() if path.is_file()]
    variables = [value for name, value in os.environ.items() if name.endswith("PORT")]
    for text in (*sys.argv[1:], *variables, *files):
        if found := PORT.search(text):
            return [int(found[1]) + number for number in range(PORTS)]
    return [0]


def serve(stream: socket.socket, number: int) -> None:
    words = stream.makefile("rwb")

    def send(body: bytes) -> None:
        words.write(struct.pack("!I", len(body)) + body)
        words.flush()

    send(b"port %d" % number)
    while head := words.read(4):
        body = words.read(struct.unpack("!I", head)[0])
        if body == b"facts":
            facts = {
                "pid": os.getpid(),
                "parent": os.getppid(),
                "environ": dict(os.environ),
                "network": str(Path("/proc/self/ns/net").readlink()),
            }
            body = json.dumps(facts).encode()
        elif body == b"die":
            os.write(sys.stdout.fileno(), b"the last words of a server\n")
            os.kill(os.getppid(), signal.SIGKILL)
        elif body.startswith(b"local "):
            try:
                body = Path(body.removeprefix(b"local ").decode()).read_bytes()
            except OSError as error:
                body = f"no shared memory: {error.strerror}".encode()
        send(body)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if "broken" in sys.argv[0]:
        sys.exit("no device for me")
    listeners = [socket.create_server(("127.0.0.1", port)) for port in ports()]
    for number, listener in enumerate(listeners[1:], 1):
        if os.fork() == 0:
            accept(listener, number)
    accept(listeners[0], 0)


def accept(listener: socket.socket, number: int) -> None:
    while True:
        stream, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            serve(stream, number)
            os._exit(0)
        stream.close()


if __name__ == "__main__":
    main()
