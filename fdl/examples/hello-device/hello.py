#!/usr/bin/env python3
"""Sends its input to the leased device and writes down what came back, and from where."""

import os
from pathlib import Path

import remote_gpu.client as gpu

source = Path(os.environ["INPUT_FILE_PATH"])
with gpu.connect() as device:
    echo = device.op("noop", source.read_bytes()).buffers[0]
    info = device.info

target = Path(os.environ["TMP_OUTPUT_DIR"], f"{source.name}.hello.txt")
target.write_bytes(f"{info.kind} device {info.model!r} says: ".encode() + bytes(echo))
