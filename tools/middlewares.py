"""Writes what follows from the files of remote_gpu/middleware/plugins, after one of them changed.

The table of docs/how-to/middlewares.md, the rules that travel in a function's package, and the
names in the JSON Schema of definitions. `python -m tools.middlewares` from the root of the sources.
"""

from __future__ import annotations

import json

from fdl.keys.document import json_schema
from remote_gpu.middleware.base import Middleware
from remote_gpu.middleware.registry import known, rules_table
from remote_gpu.wire.variables import TABLE
from tools.page_sections import DOCS, renew, with_section

ROOT = DOCS.parent
PAGE = DOCS / "how-to/middlewares.md"
SCHEMA = ROOT / "fdl" / "schema.json"


def table() -> str:
    """The middlewares beside our own, as Markdown."""
    head = (
        "| `middleware` | for programs of | the runner sets | the image holds and declares"
        " | server | several hosts |"
    )
    others = [middleware for name, middleware in known().items() if name != "builtin"]
    return "\n".join([head, "| --- | --- | --- | --- | --- | --- |", *map(_row, others), ""])


def _row(middleware: Middleware) -> str:
    names = [name.replace(r"\d{1,2}", "<n>") for name in middleware.client.variables]
    summary = middleware.summary
    cells = (
        f"`{middleware.name}`",
        summary.programs,
        ", ".join(f"`{name}`" for name in names),
        summary.image,
        summary.server,
        "no" if middleware.one_host else "yes",
    )
    return f"| {' | '.join(cells)} |"


def page(text: str) -> str:
    """The page with the table as it must be."""
    return with_section(text, "middlewares", table())


def schema() -> str:
    """`fdl/schema.json`."""
    return json.dumps(json_schema(tuple(known())), indent=2) + "\n"


if __name__ == "__main__":
    renew(PAGE, page)
    TABLE.write_text(rules_table(), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")
