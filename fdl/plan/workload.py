"""The workload of a function that names none: what its jobs must find loaded on a device."""

from __future__ import annotations

import re

from fdl.model import BUILTIN, Function
from fdl.plan.resources import digest

_LABEL_CHARACTERS_MAX = 40
_DIGITS = 12


def workload_of(function: Function, contents: str) -> str:
    """The derived name: a label for people, and a hash of all that decides what is loaded.

    Those are the user's own files (`contents`: scripts, models and data of the package, of all
    steps of a group), the image, the configuration and the middleware. Functions that are equal in
    them have the same workload; the name, sizes, times and storage of a function are not in it.
    """
    declared = function.function
    configuration = {
        "contents": contents,
        "image": function.image,
        "handler": declared.handler,
        "layers": list(declared.layers),
        "process": dict(declared.variables),
        "script": dict(declared.container.variables),
        "middleware": function.gpu.middleware if function.gpu is not None else BUILTIN,
        "warm_key": function.gpu.request.warm_key if function.gpu is not None else None,
    }
    return f"{_label(function)}-{digest(configuration)[:_DIGITS]}"


def _label(function: Function) -> str:
    """The script, handler, group or image, without folders and suffix."""
    named = function.name if function.steps else function.runs or function.image or function.name
    last = named.rpartition("/")[2].partition(":")[0].partition("@")[0].partition(".")[0]
    return re.sub(r"[^\w-]+", "-", last, flags=re.ASCII)[:_LABEL_CHARACTERS_MAX] or "function"
