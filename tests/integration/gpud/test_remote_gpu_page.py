"""docs/start/remote-gpu.md is true: its blocks of Python run in order against a host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from array import array
from pathlib import Path

import yaml

from fdl.parse import parse
from tests.integration.gpud.conftest import Gpud

PAGE = (Path(__file__).parents[3] / "docs" / "start/remote-gpu.md").read_text()
BLOCKS = re.findall(r"(?ms)^```python\n(.*?)^```", PAGE)


def test_the_pages_script_runs_on_a_lent_device(shared_gpud: Gpud, tmp_path: Path) -> None:
    assert len(BLOCKS) >= 8
    script = tmp_path / "page.py"
    script.write_text("\n".join(BLOCKS))
    given = tmp_path / "matrix.bin"
    given.write_bytes(array("f", [1, 2, 3, 4]).tobytes())
    job = {"INPUT_FILE_PATH": str(given), "TMP_OUTPUT_DIR": str(tmp_path)}
    with shared_gpud.open(shared_gpud.install()) as session:
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script)],
            env={**os.environ, **session.environment(), **job},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == ""
    assert (tmp_path / "square.bin").read_bytes() == array("f", [7, 10, 15, 22]).tobytes()


def test_the_pages_definition_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"(?ms)^```yaml\n(.*?)^```", PAGE)
    (function,) = parse(block.encode(), "fdl.yaml").functions.aws
    assert function.name == "product"
    assert yaml.safe_load(block)["functions"]["aws"][0]["lambda"]["init_script"] == "product.py"
