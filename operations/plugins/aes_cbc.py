"""`aes_cbc`: encrypts or decrypts messages by AES in CBC mode, by OpenSSL or by a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from operations import aes
from remote_gpu import api
from remote_gpu.api import Arguments, Context, Outcome, invalid

Bytes: TypeAlias = npt.NDArray[np.uint8]

_MESSAGES_MAX = 1 << 24
#: Work-items of a group, on any device.
_GROUP = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """The checked inputs of one call."""

    decrypts: bool
    key: bytes
    vectors: memoryview  #: one of 16 bytes per message
    data: Bytes  #: messages of whole blocks, one after the other
    messages: int

    @property
    def blocks(self) -> int:
        """Of one message."""
        return self.data.nbytes // aes.BLOCK_BYTES // self.messages


class OpensslCbc(api.CpuOperation):
    """AES of 128, 192 or 256 bits in CBC mode (NIST SP 800-38A section 6.2).

    The data are one or more messages of equal length, each with its own initialization vector. With
    `pkcs7` a message is padded to whole blocks, and a call takes one message. CBC proves nothing
    about who wrote a message: authenticate it besides.
    """

    name = "aes_cbc"
    implementation = f"openssl by cryptography {version('cryptography')}"
    libraries: tuple[str, ...] = ("cryptography",)
    limits = api.Limits(inputs_min=3, inputs_max=3, input_bytes_max=1 << 32)
    signature = api.Signature(
        arguments=(
            api.Text(name="direction", meaning="the direction", choices=("encrypt", "decrypt")),
            api.Text(
                name="padding",
                meaning="of a message that may end within a block",
                default="none",
                choices=("none", "pkcs7"),
            ),
            api.Integer(
                name="messages",
                meaning="messages of equal length in the data",
                least=1,
                most=_MESSAGES_MAX,
                default=1,
            ),
        ),
        inputs=(
            api.Port(name="key", meaning="16, 24 or 32 bytes"),
            api.Port(name="iv", meaning="16 bytes per message"),
            api.Port(name="data", meaning="the messages"),
        ),
        outputs=(api.Port(name="result", meaning="the messages"),),
        values="`messages`, `message_bytes` of the result",
    )

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        args = self.signature.read(args)
        padded = args["padding"] == "pkcs7"
        with context.quota.held(2 * (inputs[2].nbytes + aes.BLOCK_BYTES)):
            task = _task(args, inputs, padded=padded)
            result = self._computed(context, task)
            if padded and task.decrypts:
                result = _unpadded(result)
            values = {"messages": task.messages, "message_bytes": result.nbytes // task.messages}
            return values, [result]

    def _computed(self, context: Context, task: _Task) -> Bytes:
        del context
        size = task.blocks * aes.BLOCK_BYTES
        result = np.empty(task.messages * size, np.uint8)
        data, vectors = task.data.data, task.vectors
        for message in range(task.messages):
            vector = vectors[message * aes.BLOCK_BYTES : (message + 1) * aes.BLOCK_BYTES]
            cipher = Cipher(algorithms.AES(task.key), modes.CBC(bytes(vector)))
            stream = cipher.decryptor() if task.decrypts else cipher.encryptor()
            part = data[message * size : (message + 1) * size]
            result[message * size : (message + 1) * size] = np.frombuffer(
                stream.update(part) + stream.finalize(), np.uint8
            )
        return result


class KernelCbc(OpensslCbc):
    """`aes_cbc` by the kernels of `aes.cl`: encryption in parallel by message, decryption by block.

    Keys and tables are read at addresses that depend on the data, as in every implementation by
    tables: leases that share a card could measure that.
    """

    kinds = ("opencl", "cuda")
    implementation = "kernel-tables"
    libraries = ()
    by_kernels = True

    def kernel_sources(self) -> Sequence[str]:
        return (aes.source(),)

    def _computed(self, context: Context, task: _Task) -> Bytes:
        if task.data.nbytes == 0:
            return np.empty(0, np.uint8)
        items = task.messages * (task.blocks if task.decrypts else 1)
        with api.calls_of(context).call(context.quota) as call:
            result = call.memory(task.data.nbytes)
            arguments = (
                call.stored(task.data),
                call.stored(task.vectors),
                call.stored(aes.schedule(task.key, decrypts=task.decrypts)),
                call.stored(aes.tables(decrypts=task.decrypts)),
                api.Scalar("int", aes.rounds_of(task.key)),
                api.Scalar("int", task.messages),
                api.Scalar("int", task.blocks),
                result,
            )
            kernel = "decrypt" if task.decrypts else "encrypt"
            call.launch(aes.source(), kernel, arguments, items, _GROUP)
            return np.frombuffer(call.result(result), np.uint8)


def _task(args: Arguments, inputs: Sequence[memoryview], *, padded: bool) -> _Task:
    """Check the inputs. Raises OpFailed(EINVAL)."""
    key, vectors, data = inputs
    decrypts, messages = args["direction"] == "decrypt", args["messages"]
    if key.nbytes not in aes.KEY_BYTES:
        raise invalid(f"a key has 16, 24 or 32 bytes, not {key.nbytes}")
    if vectors.nbytes != messages * aes.BLOCK_BYTES:
        wanted = messages * aes.BLOCK_BYTES
        raise invalid(f"'iv' has 16 bytes per message, {wanted} together, not {vectors.nbytes}")
    if padded and messages != 1:
        raise invalid("with padding pkcs7 a call takes one message")
    whole: Bytes = np.frombuffer(data, np.uint8)
    if padded and not decrypts:
        added = aes.BLOCK_BYTES - data.nbytes % aes.BLOCK_BYTES
        whole = np.concatenate([whole, np.full(added, added, np.uint8)])
    if padded and not whole.nbytes:
        raise invalid("with padding pkcs7 an encrypted message has 16 bytes or more")
    if whole.nbytes % (messages * aes.BLOCK_BYTES):
        text = (
            f"{messages} messages of whole blocks of 16 bytes are needed, not {data.nbytes} bytes"
        )
        raise invalid(text + ("" if decrypts or messages != 1 else "; or use padding pkcs7"))
    return _Task(decrypts=decrypts, key=bytes(key), vectors=vectors, data=whole, messages=messages)


def _unpadded(data: Bytes) -> Bytes:
    """Remove the padding of PKCS #7 (RFC 5652 section 6.3). Raises OpFailed(EINVAL)."""
    added = int(data[-1])
    if not 1 <= added <= aes.BLOCK_BYTES or (data[-added:] != added).any():
        raise invalid("the padding is not valid: another key or vector, or changed data")
    return data[:-added]


OPERATIONS = (OpensslCbc(), KernelCbc())
