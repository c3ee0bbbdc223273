#!/usr/bin/env python3
"""Reads the text in an image; decoding, models and all run on the leased device."""

import json
import os
import sys
from pathlib import Path

import remote_gpu.client as gpu

source = Path(os.environ["INPUT_FILE_PATH"])
target = Path(os.environ["TMP_OUTPUT_DIR"])
try:
    with gpu.connect() as device:
        found = device.op("text_recognition", source.read_bytes())
except gpu.RemoteError as error:
    sys.exit(f"text recognition: {source.name}: {error}")

(target / f"{source.stem}.txt").write_bytes(found.buffers[0])
(target / f"{source.stem}.json").write_text(
    json.dumps({"implementation": found.implementation, **found.values}, indent=1) + "\n"
)
print(f"{len(found.values['lines'])} lines, by {found.implementation}")
