"""The console over 10,000 devices and 100,000 jobs: what it draws, in what time and memory.

Times and memory are reported (`-rP` shows them) and not asserted: they are those of the machine.
The number of elements is asserted, because it is what keeps both bounded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import quantiles

import pytest
from playwright.sync_api import Page, expect

from benchmarks.scale.generated import GeneratedSystem
from tests.browser.conftest import OpenPage
from tests.browser.fixture_server import FixtureServer, serving

ELEMENTS_MAX = 4_000
CHANGES = 400  #: of one batch, as the server sends at most

#: Scrolls an element step by step; returns the duration of each frame in ms.
SCROLL = """
async ([selector, steps]) => {
  const element = document.querySelector(selector);
  const frames = [];
  let last = performance.now();
  for (let step = 0; step < steps; step += 1) {
    element.scrollTop += element.clientHeight * 0.7;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - last);
    last = now;
  }
  return frames;
}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[FixtureServer]:
    large = GeneratedSystem(
        hosts=1250, devices_per_host=8, jobs=100_000, waiting=5_000, now_s=time.time()
    )
    with serving(FixtureServer(large)) as running:
        yield running


def elements(page: Page) -> int:
    return int(page.evaluate("document.querySelectorAll('*').length"))


def report(page: Page, name: str, frames: list[float]) -> None:
    heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
    ranks = quantiles(frames, n=20)
    print(  # noqa: T201
        f"{name}: {elements(page)} elements, {heap:.1f} MiB of heap, {len(frames)} frames, "
        f"median {ranks[9]:.1f} ms, 95 % {ranks[18]:.1f} ms, worst {max(frames):.1f} ms"
    )


def test_the_fleet_begins_as_cells_and_opens_a_host(
    server: FixtureServer, open_page: OpenPage
) -> None:
    page = open_page(server.address)
    expect(page.locator(".sub")).to_have_text("1\u202f250 hosts, 10\u202f000 devices")
    expect(page.locator(".cell").first).to_contain_text("gpu0000")
    report(page, "fleet", page.evaluate(SCROLL, [".scroller", 60]))
    assert elements(page) < ELEMENTS_MAX
    expect(page.locator(".cell").last).to_contain_text("gpu1249")
    page.locator(".cell").last.click()
    expect(page.locator(".device")).to_have_count(8)


def test_one_hundred_thousand_jobs_scroll_in_few_elements(
    server: FixtureServer, open_page: OpenPage
) -> None:
    page = open_page(server.address + "#/jobs")
    expect(page.locator(".foot")).to_contain_text("of 100\u202f000 jobs")
    frames: list[float] = []
    for _ in range(12):
        frames += page.evaluate(SCROLL, [".scroller", 10])
    report(page, "jobs", frames)
    assert elements(page) < ELEMENTS_MAX
    loaded = page.locator(".foot").inner_text().split(" of ")[0]
    assert int(loaded.replace("\u202f", "")) > 300


def test_bursts_of_changes_cause_few_requests(server: FixtureServer, open_page: OpenPage) -> None:
    page = open_page(server.address + "#/jobs")
    expect(page.locator(".foot")).to_contain_text("of 100\u202f000 jobs")
    expect(page.locator(".connection")).to_have_text("live")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    batches = 12
    for batch in range(batches):
        numbers = range(batch * CHANGES, (batch + 1) * CHANGES)
        server.publish([{"event": "job", "job": server.system.job_id(one)} for one in numbers])
        page.wait_for_timeout(100)
    report(page, "changes", page.evaluate(SCROLL, [".scroller", 30]))
    lists = [one for one in asked if "/api/jobs" in one and "after=" not in one]
    assert 1 <= len(lists) < batches
    assert elements(page) < ELEMENTS_MAX


def test_the_queue_and_activity_of_a_large_system_stay_small(
    server: FixtureServer, open_page: OpenPage
) -> None:
    page = open_page(server.address + "#/queue")
    expect(page.locator(".sub")).to_contain_text("5\u202f000 waiting")
    report(page, "queue", page.evaluate(SCROLL, [".scroller", 60]))
    assert elements(page) < ELEMENTS_MAX
    page.evaluate("location.hash = '#/activity'")
    expect(page.locator(".gantt-label").first).to_contain_text("gpu0000/0")
    report(page, "activity", page.evaluate(SCROLL, [".gantt-rows", 60]))
    assert elements(page) < ELEMENTS_MAX
