"""The function behind a Function URL: events of payload format 2.0 against a real S3 protocol."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from contract.http_jobs import request_id
from contract.keys import OUTPUT_JOB, job_id, result_key
from contract.parameters import parameters_in
from contract.result import Result
from corekit.decode import decode
from fdl.parse import parse
from fdl.plan.facts import Facts
from fdl.plan.functions import Code
from fdl.plan.resources import DeployTarget, FunctionResource, Role
from fdl.plan.served import served_by
from lambda_functions.gpu_runner.storage.s3 import make_client
from lambda_functions.http_api.jobs import Jobs, Served
from lambda_functions.http_api.routes import answer
from orchgpu.web.api.model import Job
from tests.embedded_cloud import Address, client_of, cloud_in
from tests.iam_policies import allowed
from tests.iam_requests import Account

AWS = DeployTarget(account="123456789012", region="eu-west-1")
FDL = """\
functions:
  aws:
  - lambda:
      name: f
      init_script: s
      input: [{path: inputs/box, suffix: [txt]}]
      output: [{path: out/found}]
    job: {intermediate: {path: between}}
    http: true
"""
(FUNCTION,) = parse(FDL).functions.aws
ROLE, MADE, URL = served_by(FUNCTION, AWS, Code(sha256="0" * 64, size=1), Facts(), 30)
assert isinstance(MADE, FunctionResource)
assert isinstance(ROLE, Role)
SERVED = Served.of(MADE.variables["ORCHGPU_HTTP"])
JOBS = "/v1/functions/f/jobs"
Answered = tuple[int, Any]


@dataclass
class Door:
    """The function, and what it did."""

    s3: Any
    signer: Any
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    now_s: float = 0.0
    ends: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  #: job → its result, later
    headers: dict[str, str] = field(default_factory=dict)  #: of the last answer

    def ask(self, method: str, path: str, body: bytes = b"", **more: Any) -> Answered:
        jobs = Jobs(
            served=SERVED,
            s3=self.s3,
            signer=self.signer,
            pause=self._pause,
            monotonic_s=lambda: self.now_s,
        )
        given = answer(jobs, event(method, path, body, **more), ends_s=self.now_s + 55.0)
        self.headers = given["headers"]
        return given["statusCode"], json.loads(given["body"])

    def _pause(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s > 5.0:
            for job, outputs in self.ends.items():
                self.end(job, outputs)
            self.ends.clear()

    def end(self, job: str, outputs: list[dict[str, Any]], state: str = "SUCCEEDED") -> None:
        result = Result(
            job_id=job,
            state=state,
            reason="NONE",
            attempt=1,
            nonce="n",
            exit_code=0,
            files=outputs,
            times={"EEnd": 7.0},
            log_tail="the last line",
            device={"host": "h", "model": "m"},
            ended_at_s=8.0,
        )
        self.s3.put_object(Bucket="between", Key=result_key(job), Body=result.to_json())

    def output(self, job: str, key: str, body: bytes) -> dict[str, Any]:
        self.s3.put_object(Bucket="out", Key=key, Body=body, Metadata={OUTPUT_JOB: job})
        return {"bucket": "out", "key": key, "size": len(body), "sha256": "s"}


def event(
    method: str,
    path: str,
    body: bytes = b"",
    *,
    text: str | None = None,
    signed: bool = True,
    **headers: str,
) -> dict[str, Any]:
    """As Lambda's developer guide has it; `text`: a body that is not base64."""
    path, _, query = path.partition("?")
    caller = {"iam": {"userArn": "arn:aws:iam::123456789012:user/a"}}
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "headers": {"host": "x", **{k.replace("_", "-").lower(): v for k, v in headers.items()}},
        "requestContext": {
            "http": {"method": method, "path": path},
            **({"authorizer": caller} if signed else {}),
        },
        "body": base64.b64encode(body).decode() if text is None else text,
        "isBase64Encoded": text is None,
    }


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with cloud_in(tmp_path_factory.mktemp("cloud")) as address:
        with client_of(address, "s3") as s3:
            for bucket in ("inputs", "out", "between"):
                s3.create_bucket(Bucket=bucket)
            enabled = {"Status": "Enabled"}
            s3.put_bucket_versioning(Bucket="inputs", VersioningConfiguration=enabled)
        yield address


