"""Notices: their messages, documents, signatures and pauses."""

import base64
import hashlib
import hmac
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.values import replace
from orchgpu.core.notify import (
    DOCUMENT_BYTES_MAX,
    Notice,
    Target,
    cloud_event,
    document_of,
    notice_bodies,
    notice_id,
    notice_of,
    pause_s,
    text_of,
    webhook_headers,
)

JOB = Notice(target="", job="j1", bucket="b", key="in/é.txt", version="v")
RUN = Notice(target="", run="r")
TARGETS = (Target(queue="q"), Target(topic="arn:t"), Target(webhook="https://h.example/"))


def test_a_message_for_each_target_comes_back_as_its_notice() -> None:
    found = [notice_of(body) for body in notice_bodies(TARGETS, JOB)]
    assert [one.target for one in found if one] == ["queue q", "arn:t", "https://h.example/"]
    assert all(one and (one.job, one.key, one.version) == ("j1", "in/é.txt", "v") for one in found)
    [body] = notice_bodies(TARGETS[:1], Notice(target="", run="r", retries=2))
    assert notice_of(body) == Notice(target="queue q", run="r", retries=2)
    ended = Notice(target="", run="r", end={"state": "FAILED", "steps": []})
    [body] = notice_bodies(TARGETS[:1], ended)
    assert notice_of(body) == replace(ended, target="queue q")


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_other_text_is_no_notice(body: str) -> None:
    assert notice_of(body) is None
    assert notice_of(f'{{"orchgpu": {{"notify": {body}}}}}') is None


@pytest.mark.parametrize(
    "notify",
    [
        {"target": "t"},
        {"target": "t", "run": "r", "end": 1},
        {"target": 1, "job": "j"},
        {"job": "j"},
        {"target": "t", "job": []},
    ],
)
def test_a_notice_that_is_not_complete_is_none(notify: object) -> None:
    assert notice_of(json.dumps({"orchgpu": {"notify": notify}})) is None


def test_the_document_of_a_job_has_its_result_and_input() -> None:
    result = {"state": "SUCCEEDED", "ended_at_s": 1.5, "files": [{"key": "k"}]}
    found = document_of(JOB, "f", result)
    assert found == {
        "type": "job.ended",
        "id": notice_id(JOB, 1.5),
        "timestamp": "1970-01-01T00:00:01.500+00:00",
        "data": {
            "function": "f",
            "job": "j1",
            "input": {"bucket": "b", "key": "in/é.txt", "version": "v"},
            "state": "SUCCEEDED",
            "result": result,
        },
    }


def test_the_document_of_a_run_and_of_a_job_of_one() -> None:
    run = document_of(Notice(target="", run="r"), "w", {"state": "FAILED", "ended_at_s": 2.0})
    assert (run["type"], run["data"]) == (
        "run.ended",
        {
            "workflow": "w",
            "run": "r",
            "state": "FAILED",
            "result": {"state": "FAILED", "ended_at_s": 2.0},
        },
    )
    step = Notice(target="", job="j", run="r", workflow="w", step="s")
    data = document_of(step, "f", {})["data"]
    assert isinstance(data, dict)
    assert (data["function"], data["run"], data["step"]) == ("f", "r", "s")


def test_the_same_end_has_the_same_id_and_another_end_another_one() -> None:
    assert notice_id(JOB, 1.0) == notice_id(JOB, 1.0)
    assert (
        len({notice_id(JOB, 1.0), notice_id(JOB, 2.0), notice_id(Notice(target="", job="k"), 1.0)})
        == 3
    )


@given(st.integers(0, 4000), st.integers(0, 3))
def test_a_large_document_is_cut_to_what_a_topic_takes(count: int, left_out: int) -> None:
    files = [{"bucket": "b", "key": f"{n}-" + "x" * 200} for n in range(count)]
    result = {"state": "SUCCEEDED", "files": files, "files_left_out": left_out}
    found = document_of(JOB, "f", result)
    assert len(text_of(found)) <= DOCUMENT_BYTES_MAX
    data = found["data"]
    assert isinstance(data, dict)
    kept, more = data["result"]["files"], data["result"]["files_left_out"]
    assert kept == files[: len(kept)]
    assert len(kept) + more == count + left_out


def test_what_cannot_be_cut_leaves_state_and_reason() -> None:
    result = {"state": "FAILED", "reason": "R", "detail": "x" * DOCUMENT_BYTES_MAX, "files": []}
    data = document_of(JOB, "f", result)["data"]
    assert isinstance(data, dict)
    assert data["result"] == {"state": "FAILED", "reason": "R"}


def test_a_webhook_is_signed_as_the_specification_states() -> None:
    """The example of its reference libraries (standard-webhooks, `test_sign`)."""
    secret, id_ = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek"
    found = webhook_headers('{"test": 2432232314}', id_, 1614265330.9, secret)
    assert found["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert (found["webhook-id"], found["webhook-timestamp"]) == (id_, "1614265330")


def test_a_receivers_library_takes_what_is_signed() -> None:
    webhooks = pytest.importorskip("standardwebhooks", reason="the test extra has it")
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", '{"é": 1}'
    headers = webhook_headers(body, "msg_1", time.time(), secret.encode())
    receiver = webhooks.Webhook(secret)
    assert receiver.verify(body, headers) == {"é": 1}
    with pytest.raises(webhooks.WebhookVerificationError):
        receiver.verify(body.replace("1", "2"), headers)


def test_an_end_is_an_event_of_cloudevents() -> None:
    """The attributes that CloudEvents 1.0 requires, and those that it names for what is known."""
    document = document_of(JOB, "f", {"state": "FAILED", "ended_at_s": 1.5})
    event = cloud_event(document)
    assert event == {
        "specversion": "1.0",
        "id": document["id"],
        "source": "urn:orchgpu:function:f",
        "type": "orchgpu.job.failed",
        "subject": JOB.job,
        "time": "1970-01-01T00:00:01.500+00:00",
        "datacontenttype": "application/json",
        "data": document["data"],
    }
    run = cloud_event(document_of(RUN, "w", {"state": "SUCCEEDED"}))
    assert (run["type"], run["source"]) == ("orchgpu.run.succeeded", "urn:orchgpu:workflow:w")
    assert cloud_event(document_of(JOB, "f", {}))["type"] == "orchgpu.job.ended"


@given(st.binary(min_size=1).filter(lambda key: not key.strip().startswith(b"whsec_")))
def test_another_secret_is_the_key_itself(key: bytes) -> None:
    found = webhook_headers("body", "msg_1", 7.0, key)["webhook-signature"]
    wanted = hmac.new(key.strip(), b"msg_1.7.body", hashlib.sha256).digest()
    assert found == f"v1,{base64.b64encode(wanted).decode()}"


def test_without_a_secret_nothing_is_signed() -> None:
    assert "webhook-signature" not in webhook_headers("body", "msg_1", 7.0, None)


def test_pauses_grow_with_the_age_of_a_notice() -> None:
    found = [pause_s(age_s, least_s=5, most_s=900) for age_s in (0, 4, 60, 3600)]
    assert found == [5, 5, 30, 900]
