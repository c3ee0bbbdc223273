"""Every module that calls itself pure is held to the import contract of purity."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

from tests.tidy.tracked import ROOT, outside, tracked

_CONTRACT = "importlinter:contract:pure-cores"


def contracted() -> tuple[str, ...]:
    """Modules and packages of the contract."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    return tuple(parser[_CONTRACT]["source_modules"].split())


def product() -> dict[str, Path]:
    """The modules of the product by name."""
    others = ("tests/", "benchmarks/", "tools/", "fdl/examples/")
    return {module_name(path): path for path in tracked("*.py") if outside(path, *others)}


def module_name(path: Path) -> str:
    """`gpu_scheduler.core.machine` of its file; a package of its `__init__.py`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def claims_purity(path: Path) -> bool:
    """Whether the docstring has `Pure.`, `Pure;` or `pure:` as a claim about the module."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return re.search(r"\bPure[.;:]|; pure\b|, pure\.", docstring) is not None


def covered(module: str) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in contracted())


def test_a_module_that_calls_itself_pure_is_in_the_contract() -> None:
    claimed = [module for module, path in product().items() if claims_purity(path)]
    assert claimed
    assert [module for module in claimed if not covered(module)] == []


def test_the_contract_names_modules_that_exist() -> None:
    assert [one for one in contracted() if one not in product()] == []
