#!/usr/bin/env python3
"""Reads the text in an image on the leased device."""

import os
import sys
from pathlib import Path

import remote_gpu.client as gpu

source = Path(os.environ["INPUT_FILE_PATH"])
try:
    with gpu.connect() as device:
        found = device.op("text_recognition", source.read_bytes())
except gpu.RemoteError as error:
    sys.exit(f"text recognition: {source.name}: {error}")
Path(os.environ["TMP_OUTPUT_DIR"], f"{source.stem}.txt").write_bytes(found.buffers[0])
