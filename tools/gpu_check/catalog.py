"""The parts in a folder, found by presence: a module with `PART` and `run`.

Declarations are read from the source: importing a part may need libraries that are not here.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from tools.gpu_check.part import Part

PARTS = Path(__file__).parent / "parts"


def parts_in(folder: Path = PARTS) -> dict[str, Part]:
    """Names (of the modules) → declarations, in the order of the run."""
    found = {
        path.stem: declaration(path)
        for path in sorted(folder.glob("*.py"))
        if path.stem != "__init__"
    }
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


def declaration(path: Path) -> Part:
    """The `PART` of a module. Raises ValueError with the path."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PART":
            call = node.value
            if not isinstance(call, ast.Call) or call.args:
                break
            try:
                return Part(**{str(k.arg): ast.literal_eval(k.value) for k in call.keywords})
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}: PART: {error}") from None
    raise ValueError(f"{path}: a part has a line PART = Part(…) with keyword arguments")


def missing_modules(part: Part) -> list[str]:
    """Those of its modules that are not installed."""
    return [name for name in part.modules if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False
