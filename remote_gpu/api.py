"""The public names of `remote_gpu`: what operations and middlewares import, of this tree or others.

`docs/reference/operations.md` and `docs/how-to/middlewares.md` describe them; other
modules may move.
"""

from typing import TYPE_CHECKING

from remote_gpu.middleware.base import (
    Middleware,
    RpcProgram,
    ServerCommand,
    ServerLease,
    Summary,
    VisibleDevices,
    addresses,
    device_variables,
)
from remote_gpu.wire.errors import OpCode, OpFailed, invalid
from remote_gpu.wire.frames import BufferLike, Meta
from remote_gpu.wire.graphs import CONTENT_PREFIX, Scalar
from remote_gpu.wire.uses import DATA
from remote_gpu.wire.variables import ADDRESS, ClientRules
from remote_gpu.worker.arguments import (
    Arguments,
    Flag,
    Integer,
    Number,
    Port,
    Signature,
    Structure,
    Text,
)
from remote_gpu.worker.backends.base import Backend, Bound, DeviceMemory, Program
from remote_gpu.worker.backends.calls import Call, Calls, calls_of
from remote_gpu.worker.cards.card import Card, visible_ordinal
from remote_gpu.worker.joining import Caller, registered_model
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context, CpuOperation, Limits, Outcome
from remote_gpu.worker.programs.programs import OUTPUT_BYTES_MAX, run_program

if TYPE_CHECKING:  # its library is an extra of its own
    from remote_gpu.worker.backends.cuda import CudaBackend
