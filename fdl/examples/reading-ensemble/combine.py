#!/usr/bin/env python3
"""Combines what the readers found: the strict one's lines, then those that only others read."""

import os
from pathlib import Path

# the files of several steps are below one folder: STEP/NAME
folder = Path(os.environ["INPUT_FILE_PATH"])
texts = {file.name.split(".")[-2]: file for file in sorted(folder.glob("*/*.txt"))}
sure = texts.pop("strict").read_text().splitlines()
more = [
    f"? {line}"
    for file in texts.values()
    for line in file.read_text().splitlines()
    if line not in sure
]
stem = next(iter(folder.glob("*/*.strict.txt"))).name.removesuffix(".strict.txt")
Path(os.environ["TMP_OUTPUT_DIR"], f"{stem}.txt").write_text(
    "".join(f"{line}\n" for line in [*sure, *more])
)
print(f"{len(sure)} certain lines, {len(more)} others")
