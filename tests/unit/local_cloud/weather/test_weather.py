"""The value `Weather`, its text form, and its stream."""

from __future__ import annotations

import pytest

from corekit.errors import AppError
from corekit.values import replace
from local_cloud.model.weather import AWS, NO_WEATHER, RULES, Draws, Weather, parse_weather


def test_a_name_is_a_preset_and_fields_change_it() -> None:
    assert parse_weather("none") == NO_WEATHER
    assert parse_weather("aws") == AWS
    changed = parse_weather("aws:scale=0.02,seed=7,slow_down_rate=0.5,role_s=5-20,unordered=off")
    assert changed == replace(
        AWS, scale=0.02, seed="7", slow_down_rate=0.5, role_s=(5.0, 20.0), unordered=False
    )
    assert parse_weather("aws:role_s=3").role_s == (3.0, 3.0)
    assert str(changed) == "aws, scale 0.02, seed 7"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("storm", "aws and none"),
        ("aws:rain=1", "not FIELD=VALUE"),
        ("aws:scale", "not FIELD=VALUE"),
        ("aws:name=x", "not FIELD=VALUE"),
        ("aws:scale=fast", "not a number"),
        ("aws:scale=0", "greater than 0"),
        ("aws:scale=nan", "scale cannot be nan"),
        ("aws:role_s=a-b", "LEAST-MOST"),
        ("aws:role_s=9-3", "LEAST-MOST"),
        ("aws:role_s=1-nan", "LEAST-MOST"),
        ("aws:role_s=1-inf", "LEAST-MOST"),
        ("aws:slow_down_rate=2", "between 0 and 1"),
        ("aws:regions=perhaps", "not on or off"),
    ],
)
def test_a_wrong_text_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(AppError, match=problem):
        parse_weather(text)


def test_only_weather_without_rules_is_calm() -> None:
    assert NO_WEATHER.empty
    assert replace(NO_WEATHER, name="mine", seed="1", scale=0.1).empty
    assert not AWS.empty
    assert not replace(NO_WEATHER, regions=True).empty


def test_a_seed_gives_the_same_draws_and_one_rule_does_not_change_another() -> None:
    def draws(seed: str, *, others: bool) -> list[float]:
        weather = Weather(seed=seed, scale=0.5, event_s=(2.0, 4.0), slow_down_rate=0.5)
        drawing, delays = Draws(weather), []
        for _ in range(5):
            if others:
                drawing.happens("slow down")
            delays.append(drawing.delay_s("event"))
        return delays

    assert draws("1", others=False) == draws("1", others=True)
    assert draws("1", others=False) != draws("2", others=False)
    assert all(1.0 <= delay_s <= 2.0 for delay_s in draws("1", others=False))


def test_what_took_effect_is_counted() -> None:
    drawing = Draws(Weather(seed="1", slow_down_rate=0.5, event_late_rate=1.0))
    assert sum(drawing.happens("slow down") for _ in range(100)) == drawing.counts["slow down"]
    assert not drawing.happens("event repeated")
    assert drawing.happens("event late")
    assert "event repeated" not in drawing.counts


def test_every_rule_draws_by_fields_of_the_weather() -> None:
    for rule in RULES.values():
        for field in filter(None, (rule.rate, rule.span)):
            assert hasattr(AWS, field)
