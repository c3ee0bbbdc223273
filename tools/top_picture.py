"""Records a real session of `orchgpu top` as one animated SVG.

    python -m tools.top_picture docs/pictures/top.svg 1@10 2@6 3@6 down,enter@8

Each step is a list of keys, separated by commas, and the seconds for which the screen is recorded
after them. The scheduler and the cloud are those of the environment, as for every command; with
`--load` a local system is started for the recording, with emulated devices and jobs of three
tenants.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from corekit.cli.chart import BLOCKS
from orchgpu.cli.top.app import TopApp
from orchgpu.jobs.scheduler import scheduler_address
from tools.animated_terminal import animated
from tools.console_pictures import deploy, system, upload

COLUMNS, ROWS = 100, 25
#: Files of each function of a load, and the time after which they keep the devices busy.
FILES, BUSY_AFTER_S = 30, 12.0


async def pictures(steps: Sequence[str], every_s: float) -> list[str]:
    """The screen every `every_s` seconds, during all steps."""
    app = TopApp(scheduler_address(None), BLOCKS)
    found = []
    async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
        for step in steps:
            keys, _, length_s = step.partition("@")
            await pilot.press(*keys.split(","))
            for _ in range(max(1, round(float(length_s or every_s) / every_s))):
                await pilot.pause(every_s)
                found.append(app.export_screenshot(simplify=True))
    return found


def under_load(steps: Sequence[str], every_s: float) -> list[str]:
    """`pictures` of a local system that is busy."""
    with tempfile.TemporaryDirectory(prefix="orchgpu-top-") as folder:
        work = Path(folder)
        with system(work):
            os.environ["ORCHGPU_HOME"] = str(work / "home")
            deploy(work)
            uploading = threading.Thread(target=upload, args=(work, FILES))
            uploading.start()
            uploading.join(BUSY_AFTER_S)
            found = asyncio.run(pictures(steps, every_s))
            uploading.join()
            return found


def main() -> None:
    """Run the session and write the picture."""
    parser = argparse.ArgumentParser(prog="tools.top_picture", description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("steps", nargs="+", metavar="KEYS@SECONDS")
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--load", action="store_true", help="Start a local system with jobs.")
    arguments = parser.parse_args()
    record = under_load if arguments.load else lambda *of: asyncio.run(pictures(*of))
    found = record(arguments.steps, arguments.every)
    arguments.picture.write_text(animated(found, arguments.every, "orchgpu top"))


if __name__ == "__main__":
    main()
