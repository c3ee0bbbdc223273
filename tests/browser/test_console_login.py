"""Login with keys of a real scheduler: what a reader sees, and what it may not do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from gpu_scheduler.daemon.access.keys import NAME, KeyEntry, KeyRole, add_key
from tests.browser.conftest import OpenPage
from tests.e2e.live import until

SCHEDULER = ("gpu_scheduler.daemon", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")


@dataclass(frozen=True)
class KeyedConsole:
    """A console whose scheduler has keys."""

    address: str
    keys: dict[str, str]  #: role → key


@contextmanager
def program(folder: Path, name: str, command: Sequence[str]) -> Iterator[dict[str, str]]:
    """A daemon of ours from its ready file to its end."""
    ready = folder / f"{name}.json"
    with (folder / f"{name}.log").open("wb") as log:
        arguments = [sys.executable, "-m", *command, "--ready-file", str(ready)]
        child = subprocess.Popen(arguments, stdout=log, stderr=log, env=dict(os.environ))
    try:

        def is_ready() -> bool:
            assert child.poll() is None, (folder / f"{name}.log").read_text()[-3000:]
            return ready.exists()

        until(f"{name} ready", is_ready)
        yield json.loads(ready.read_text())
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(60)


def made_key(state: Path, name: str, role: str) -> str:
    """A new key, as `ssgmd keys add` makes it."""
    return add_key(state / NAME, KeyEntry(name=name, role=KeyRole(role), sha256="0" * 64))


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedConsole]:
    folder = tmp_path_factory.mktemp("keyed")
    state = folder / "ssgmd"
    state.mkdir(mode=0o700)
    keys = {role: made_key(state, f"a-{role}", role) for role in ("reader", "operator")}
    own = folder / "web.key"
    own.touch(mode=0o600)
    own.write_text(keys["operator"])
    with ExitStack() as stack:
        scheduler = stack.enter_context(
            program(folder, "ssgmd", (*SCHEDULER, "--state", str(state)))
        )
        command = ("orchgpu", "web", "--scheduler", scheduler["socket"], "--key-file", str(own))
        web = stack.enter_context(program(folder, "web", (*command, "--listen", "127.0.0.1:0")))
        yield KeyedConsole(address=web["url"], keys=keys)


def log_in(page: Page, key: str) -> None:
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Log in").click()


def test_a_wrong_key_is_refused_with_the_reason(console: KeyedConsole, open_page: OpenPage) -> None:
    page = open_page(console.address)
    log_in(page, "a-reader.wrong-wrong-wrong-wrong-wrong-wrong")
    expect(page.get_by_role("alert")).to_contain_text("key")
    expect(page.get_by_role("navigation")).to_have_count(0)


def test_a_reader_is_offered_no_change_and_refused_one(
    console: KeyedConsole, open_page: OpenPage
) -> None:
    page = open_page(console.address)
    log_in(page, console.keys["reader"])
    expect(page.locator(".who")).to_contain_text("reader")
    assert console.keys["reader"] not in page.url
    page.evaluate("location.hash = '#/settings'")
    expect(page.locator(".sub")).to_contain_text("Read only")
    expect(page.locator("main output").first).to_be_visible()
    assert page.locator("main form").count() == 0
    status = page.evaluate(
        """async () => {
          const {csrf} = await (await fetch("/api/session")).json();
          const headers = {"Content-Type": "application/json", "X-CSRF-Token": csrf};
          const body = JSON.stringify({target: "gpu-a"});
          return (await fetch("/api/drain", {method: "POST", headers, body})).status;
        }"""
    )
    assert status == 403


def test_a_session_lasts_over_a_reload_until_the_logout(
    console: KeyedConsole, open_page: OpenPage
) -> None:
    page = open_page(console.address)
    log_in(page, console.keys["operator"])
    expect(page.locator(".who")).to_contain_text("operator")
    page.reload()
    expect(page.locator(".who")).to_contain_text("operator")
    cookie = next(one for one in page.context.cookies() if one["name"] == "orchgpu_session")
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
