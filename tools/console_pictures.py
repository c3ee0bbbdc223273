"""Pictures of the web console: starts a local system, gives it work, takes a picture of each view.

    python -m tools.console_pictures docs/pictures

The devices are emulated (docs/how-to/hosts.md), so that a machine without accelerators shows a
small fleet; their models are labelled so. Chromium must be installed (CONTRIBUTING.md).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
SAMPLE = ROOT / "fdl/examples/text-recognition/input/invoice.png"

DEVICES = """
seed: 7
devices:
- {kind: cuda, model: A100 40GB, count: 4, memory_mib: 40GiB, slots: 4, operations: {noop: *call}}
- {kind: cuda, model: L4, count: 2, memory_mib: 23GiB, slots: 2, operations: {noop: *call}}
"""
CALL = "{warm_ms: 2600, cold_ms: 1800, spread_pct: 40, memory_mib: 512}"

SCRIPT = """#!/usr/bin/env python3
import os, shutil, sys
import remote_gpu.client as gpu
with gpu.connect() as device:
    print("device", device.info.model, flush=True)
    for batch in range(STEPS):
        device.op("noop", b"tile")
        print(f"tile {batch + 1} of STEPS: {3 + batch * 7 % 5} objects", flush=True)
if "broken" in os.environ["INPUT_FILE_PATH"]:
    sys.exit("the image ends after 512 bytes: it is not a whole PNG")
target = os.environ["TMP_OUTPUT_DIR"]
shutil.copy(os.environ["INPUT_FILE_PATH"], target)
with open(os.path.join(target, "objects.json"), "w") as found:
    found.write('{"objects": [{"label": "line", "score": 0.98}]}\\n')
"""
#: function → (steps, memory in MiB, guaranteed compute in %, tenant)
FUNCTIONS = {
    "detect-objects": (2, 9000, 20, "vision"),
    "transcribe": (4, 14000, 30, "speech"),
    "embed-pages": (1, 5000, 10, "search"),
}


def main() -> int:
    """Write the pictures into the folder of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.console_pictures", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="orchgpu-pictures-") as work,
        system(Path(work)) as address,
        chromium() as browser,
    ):
        deploy(Path(work))
        upload(Path(work), rounds=16)
        take(browser, address, folder)
    return 0


@contextmanager
def system(work: Path) -> Iterator[str]:
    """The address of the console of a local system with emulated devices."""
    devices = work / "devices.yaml"
    devices.write_text(DEVICES.replace("*call", CALL))
    done = orchgpu(work, "up", "--detach", "--json", "--emulate", str(devices))
    try:
        yield str(json.loads(done)["endpoints"]["console"])
    finally:
        orchgpu(work, "down")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's browser."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SystemExit("no Chromium: install the package `chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


def orchgpu(work: Path, *arguments: str) -> str:
    """The output of one of our commands on the system of this folder."""
    environment: Mapping[str, str] = {**os.environ, "ORCHGPU_HOME": str(work / "home")}
    command = [sys.executable, "-m", "orchgpu", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout


def deploy(work: Path) -> None:
    """Deploy functions of several tenants."""
    entries = []
    for name, (steps, memory_mib, compute, tenant) in FUNCTIONS.items():
        script = work / f"{name}.py"
        script.write_text(SCRIPT.replace("STEPS", str(steps)))
        output = [{"storage_provider": "s3", "path": f"{name}-out"}]
        source = [{"storage_provider": "s3", "path": f"{name}-in"}]
        entries.append(
            {
                "lambda": {
                    "name": name,
                    "memory": 256,
                    "timeout": 120,
                    "init_script": script.name,
                    "output": output,
                },
                "gpu": {
                    "memory": memory_mib,
                    "compute": compute,
                    "kinds": ["cuda"],
                    "tenant": tenant,
                },
                "job": {"input": source},
            }
        )
    definition = work / "functions.yaml"
    definition.write_text(json.dumps({"functions": {"aws": entries}}))
    orchgpu(work, "deploy", str(definition))


def upload(work: Path, rounds: int) -> None:
    """Give each function files, one of them broken."""
    files = [work / f"page-{number:03d}.png" for number in range(rounds)]
    files[2] = work / "broken-002.png"
    for file in files:
        shutil.copy(SAMPLE, file)
    for name in FUNCTIONS:
        orchgpu(work, "put", *map(str, files), name)


def take(browser: Browser, address: str, folder: Path) -> None:
    """Pictures of the views, in both schemes and on a phone."""
    desk, phone = (1280, 800), (390, 780)
    with opened(browser, address, "light", desk) as page:
        shoot(page, "#/fleet", folder / "console-fleet.png")
    with opened(browser, address, "dark", desk) as page:
        shoot(page, "#/fleet", folder / "console-fleet-dark.png")
        page.goto(f"{address}#/jobs?state=FAILED")
        page.locator("tbody a").first.click(timeout=120_000)
        shoot(page, None, folder / "console-failed-job.png")
        page.goto(f"{address}#/jobs?state=SUCCEEDED&function=detect-objects")
        page.locator("tbody a").first.click(timeout=120_000)
        shoot(page, None, folder / "console-job.png")
    with opened(browser, address, "light", (1280, 1020)) as page:
        shoot(page, "#/activity?since_s=300", folder / "console-activity.png")
    with opened(browser, address, "light", phone) as page:
        shoot(page, "#/jobs", folder / "console-phone.png")


@contextmanager
def opened(browser: Browser, address: str, scheme: str, size: tuple[int, int]) -> Iterator[Page]:
    width, height = size
    context = browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": height},
    )
    page = context.new_page()
    page.goto(address)
    yield page
    context.close()


SETTLED_S = 2.0  #: previews, logs and charts of a view are there


def shoot(page: Page, view: str | None, path: Path) -> None:
    if view is not None:
        page.evaluate("view => { location.hash = view }", view)
    page.wait_for_selector("main h1")
    time.sleep(SETTLED_S)
    page.screenshot(path=path)
    sys.stdout.write(f"{path} {path.stat().st_size // 1024} kB\n")


if __name__ == "__main__":
    sys.exit(main())
