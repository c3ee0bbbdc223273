"""The console of a real system of processes on this machine: jobs, files, drains, restarts."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import OpenPage
from tests.e2e.live import COPY, FunctionSpec, Live, live_system, until

SLOW = "#!/bin/sh\nsleep 120\n"
FAILING = "#!/bin/sh\necho reading the model\necho out of luck >&2\nexit 3\n"
FILM = """\
functions:
  aws:
  - lambda:
      {name: cut, init_script: cut.sh, timeout: 30, container: {timeout_threshold: 10},
       input: [{path: film/in}], output: [{path: film/parts}]}
  - lambda:
      {name: measure, init_script: measure.sh, timeout: 60, container: {timeout_threshold: 10},
       input: [{path: film/parts, each: true}], output: [{path: film/counts}]}
    gpu: {memory: 256, kinds: [cpu]}
workflows:
  film: {steps: [cut, measure]}
"""
CUT = '#!/bin/sh\nfor n in 1 2; do echo $n > "$TMP_OUTPUT_DIR/$n.part"; done\n'
MEASURE = '#!/bin/sh\nsleep 3\ncp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"\n'
#: Longest wait for something that a job does; real time of this system runs at 1/20.
JOB_MS = 60_000

#: Drops one file on an element, as a browser does it.
DROP = """
([selector, name, content]) => {
  const files = new DataTransfer();
  const bytes = Uint8Array.from(atob(content), (letter) => letter.codePointAt(0));
  files.items.add(new File([bytes], name, {type: "text/plain"}));
  for (const type of ["dragenter", "dragover", "drop"]) {
    const event = new DragEvent(type, {dataTransfer: files, bubbles: true, cancelable: true});
    document.querySelector(selector).dispatchEvent(event);
  }
}
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_system(tmp_path_factory.mktemp("live")) as system:
        system.start_all()
        system.start("console")
        specs = {"copy": COPY, "failing": FAILING, "slow": SLOW}
        system.deploy({name: FunctionSpec(script) for name, script in specs.items()})
        yield system


def address(live: Live, view: str = "") -> str:
    return f"{live.ready['console']['url']}{view}"


def test_a_new_job_appears_and_succeeds_without_a_reload(live: Live, open_page: OpenPage) -> None:
    page = open_page(address(live, "#/jobs?function=copy"))
    expect(page.locator(".connection")).to_have_text("live")
    page.evaluate("window.loaded = true")
    live.upload("copy", "first.txt")
    row = page.locator("tbody tr", has_text="first.txt")
    expect(row).to_contain_text("succeeded", timeout=JOB_MS)
    assert page.evaluate("window.loaded")
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("first.txt")
    for lane in ("Queue", "Function", "Device"):
        expect(page.locator(".timeline .gantt-label", has_text=lane)).to_have_count(1)


def test_a_dropped_file_becomes_a_job_with_an_output(live: Live, open_page: OpenPage) -> None:
    page = open_page(address(live, "#/functions/copy"))
    expect(page.locator("[data-drop]")).to_be_visible()
    expect(page.locator(".graph")).to_contain_text("copy-out")
    content = base64.b64encode(b"dropped content\n").decode()
    page.evaluate(DROP, ["[data-drop]", "dropped.txt", content])
    page.locator("[data-drop] li a").click(timeout=JOB_MS)
    expect(page.get_by_role("heading", level=1)).to_have_text("dropped.txt")
    expect(page.locator(".page-title .state")).to_have_text("succeeded", timeout=JOB_MS)
    expect(page.locator(".outputs pre")).to_contain_text("dropped content")


def test_a_failed_job_has_its_story_and_its_log(live: Live, open_page: OpenPage) -> None:
    job = live.upload("failing", "bad.txt")
    page = open_page(address(live, "#/jobs?state=FAILED"))
    page.locator("tbody tr", has_text="bad.txt").get_by_role("link").click(timeout=JOB_MS)
    expect(page.locator(".page-title .state")).to_have_text("failed")
    expect(page.locator(".story")).to_contain_text("exit nonzero")
    expect(page.locator(".log")).to_contain_text("out of luck", timeout=JOB_MS)
    assert job in page.url
    page.evaluate("location.hash = '#/jobs?state=LETTERS'")
    expect(page.locator("main")).to_contain_text("failing")


