"""Stands in for the servers of other middlewares: started, told its port and serving as theirs.

Each connection is greeted with one frame (4 bytes of length, then bytes), then every frame comes
back. `facts` is answered with what the process was given, `die` ends it. Each connection gets a
process of its own, as Lupine's do. SIGTERM is ignored. As Cricket's, a server that is told `local
PATH` by a client that takes it for one on its own machine opens that file of /dev/shm.
"""

import json
import os
import signal
import socket
import struct
import sys
from pathlib import Path


def ports() -> list[int]:
    """As the documentation of each says."""
    if port := os.environ.get("LUPINE_PORT"):
        return [int(port)]
    match sys.argv[1:]:
        case ["-a", "127.0.0.1", "-p", port]:  # pocld
            return [int(port) + number for number in range(3)]
        case ["-a", address]:  # vaccel-rpc-agent
            return [int(address.removeprefix("tcp://127.0.0.1:"))]
        case ["-i", "-l", "TCP", "-n", "0", "-p", port]:  # rCUDAd
            return [int(port)]
        case ["properties.json"]:  # gvirtus-backend
            told = json.loads(Path("properties.json").read_text())
            return [int(told["communicator"][0]["endpoint"]["port"])]
        case [number] if number.isdecimal():  # cricket-rpc-server takes any
            return [0]
        case other:
            sys.exit(f"what is {other}?")


def serve(stream: socket.socket, number: int) -> None:
    words = stream.makefile("rwb")

    def say(body: bytes) -> None:
        words.write(struct.pack("!I", len(body)) + body)
        words.flush()

    say(b"port %d" % number)
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
            os.kill(os.getppid(), signal.SIGKILL)
        elif body.startswith(b"local "):
            try:
                body = Path(body.removeprefix(b"local ").decode()).read_bytes()
            except OSError as error:
                body = f"no shared memory: {error.strerror}".encode()
        say(body)


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
