"""The weather of the clouds that end-to-end tests start: `pytest tests/e2e --weather aws`."""

from __future__ import annotations

import pytest

from local_cloud.model.weather import parse_weather

#: Minutes of AWS become seconds; orchestrators of tests run at 0.05, so their margins hold.
SCALE = "0.02"
ORCHESTRATORS = "0.05"
_chosen = [""]


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--weather",
        default="",
        metavar="NAME[:FIELD=VALUE,…]",
        help=f"weather of the clouds of end-to-end tests, such as aws; its scale is {SCALE}",
    )


def choose(config: pytest.Config) -> None:
    """Take over the option. Raises INVALID."""
    text = config.getoption("--weather")
    if not text:
        return
    for field, value in (("scale", SCALE), ("seed", "1")):
        if f"{field}=" not in text:
            text += f"{',' if ':' in text else ':'}{field}={value}"
    parse_weather(text)
    _chosen[0] = text


def environment() -> dict[str, str]:
    """The variables of commands that start a system."""
    if not chosen():
        return {}
    return {"ORCHGPU_WEATHER": chosen(), "ORCHGPU_TIME_SCALE": ORCHESTRATORS}


def is_attempt(found: int, wanted: int) -> bool:
    """Whether an attempt has its number; in weather some before it did not start, uncounted."""
    return found == wanted or (bool(chosen()) and found > wanted)


def chosen() -> str:
    """The weather as `local_cloud` reads it; empty = none."""
    return _chosen[0]
