"""TLS 1.3 for proven connections: a state machine without I/O, and a blocking stream over it.

`ssl.SSLSocket` is not used: this way one system call carries many records, one thread may send
while another receives, and an event loop can use the same machine. Imported only for gateways with
TLS, because importing `ssl` costs a cold start milliseconds.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from remote_gpu.wire.errors import WireError
from remote_gpu.wire.frames import BufferLike

#: Of one read, and of one encryption.
_CHUNK_BYTES = 1 << 18
#: X509_V_FLAG_NO_CHECK_TIME, <openssl/x509_vfy.h>; `ssl` has no name for it.
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)


def client_context(authority: str) -> ssl.SSLContext:
    """A context that trusts `authority` (PEM) and certificates signed by it; TLS 1.3 only.

    Names and dates are not compared: the proof of the lease's secret authenticates the peer and its
    certificate. Raises WireError for text without a certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME  # no CA, no clock
    try:
        context.load_verify_locations(cadata=authority)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise WireError(f"the gateway's authority is not a valid certificate: {error}") from None
    return context


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A context of gateways and workers; TLS 1.3 only. Raises OSError without a valid pair."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no resumption: every connection is proven
    # an encrypted key is refused instead of prompting for its passphrase
    context.load_cert_chain(certificate, key, password="")
    return context


class TlsMachine:
    """One side of a TLS connection as bytes in and bytes out. Thread-safe."""

    def __init__(self, context: ssl.SSLContext, *, server: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self._lock = threading.Lock()  # OpenSSL's object is not thread-safe
        self._ended = False  #: the peer sends no more

    def handshake(self) -> bool:
        """Continue the handshake; False while more bytes are needed. Raises WireError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            if self._ended:
                raise WireError("TLS: the peer ended the connection in the handshake") from None
            return False
        except ssl.SSLError as error:
            raise WireError(f"TLS: {error.reason or error}: {_why(error)}") from None
        return True

    @property
    def binding(self) -> bytes:
        """The channel binding: equal on both sides of this connection only; after the handshake.

        It is the client's Finished: a MAC over the whole handshake, certificate included, with a
        key of this handshake. Raises WireError where OpenSSL has none.
        """
        found = self._tls.get_channel_binding("tls-unique")
        if not found:
            raise WireError("TLS: this connection has no channel binding")
        return found

    def take(self) -> bytes:
        """The bytes to send to the peer now."""
        return self._outgoing.read()

    def give(self, data: bytes | memoryview) -> None:
        """Accept bytes from the peer; none = the end of its stream.

        OpenSSL does not learn of that end: without an alert before it, it would encrypt no more for
        a peer that still reads.
        """
        with self._lock:
            if len(data):
                self._incoming.write(data)
            else:
                self._ended = True

    def encrypt(self, view: memoryview) -> bytes:
        """The records for `view`, after all other pending bytes."""
        with self._lock:
            while view.nbytes:
                view = view[self._tls.write(view) :]
            return self._outgoing.read()

    def decrypt(self, view: memoryview) -> int | None:
        """Fill the beginning of `view`; None = more bytes are needed, 0 = the end."""
        done = 0
        with self._lock:
            while done < view.nbytes:
                try:
                    count = int(self._tls.read(view.nbytes - done, view[done:]))
                except ssl.SSLWantReadError:
                    return done if self._ended else done or None
                except ssl.SSLZeroReturnError:
                    return done
                if not count:
                    return done
                done += count
        return done


class TlsStream:
    """A blocking socket in TLS, with the methods that channels and relays use."""

    def __init__(self, stream: socket.socket, machine: TlsMachine) -> None:
        """`machine`: after its handshake."""
        self._stream = stream
        self._machine = machine
        self._sending = threading.Lock()  # records go out in the order of their numbers
        self._ahead = memoryview(bytearray(_CHUNK_BYTES))

    def send(self, data: BufferLike, /) -> int:
        """Send all of `data`, unlike a socket."""
        self.sendall(memoryview(data))
        return len(data)

    def sendmsg(self, buffers: Iterable[BufferLike], /) -> int:
        """Send all of the buffers, unlike a socket."""
        views = [memoryview(buffer) for buffer in buffers]
        small = sum(view.nbytes for view in views) <= _CHUNK_BYTES
        for view in [memoryview(b"".join(views))] if small else views:
            self.sendall(view)
        return sum(view.nbytes for view in views)

    def sendall(self, view: memoryview) -> None:
        """Raises OSError when the connection has ended."""
        with self._sending:
            for at in range(0, view.nbytes, _CHUNK_BYTES):
                self._stream.sendall(self._machine.encrypt(view[at : at + _CHUNK_BYTES]))

    def recv_into(self, buffer: BufferLike, nbytes: int = 0, /) -> int:
        """As of a socket, with read-ahead. Raises OSError when the connection has ended."""
        view = memoryview(buffer)[: nbytes or None]
        while (count := self._machine.decrypt(view)) is None:
            read = self._stream.recv_into(self._ahead)
            self._machine.give(self._ahead[:read])
        return count

    def settimeout(self, wait_s: float | None) -> None:
        self._stream.settimeout(wait_s)

    def setblocking(self, flag: bool) -> None:
        self._stream.setblocking(flag)

    def fileno(self) -> int:
        return self._stream.fileno()

    def shutdown(self, how: int) -> None:
        """Shut down the connection below; frames mark the end of the data."""
        self._stream.shutdown(how)

    def close(self) -> None:
        self._stream.close()


def secure(stream: socket.socket, context: ssl.SSLContext, *, server: bool) -> TlsMachine:
    """Run the handshake on a blocking socket, within the socket's timeout in total.

    Raises WireError when it fails, OSError or TimeoutError when the peer has gone or is slow.
    """
    machine, wait_s = TlsMachine(context, server=server), stream.gettimeout()
    until_s = None if wait_s is None else time.monotonic() + wait_s
    try:
        while not machine.handshake():
            stream.sendall(machine.take())
            if until_s is not None:
                stream.settimeout(max(0.001, until_s - time.monotonic()))
            received = stream.recv(_CHUNK_BYTES)
            machine.give(received)
        stream.sendall(machine.take())
    except WireError:
        with contextlib.suppress(OSError):  # send the alert
            stream.sendall(machine.take())
        raise
    stream.settimeout(wait_s)
    return machine


def _why(error: ssl.SSLError) -> str:
    """The verifier's message if there is one: expired, not signed by a trusted authority."""
    return str(getattr(error, "verify_message", "") or "the handshake failed")
