#!/usr/bin/env python3
"""Finds the proteins most similar to each query; the work is done on the leased device."""

import os
import sys
from pathlib import Path

import remote_gpu.client as gpu

source = Path(os.environ["INPUT_FILE_PATH"])
try:
    with gpu.connect() as device:
        found = device.op(
            "sequence_search",
            source.read_bytes(),
            database=os.environ.get("DATABASE", "proteins"),
            top=int(os.environ.get("TOP", "10")),
            file=source.name,
        )
except gpu.RemoteError as error:
    sys.exit(f"sequence search: {error}")

Path(os.environ["TMP_OUTPUT_DIR"], f"{source.stem}.tsv").write_bytes(found.buffers[0])
print(
    f"{found.values['queries']} queries, {found.values['hits']} hits in"
    f" {found.values['database']['sequences']} proteins, by {found.implementation}"
)
