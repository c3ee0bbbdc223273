"""Every view of the console over a generated system: both schemes, a phone, keys, accessibility."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.resources import files

import pytest
from playwright.sync_api import Page, expect

from benchmarks.scale.generated import GeneratedSystem
from tests.browser.conftest import OpenPage
from tests.browser.fixture_runs import FAILED as FAILED_RUN
from tests.browser.fixture_runs import RUNNING as RUNNING_RUN
from tests.browser.fixture_server import FixtureServer, serving
from tests.e2e.live import until

#: Violations that keep a person from using a view; `moderate` ones are about structure.
SERIOUS = {"serious", "critical"}
#: Tags of the rules: those of the standard, without axe's own recommendations.
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
FAILED, RUNNING, NEWEST = 99, 6, 0


@pytest.fixture(scope="module")
def server() -> Iterator[FixtureServer]:
    with serving(FixtureServer(GeneratedSystem(now_s=time.time()))) as running:
        yield running


def views(server: FixtureServer) -> dict[str, str]:
    """Address of each view → text that is there when its data are."""
    return {
        "#/fleet": "its max of 4 is reached",
        "#/queue": "in the order of service",
        "#/jobs": "jobs loaded",
        "#/jobs?state=LETTERS": "No dead letter",
        f"#/jobs/{server.system.job_id(FAILED)}": "CUDA error: out of memory",
        f"#/jobs/{server.system.job_id(RUNNING)}": "Timeline",
        "#/functions": "thumbnail",
        "#/functions/yolo-detect": "Roll back",
        f"#/runs/{RUNNING_RUN}": "holiday.zip",
        f"#/runs/{FAILED_RUN}": "exit nonzero",
        "#/activity": "Utilisation",
        "#/settings": "aging_s",
    }


def go(page: Page, view: str, text: str) -> None:
    page.evaluate("view => { location.hash = view }", view)
    expect(page.locator("main")).to_contain_text(text)
    expect(page.locator(".waiting")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_serious_fault_of_accessibility(
    server: FixtureServer, open_page: OpenPage, scheme: str
) -> None:
    page = open_page(server.address, scheme=scheme)
    expect(page.locator("html")).to_have_attribute("data-theme", scheme)
    # structure is the same in both schemes, and all rules take long
    rules = ["color-contrast"] if scheme == "dark" else WCAG
    options = {"runOnly": rules, "resultTypes": ["violations"]}
    page.evaluate(AXE)
    found = []
    for view, text in views(server).items():
        go(page, view, text)
        for fault in page.evaluate("options => axe.run(document, options)", options)["violations"]:
            if fault["impact"] in SERIOUS:
                places = [node["html"][:120] for node in fault["nodes"][:3]]
                found.append(f"{view}: {fault['id']} ({fault['impact']}): {places}")
    assert found == []


def test_all_of_a_view_is_in_a_landmark(server: FixtureServer, open_page: OpenPage) -> None:
    page = open_page(server.address)
    page.evaluate(AXE)
    go(page, "#/fleet", "gpu0002")
    options = {"runOnly": ["region"], "resultTypes": ["violations"]}
    found = page.evaluate("options => axe.run(document, options)", options)["violations"]
    assert [one["nodes"][0]["html"][:120] for one in found] == []


def test_jobs_are_sorted_chosen_and_exported(server: FixtureServer, open_page: OpenPage) -> None:
    page = open_page(server.address + "#/jobs")
    expect(page.locator("tbody tr").first).to_contain_text("vision")
    with page.expect_request("**/api/jobs?*sort=duration*"):
        page.get_by_role("button", name="Duration").click()
    head = page.get_by_role("columnheader", name="Duration")
    expect(head).to_have_attribute("aria-sort", "ascending")
    with page.expect_request("**/api/jobs?*order=descending*"):
        page.get_by_role("button", name="Duration").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    exports = page.get_by_role("link", name="CSV")
    assert "sort" not in str(exports.get_attribute("href"))
    page.get_by_role("checkbox", name="Job input-000000.jpg").check()
    page.get_by_role("checkbox", name="Job input-000005.jpg").check()
    page.get_by_role("button", name="Cancel 2").click()
    page.get_by_role("button", name="Cancel them").click()
    expect(page.locator(".notice")).to_contain_text("2 jobs cancelled.")
    expect(page.locator(".together")).to_have_count(0)
    ids = {server.system.job_id(0), server.system.job_id(5)}
    assert set(server.changes) == {("cancel", one) for one in ids}


def test_a_run_fills_the_graph_beside_it(server: FixtureServer, open_page: OpenPage) -> None:
    page = open_page(server.address + "#/functions/yolo-detect")
    box = page.locator(".graph .step")
    expect(box).to_have_count(1)
    expect(box).to_contain_text("started · 2 of 4")
    expect(box.locator(".part")).to_have_attribute("width", "102")
    rows = page.locator(".runs tbody tr")
    expect(rows.first).to_contain_text("1 of 4: yolo-detect")
    rows.nth(1).get_by_role("button", name="Show").click()
    expect(box).to_contain_text("failed")
    rows.first.get_by_role("link", name="holiday.zip").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("holiday.zip")
    expect(page.locator(".graph .step")).to_have_count(4)
    expect(page.locator(".timeline a.gantt-span.open")).to_have_count(2)
    expect(page.get_by_role("region", name="Jobs of the run").locator("tbody tr")).to_have_count(5)


def test_a_run_is_cancelled_and_a_failed_one_runs_again(
    server: FixtureServer, open_page: OpenPage
) -> None:
    page = open_page(server.address + f"#/runs/{RUNNING_RUN}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.locator(".notice")).to_contain_text("is being cancelled")
    go(page, f"#/runs/{FAILED_RUN}", "exit nonzero")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".notice").last).to_contain_text("runs again")
    assert server.changes[-2:] == [("cancel", RUNNING_RUN), ("retry", FAILED_RUN)]


def test_functions_have_distinct_colours_that_do_not_depend_on_the_page(
    server: FixtureServer, open_page: OpenPage
) -> None:
    def colours(page: Page) -> list[str]:
        expect(page.locator(".legend.pad")).to_contain_text("thumbnail")
        found = page.evaluate(
            "[...document.querySelectorAll('.legend.pad span')]"
            ".map(one => one.textContent + ' ' + one.querySelector('i').style.background)"
        )
        return sorted(one for one in found if "cold" not in one)

    wide = open_page(server.address + "#/activity")
    phone = open_page(server.address + "#/fleet", width=380)
    go(phone, "#/activity", "Utilisation")
    assert colours(wide) == colours(phone)
    assert len({one.split()[-1] for one in colours(wide)}) == 5


def test_each_view_fits_a_phone(server: FixtureServer, open_page: OpenPage) -> None:
    page = open_page(server.address, width=380, height=760)
    wide = []
    for view, text in views(server).items():
        go(page, view, text)
        width = page.evaluate("document.documentElement.scrollWidth")
        inner = page.evaluate("document.querySelector('main').scrollWidth")
        if max(width, inner) > 380:
            wide.append(f"{view}: {width} {inner}")
    assert wide == []
    expect(page.get_by_role("navigation", name="Views")).to_be_in_viewport()


def test_keys_reach_every_view_the_search_and_the_help(
    server: FixtureServer, open_page: OpenPage
) -> None:
    page = open_page(server.address)
    expect(page.get_by_role("heading", level=1)).to_have_text("Fleet")
    for key, title in zip(
        "qjuasf", ("Queue", "Jobs", "Functions", "Activity", "Settings", "Fleet"), strict=True
    ):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
    page.keyboard.press("/")
    page.keyboard.type("gj")  # letters in a field are text
    expect(page.get_by_role("searchbox")).to_have_value("gj")
    page.keyboard.press("Escape")
    expect(page.get_by_role("searchbox")).not_to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("go to jobs")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_arrow_keys_move_between_the_rows_of_a_table(
    server: FixtureServer, open_page: OpenPage
) -> None:
    page = open_page(server.address + "#/jobs")
    links = page.locator("tbody a")
    links.first.focus()
    page.keyboard.press("ArrowDown")
    expect(links.nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("input-000001.jpg")


def test_a_change_of_a_job_is_shown_without_a_reload(
    server: FixtureServer, open_page: OpenPage
) -> None:
    page = open_page(server.address + "#/jobs")
    row = page.locator("tbody tr", has_text="input-000000.jpg")
    expect(row).to_contain_text("waiting")
    expect(page.locator(".connection")).to_have_text("live")
    server.system.changed[NEWEST] = "RUNNING"
    server.publish([{"event": "job", "job": server.system.job_id(NEWEST)}])
    expect(row).to_contain_text("running")
    del server.system.changed[NEWEST]


def test_a_lost_connection_resumes_at_its_position(
    server: FixtureServer, open_page: OpenPage
) -> None:
    page = open_page(server.address + "#/jobs")
    expect(page.locator(".connection")).to_have_text("live")
    before = len(server.resumed)
    position = server.publish([{"event": "queue", "waiting": 59}])
    page.wait_for_timeout(200)  # the event is read before the end of the stream
    server.cut()
    until("another stream", lambda: len(server.resumed) > before)
    expect(page.locator(".connection")).to_have_text("live")
    expect(page.locator(".banner")).to_have_count(0)
    assert server.resumed[before:] == [position]


def test_a_scheduler_that_is_away_is_named_in_a_banner(
    server: FixtureServer, open_page: OpenPage
) -> None:
    page = open_page(server.address)
    expect(page.locator(".connection")).to_have_text("live")
    server.system.connected = False
    server.publish([{"event": "scheduler", "connected": False}])
    expect(page.locator(".banner")).to_contain_text("The scheduler does not answer")
    server.system.connected = True
    server.publish([{"event": "scheduler", "connected": True}])
    expect(page.locator(".banner")).to_have_count(0)


def test_names_of_users_are_text_and_never_markup(
    server: FixtureServer, open_page: OpenPage
) -> None:
    page = open_page(server.address + "#/jobs")
    expect(page.locator("tbody")).to_contain_text("input-000000.jpg")
    server.system.key = "<img src=x onerror=alert(1)>-{}.jpg"
    server.publish([{"event": "reset"}])
    expect(page.locator("tbody tr").first).to_contain_text("<img src=x onerror=alert(1)>-0.jpg")
    assert page.locator("tbody img").count() == 0
    server.system.key = GeneratedSystem.key


def test_a_reader_sees_everything_and_changes_nothing(open_page: OpenPage) -> None:
    with serving(FixtureServer(GeneratedSystem(now_s=time.time()), role="reader")) as server:
        page = open_page(server.address)
        for view, text in views(server).items():
            if "yolo" not in view:
                go(page, view, text)
            else:
                go(page, view, "History")
            names = page.locator("main").get_by_role("button").all_inner_texts()
            acts = {"Drain", "Undrain", "Retry", "Cancel", "Roll", "Use", "Add", "choose"}
            # the first words: behind them is the target, for screen readers
            assert acts.isdisjoint(name.split()[0] for name in names if name.strip()), view
            assert page.locator("main form, [data-drop]").count() == 0


def test_warm_workers_have_the_names_of_their_functions(
    server: FixtureServer, open_page: OpenPage
) -> None:
    page = open_page(server.address)
    expect(page.locator(".residents").first).to_have_text("yolo-detect")


def test_a_host_names_its_data_sets_and_programs(
    server: FixtureServer, open_page: OpenPage
) -> None:
    page = open_page(server.address)
    go(page, "#/fleet", "gpu0002")
    offers = page.get_by_text("data proteins; programs blast")
    expect(page.get_by_label("host gpu0000", exact=True).locator("> p")).to_have_text(
        "data proteins; programs blast"
    )
    expect(offers).to_have_count(1)


def test_the_choice_of_colours_is_kept(server: FixtureServer, open_page: OpenPage) -> None:
    page = open_page(server.address)
    button = page.get_by_role("button", name="Colours")
    button.click()
    button.click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_logs_draw_only_the_lines_in_sight(server: FixtureServer, open_page: OpenPage) -> None:
    page = open_page(f"{server.address}#/jobs/{server.system.job_id(FAILED)}")
    expect(page.locator(".logs .panel-head")).to_contain_text("2000 lines")
    expect(page.locator(".log")).to_contain_text("batch 1999")
    assert page.locator(".log li").count() < 60
    page.locator(".log").evaluate("element => { element.scrollTop = 0 }")
    expect(page.locator(".log")).to_contain_text("batch 0:")
    expect(page.get_by_role("button", name="To the end")).to_be_visible()