@pytest.fixture
def door(cloud: Address) -> Iterator[Door]:
    with (
        client_of(cloud, "s3") as s3,
        client_of(cloud, "s3", signature_version="s3v4") as signer,
    ):
        found = Door(s3, signer)

        def note(params: Any, model: Any, **_: object) -> None:
            found.calls.append(("s3", model.name, params))

        for client in (s3, signer):
            client.meta.events.register("provide-client-params.s3", note)
        yield found


def is_job(value: Any) -> bool:
    """The form of the console's API, strictly."""
    decode(Job, value, "answer")
    return True


def test_a_body_becomes_a_job_with_the_id_of_its_event(door: Door) -> None:
    status, job = door.ask("POST", f"{JOBS}?name=sign.txt&set=A=1", b"\xff\0picture")
    assert (status, job["state"], job["over"], job["function"]) == (202, "LIVE", False, "f")
    assert is_job(job)
    key = job["input"].removeprefix("s3://inputs/")
    assert key.startswith("box/")
    assert key.endswith("-sign.txt")
    stored = door.s3.get_object(Bucket="inputs", Key=key)
    assert stored["Body"].read() == b"\xff\0picture"
    assert parameters_in(stored["Metadata"]) == {"A": "1"}
    assert job["id"] == job_id("inputs", key, stored["VersionId"], "f")
    assert door.headers["location"] == job["links"]["job"]
    status, again = door.ask("GET", job["links"]["job"])
    assert (status, again) == (200, job)
    assert door.ask("GET", job["links"]["outputs"]) == (200, {"outputs": []})
    _, text = door.ask("POST", JOBS, text="grüße", content_type="text/plain")
    name = text["input"].removeprefix("s3://inputs/")
    assert name.endswith("-inputtxt"), "the suffix that the function takes, as the console's"
    assert door.s3.get_object(Bucket="inputs", Key=name)["Body"].read() == "grüße".encode()


def test_equal_requests_are_one_job_and_another_body_is_refused(door: Door) -> None:
    first = door.ask("POST", f"{JOBS}?name=a.txt", b"same", Idempotency_Key="k 1")
    assert door.ask("POST", f"{JOBS}?name=a.txt", b"same", Idempotency_Key="k 1") == first
    assert f"/{request_id('f', 'k 1')}-a.txt" in first[1]["input"]
    for path, body in (
        (f"{JOBS}?name=a.txt", b"other"),
        (f"{JOBS}?name=b.txt", b"same"),
        (f"{JOBS}?name=a.txt&set=A=1", b"same"),
    ):
        status, value = door.ask("POST", path, body, Idempotency_Key="k 1")
        assert (status, value["error"]["code"]) == (409, "conflict")
        assert value["error"]["details"]["key"] == first[1]["input"].removeprefix("s3://inputs/")


@pytest.mark.parametrize(
    ("method", "path", "more", "status", "says"),
    [
        ("POST", JOBS, {"signed": False}, 401, "AWS_IAM"),
        ("POST", "/v1/functions/g/jobs", {}, 404, "of f, not of 'g'"),
        ("POST", f"{JOBS}?name=a.png", {}, 400, "takes only txt"),
        ("POST", f"{JOBS}?name=../a.txt", {}, 400, "not the name of a file"),
        ("POST", f"{JOBS}?wait=51", {}, 400, "0…50"),
        ("POST", f"{JOBS}?wait=long", {}, 400, "not a number"),
        ("POST", f"{JOBS}?wait=nan", {}, 400, "0…50"),
        ("POST", f"{JOBS}?set=A", {}, 400, "NAME=VALUE"),
        ("POST", f"{JOBS}?upload&name=a.txt", {}, 400, "Idempotency-Key"),
        ("POST", JOBS, {"Idempotency_Key": "ü"}, 400, "ASCII"),
        ("POST", JOBS, {"content_type": "application/json; charset=utf-8"}, 400, "octet-stream"),
        ("POST", JOBS, {"content_type": "multipart/form-data; boundary=x"}, 400, "octet-stream"),
        ("POST", JOBS, {"ce_id": "7"}, 400, "CloudEvent"),
        ("POST", JOBS, {"content_encoding": "gzip"}, 400, "Content-Encoding"),
        ("GET", JOBS, {}, 405, "only POST"),
        ("DELETE", "/v1/jobs/j1", {}, 405, "orchgpu cancel"),
        ("GET", "/v1/jobs/j1/events", {}, 404, "nothing at"),
        ("GET", "/v1/jobs/j1", {}, 404, "has no result"),
        ("GET", "/v1/jobs/j1/outputs/a", {}, 404, "no output"),
    ],
)
def test_a_refused_request_stores_nothing(
    door: Door, method: str, path: str, more: dict[str, Any], status: int, says: str
) -> None:
    found, value = door.ask(method, path, b"x", **more)
    assert found == status
    assert says in value["error"]["message"]
    assert set(value["error"]) == {"code", "message", "details"}
    assert "PutObject" not in [operation for _, operation, _ in door.calls]


