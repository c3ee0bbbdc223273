"""When a standby takes over."""

from __future__ import annotations

from gpu_scheduler.daemon.standby.silence import Silence


def test_silence_is_counted_from_the_last_news() -> None:
    silence = Silence(3.0, 0.0)
    assert not silence.read(2.9, 2.9, news=False)
    assert not silence.read(2.95, 3.0, news=True)
    assert not silence.read(5.9, 5.9, news=False)
    assert silence.read(6.0, 6.1, news=False)


def test_a_log_that_could_not_be_read_proves_no_silence() -> None:
    silence = Silence(3.0, 0.0)
    silence.unknown(10.0)
    assert not silence.read(12.9, 12.9, news=False)
    assert silence.read(13.0, 13.0, news=False)


def test_a_standby_that_was_suspended_in_a_read_has_observed_nothing_since() -> None:
    silence = Silence(3.0, 0.0)
    assert not silence.read(0.5, 100.0, news=False), "the read began too early"


def test_the_leader_left_news_while_the_standby_was_suspended() -> None:
    silence = Silence(3.0, 0.0)
    assert not silence.read(100.0, 100.0, news=True)
    assert not silence.read(102.0, 102.0, news=False)


def test_a_read_is_due_when_the_silence_is_long_enough() -> None:
    silence = Silence(3.0, 1.0)
    assert (silence.silent_s(1.5), silence.due_in_s(1.5)) == (0.5, 2.5)
    assert (silence.silent_s(4.5), silence.due_in_s(4.5)) == (3.5, 0.0)
    silence.read(4.5, 5.0, news=True)
    assert (silence.silent_s(5.0), silence.due_in_s(5.0)) == (0.0, 3.0)
    assert silence.silent_s(4.9) == 0.0, "a clock that was read before"
