#!/usr/bin/env python3
"""One reader of the ensemble; its variables name it and set its threshold."""

import os
import sys
from pathlib import Path

import remote_gpu.client as gpu

source = Path(os.environ["INPUT_FILE_PATH"])
sure = float(os.environ["MIN_CONFIDENCE"])
try:
    with gpu.connect() as device:
        found = device.op("text_recognition", source.read_bytes(), min_confidence=sure)
except gpu.RemoteError as error:
    sys.exit(f"text recognition: {source.name}: {error}")
name = f"{source.stem}.{os.environ['READER']}.txt"
Path(os.environ["TMP_OUTPUT_DIR"], name).write_bytes(found.buffers[0])