def test_another_event_is_no_request(door: Door) -> None:
    jobs = Jobs(served=SERVED, s3=door.s3, signer=door.signer)
    for wrong in ({"Service": "Amazon S3"}, {**event("GET", "/"), "version": "1.0"}):
        with pytest.raises(ValueError, match="Function URL"):
            answer(jobs, wrong, 0.0)


def test_an_answer_waits_for_the_end_with_a_small_output_in_it(door: Door) -> None:
    _, job = door.ask("POST", JOBS, b"in", Idempotency_Key="waits")
    door.ends[job["id"]] = [door.output(job["id"], "found/a.txt", "grüße".encode())]
    status, over = door.ask("POST", f"{JOBS}?wait=50", b"in", Idempotency_Key="waits")
    assert (status, over["state"], over["over"], over["device"]) == (200, "SUCCEEDED", True, "h m")
    assert (over["reason"], over["changed_s"], over["log_tail"]) == (None, 8.0, "the last line")
    assert is_job(over)
    assert (over["outputs"][0]["content"], over["outputs"][0]["encoding"]) == ("grüße", "utf-8")
    assert (over["input"], over["links"]) == (job["input"], job["links"])
    assert 5.0 < door.now_s < 15.0
    shown = door.ask("GET", f"/v1/jobs/{job['id']}")[1]
    assert (shown["input"], shown["outputs"][0]["content"]) == (None, None), "its link is enough"
    _, slow = door.ask("POST", f"{JOBS}?wait=3", b"slow")
    assert slow["over"] is False


def test_a_wait_reads_the_result_of_a_job_that_is_over_once(door: Door) -> None:
    _, job = door.ask("POST", JOBS, b"in")
    door.end(job["id"], [])
    door.calls.clear()
    assert door.ask("GET", f"{job['links']['job']}&wait=1")[1]["over"]
    read = [params["Key"] for _, name, params in door.calls if name == "GetObject"]
    assert read == [result_key(job["id"])]


def test_outputs_are_links_to_what_the_job_wrote(door: Door) -> None:
    _, job = door.ask("POST", JOBS, b"in")
    id_ = job["id"]
    other = door.output("another", "found/x/c.bin", b"c")
    files = [
        door.output(id_, "found/ä b.txt", b"large"),
        door.output(id_, "found/x/a.bin", b"a"),
        door.output(id_, "found/y/a.bin", b"a"),
        other,
        {"bucket": "out", "key": "elsewhere/secret"},
        {"bucket": "inputs", "key": "found/../secret"},
    ]
    door.end(id_, files)
    shown = door.ask("GET", f"/v1/jobs/{id_}/outputs")[1]["outputs"]
    names = ["ä b.txt", "out/found/x/a.bin", "out/found/y/a.bin", "c.bin"]
    assert [one["name"] for one in shown] == names
    for link in (shown[0]["link"], f"/v1/jobs/{id_}/outputs/ä b.txt"):
        assert door.ask("GET", link)[0] == 307
        with urllib.request.urlopen(door.headers["location"]) as answered:
            assert answered.read() == b"large"
    assert "attachment" in door.headers["location"]
    assert door.ask("GET", shown[3]["link"])[0] == 409, "another job wrote it"


