"""The process of one part: imports its module, runs it, writes its answer as JSON.

`python -m tools.gpu_check.process MODULE.py --kind KIND --result FILE --folder FOLDER`
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.report import end_in_order
from tools.gpu_check.part import Answer, LeftOutError, Target


def answer_of(module: Path, target: Target) -> dict[str, Any]:
    """`status`, `why`, `figures` and `notes` of a part's run."""
    spec = importlib.util.spec_from_file_location(f"gpu_part_{module.stem}", module)
    assert spec is not None, "a file that ends with .py has a loader"
    assert spec.loader is not None, "a file that ends with .py has a loader"
    loaded = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(loaded)
        answer: Answer = loaded.run(target)
    except LeftOutError as reason:
        return {"status": "left out", "why": str(reason), "figures": [], "notes": []}
    except Exception as error:
        traceback.print_exc()
        first = (str(error) or "no message").splitlines()[0]
        why = f"{type(error).__name__}: {first}"
        return {"status": "failed", "why": why, "figures": [], "notes": []}
    figures = [{k: v for k, v in asdict(f).items() if v is not None} for f in answer.figures]
    return {"status": "passed", "why": "", "figures": figures, "notes": answer.notes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", type=Path)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for temporary files")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    end_in_order()  # by an exception, so that the daemons of this part end too
    target = Target(kind=options.kind, folder=options.folder, quick=options.quick)
    found = answer_of(options.module, target)
    written = options.result.with_suffix(".tmp")
    written.write_text(json.dumps(found, indent=2))
    written.replace(options.result)


if __name__ == "__main__":
    main()
