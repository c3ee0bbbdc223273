"""The packages that a local system needs beside those of `pip install orchgpu`."""

from __future__ import annotations

import importlib.util

from corekit.errors import AppError, ErrorCode
from orchgpu.local.servers import postgres_programs, weed

#: Extra → modules of it that its programs cannot start without. `numpy` stands for the operations
#: of a GPU host: gpud starts without them and offers less, which a demo would show too late.
_MODULES = {
    "local": ("anycrc", "awslambdaric", "numpy", "onnxruntime"),
    "moto": ("moto", "flask"),
    "own": ("psycopg",),
}


def check_installed(cloud: str) -> None:
    """Raise NOT_FOUND with the command that installs what a local system with this cloud needs."""
    extra = cloud if cloud in _MODULES else "local"
    needed = (*_MODULES["local"], *(_MODULES[extra] if extra != "local" else ()))
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if cloud == "own":
        servers = (("SeaweedFS", weed()), ("PostgreSQL", postgres_programs()))
        missing += [name for name, found in servers if found is None]
    if missing:
        raise AppError(
            ErrorCode.NOT_FOUND,
            f"a local system needs packages that are not installed ({', '.join(missing)}):"
            f" pip install 'orchgpu[{extra}]'",
            missing=missing,
            extra=extra,
        )
