#!/usr/bin/env python3
"""Copies its input to each reader's place: S3 starts one function per object, not two."""

import os
import shutil
from pathlib import Path

source = Path(os.environ["INPUT_FILE_PATH"])
for reader in ("strict", "lenient"):
    folder = Path(os.environ["TMP_OUTPUT_DIR"], reader)
    folder.mkdir()
    shutil.copyfile(source, folder / source.name)
