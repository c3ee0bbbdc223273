"""Every op of a requester, and its name on the wire."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_scheduler.protocol.requester import (
    Adopt,
    Attempt,
    Beat,
    Drain,
    Explain,
    FailAttempt,
    Finish,
    Forget,
    HandBack,
    Handle,
    Inventory,
    Leases,
    Orphans,
    ParametersOf,
    Queue,
    RecordOf,
    Records,
    Release,
    Renew,
    Reopen,
    Reserve,
    Resize,
    SetParameter,
    StagedOp,
    Transfer,
    Undrain,
    Watch,
    Withdraw,
)

Op = (
    Beat
    | Watch
    | Attempt
    | Adopt
    | Orphans
    | RecordOf
    | Records
    | Handle
    | HandBack
    | Renew
    | StagedOp
    | Release
    | FailAttempt
    | Finish
    | Reopen
    | Reserve
    | Withdraw
    | Explain
    | Inventory
    | Leases
    | Queue
    | Drain
    | Undrain
    | Forget
    | ParametersOf
    | SetParameter
    | Resize
    | Transfer
)

#: Wire name → class of every op but `hello`.
OPS: Mapping[str, type[Op]] = {
    "beat": Beat,
    "watch": Watch,
    "attempt": Attempt,
    "adopt": Adopt,
    "orphans": Orphans,
    "record": RecordOf,
    "records": Records,
    "handle": Handle,
    "hand_back": HandBack,
    "renew": Renew,
    "staged": StagedOp,
    "release": Release,
    "fail_attempt": FailAttempt,
    "finish": Finish,
    "reopen": Reopen,
    "reserve": Reserve,
    "withdraw": Withdraw,
    "explain": Explain,
    "inventory": Inventory,
    "leases": Leases,
    "queue": Queue,
    "drain": Drain,
    "undrain": Undrain,
    "forget": Forget,
    "parameters": ParametersOf,
    "set": SetParameter,
    "resize": Resize,
    "transfer": Transfer,
}

#: The inverse, for clients.
OP_NAMES: Mapping[type[Op], str] = {cls: name for name, cls in OPS.items()}