def test_links_name_the_endpoint_of_their_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-south-2")
    with closing(make_client(signature_version="s3v4")) as signer:
        for method in ("get_object", "put_object"):
            url = signer.generate_presigned_url(method, {"Bucket": "out", "Key": "a"})
            assert urlsplit(url).netloc == "out.s3.eu-south-2.amazonaws.com"


def test_a_large_input_is_stored_by_the_caller_once(door: Door) -> None:
    path = f"{JOBS}?name=big.txt&set=A=1&upload"
    status, offered = door.ask("POST", path, Idempotency_Key="big")
    upload = offered["upload"]
    assert (status, upload["method"]) == (200, "PUT")

    def put(headers: dict[str, str]) -> None:
        request = urllib.request.Request(upload["url"], b"big", headers, method="PUT")
        with urllib.request.urlopen(request):
            pass

    put(upload["headers"])
    with pytest.raises(urllib.error.HTTPError) as error:
        put(upload["headers"])
    assert error.value.code == 412
    error.value.close()
    status, job = door.ask("POST", path, Idempotency_Key="big")
    assert (status, job["state"]) == (202, "LIVE")
    key = job["input"].removeprefix("s3://inputs/")
    stored = door.s3.get_object(Bucket="inputs", Key=key)
    assert stored["Body"].read() == b"big"
    assert parameters_in(stored["Metadata"]) == {"A": "1"}
    assert door.ask("POST", f"{JOBS}?name=big.txt&upload", Idempotency_Key="big")[0] == 409
    door.calls.clear()
    plain = f"{JOBS}?name=big.txt&set=A=1"
    assert door.ask("POST", plain, b"big", Idempotency_Key="big")[1]["id"] == job["id"]
    assert door.ask("POST", plain, b"larger", Idempotency_Key="big")[0] == 409
    read = [params["Key"] for _, name, params in door.calls if name == "GetObject"]
    assert key not in read, "it may be larger than the memory"


def test_a_job_whose_result_has_expired_is_not_live(door: Door) -> None:
    _, job = door.ask("POST", JOBS, b"old", Idempotency_Key="old")
    late = Jobs(served=SERVED, s3=door.s3, signer=door.signer, wall_s=lambda: 9e12)
    for again in (
        event("GET", job["links"]["job"]),
        event("GET", f"{job['links']['job']}&wait=1"),
        event("POST", JOBS, b"old", Idempotency_Key="old"),
    ):
        given = answer(late, again, 0.0)
        assert given["statusCode"] == 404
        assert "30 days ago" in given["body"]
    other = {"input": job["input"].rpartition("/")[2]}
    assert door.ask("GET", f"/v1/jobs/j{'0' * 25}?{urlencode(other)}")[0] == 404, "another id"


def test_the_store_that_does_not_answer_is_an_answer(door: Door, tmp_path: Path) -> None:
    with client_of(Address("127.0.0.1:1"), "s3") as s3:
        jobs = Jobs(served=SERVED, s3=s3, signer=s3)
        given = answer(jobs, event("POST", JOBS, b"x"), 0.0)
    assert given["statusCode"] == 503
    assert json.loads(given["body"])["error"]["code"] == "unavailable"


def test_its_role_allows_its_calls_and_no_more(door: Door) -> None:
    _, job = door.ask("POST", f"{JOBS}?wait=1", b"in")
    door.calls.clear()
    door.ask("POST", f"{JOBS}?name=b.txt&upload", Idempotency_Key="role")
    files = [door.output(job["id"], "found/one.txt", b"1")]
    door.end(job["id"], files)
    own = {("between", "PutObject"), ("out", "PutObject")}  # of this test
    door.ask("GET", f"{job['links']['job']}&wait=1")
    door.ask("GET", f"/v1/jobs/{job['id']}/outputs/one.txt")
    door.ask("POST", JOBS, b"in")
    account = Account(AWS.account, AWS.region)
    calls = [one for one in door.calls if (one[2].get("Bucket"), one[1]) not in own]
    asked = [request for call in calls for request in account.requests(*call)]
    assert {one.action for one in asked} >= {"s3:PutObject", "s3:GetObject", "s3:ListBucket"}
    assert isinstance(ROLE, Role)
    assert [str(one) for one in asked if not allowed(one, [ROLE.policy])] == []
    for statement in ROLE.policy["Statement"]:
        assert "*" not in statement["Resource"]