def test_a_running_job_has_a_log_that_grows_and_is_cancelled(
    live: Live, open_page: OpenPage
) -> None:
    job = live.upload("slow", "long.txt")
    page = open_page(address(live, "#/jobs?state=live"))
    page.locator("tbody tr", has_text="long.txt").get_by_role("link").click(timeout=JOB_MS)
    state = page.locator(".page-title .state")
    expect(state).to_have_text("running", timeout=JOB_MS)
    expect(page.locator(".log")).to_contain_text("lease granted")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(state).to_have_text("cancelled", timeout=JOB_MS)
    assert job in page.url
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


def press(page: Page, part: Locator, action: str) -> None:
    """Press the first button of this name in a part of the page, and confirm."""
    part.get_by_role("button", name=action).first.click()
    page.get_by_role("dialog").get_by_role("button", name=action, exact=True).click()


def test_a_host_is_drained_and_undrained(live: Live, open_page: OpenPage) -> None:
    page = open_page(address(live))
    host = page.locator(".host").first
    name = host.get_by_role("heading", level=2).inner_text()
    press(page, host, "Drain")
    expect(host.locator("header").first).to_contain_text("drained")
    assert live.host_state(name) == "DRAINED"
    press(page, host, "Undrain")
    expect(host.locator("header").first).to_contain_text("up")
    until("the host is up", lambda: live.host_state(name) == "UP")


def test_a_device_drains_until_its_job_has_ended(live: Live, open_page: OpenPage) -> None:
    job = live.upload("slow", "drained.txt")
    page = open_page(address(live))
    device = page.locator(".device", has=page.locator(f"a[title={job}]"))
    expect(device.locator(".state")).to_have_text("busy", timeout=JOB_MS)
    place = (device.get_attribute("aria-label") or "").removeprefix("device ")
    drained = page.get_by_label(f"device {place}", exact=True)  # also when its job has ended
    press(page, drained, "Drain")
    expect(drained.locator(".state")).to_have_text("draining")
    expect(page.locator(".host", has=drained).locator("header").first).to_contain_text("up")
    drained.get_by_role("link").click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_role("dialog")).to_have_count(0)  # it would take the keys
    page.keyboard.press("g")
    page.keyboard.press("f")
    expect(drained.locator(".state")).to_have_text("drained", timeout=JOB_MS)
    press(page, drained, "Undrain")
    expect(drained.locator(".state")).to_have_text("idle")


def test_a_dropped_file_becomes_a_run_that_fills_the_graph(live: Live, open_page: OpenPage) -> None:
    live.deploy_text("film", FILM, {"cut.sh": CUT, "measure.sh": MEASURE})
    page = open_page(address(live, "#/functions/cut"))
    expect(page.locator("[data-drop]")).to_contain_text("becomes a run", timeout=JOB_MS)
    page.evaluate(DROP, ["[data-drop]", "a.mp4", base64.b64encode(b"film").decode()])
    link = page.locator("[data-drop] li a")
    expect(link).to_have_attribute("href", re.compile("#/runs/r[0-9a-f]{25}"), timeout=JOB_MS)
    row = page.locator(".runs tbody tr", has_text="a.mp4")
    expect(row).to_contain_text("1 of 2: measure", timeout=JOB_MS)
    step = page.locator(".graph .step", has_text="measure")
    expect(step).to_contain_text("started", timeout=JOB_MS)
    expect(step).to_contain_text("cpu on", timeout=JOB_MS)
    expect(row).to_contain_text("succeeded", timeout=JOB_MS)
    expect(step).to_contain_text("done · 2 of 2", timeout=JOB_MS)
    link.click()
    expect(page.locator(".page-title .state")).to_have_text("succeeded", timeout=JOB_MS)
    expect(page.locator(".timeline a.gantt-span")).to_have_count(3)
    expect(page.locator(".outputs li")).to_have_count(2)
    page.get_by_role("region", name="Jobs of the run").get_by_role("link").nth(1).click()
    expect(page.locator(".facts")).to_contain_text("step cut", timeout=JOB_MS)


def test_the_page_continues_after_a_restart_of_the_scheduler(
    live: Live, open_page: OpenPage
) -> None:
    page = open_page(address(live, "#/jobs"))
    expect(page.locator(".connection")).to_have_text("live")
    live.terminate("scheduler")
    expect(page.locator(".banner")).to_contain_text("scheduler", timeout=JOB_MS)
    live.start("scheduler")
    expect(page.locator(".banner")).to_have_count(0, timeout=JOB_MS)
    live.upload("copy", "after.txt")
    expect(page.locator("tbody tr", has_text="after.txt")).to_contain_text(
        "succeeded", timeout=JOB_MS
    )
