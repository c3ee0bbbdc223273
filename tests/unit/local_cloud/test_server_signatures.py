"""Signatures as botocore makes them, and AWS's own examples of payloads signed in chunks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from corekit.errors import AppError
from local_cloud.model.errors import CloudError
from local_cloud.server.bodies import FileBodies
from local_cloud.server.s3.payload import receive_body
from local_cloud.server.signatures import (
    ACCESS_KEY_VARIABLE,
    FILE_NAME,
    SECRET_KEY_VARIABLE,
    ChunkSigner,
    Verifier,
    key_pair,
)

KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
PAIR = Credentials(KEY, SECRET)
BODY = b"some body"
HOST = "127.0.0.1:4566"
GOOD = Verifier({KEY: SECRET}, time.time)
OTHER = Verifier({KEY: SECRET + "x"}, time.time)

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
queries = st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), max_size=4)
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=15)
metadata = st.dictionaries(
    st.from_regex(r"[a-z0-9-]{1,10}", fullmatch=True), st.lists(values).map("  ".join), max_size=3
)


def request_of(method: str, path: str, headers: Mapping[str, str]) -> web.BaseRequest:
    return make_mocked_request(method, path, CIMultiDict({"Host": HOST, **headers}))


def signed(
    signer: Any, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> web.BaseRequest:
    """A request signed by botocore, as it arrives."""
    pairs = "&".join(f"{quote(n, safe='')}={quote(v, safe='')}" for n, v in query.items())
    url = f"http://{HOST}{path}" + (f"?{pairs}" if pairs else "")
    body = b"" if method == "GET" else BODY
    request = AWSRequest(method=method, url=url, data=body, headers=dict(headers))
    signer.add_auth(request)
    parts = urlsplit(request.url)
    sent = {name: str(value) for name, value in request.headers.items()}
    return request_of(method, f"{parts.path}?{parts.query}", sent)


def refusal(verifier: Verifier, request: web.BaseRequest, *arguments: Any) -> str:
    with pytest.raises(CloudError) as error:
        verifier.check(request, *arguments)
    return error.value.code


@given(name=names, query=queries, meta=metadata, token=st.sampled_from([None, "to/ken=="]))
def test_s3_requests_signed_in_headers(
    name: str, query: dict[str, str], meta: dict[str, str], token: str | None
) -> None:
    headers = {f"x-amz-meta-{n}": value for n, value in meta.items()}
    signer = auth.S3SigV4Auth(Credentials(KEY, SECRET, token), "s3", "eu-west-1")
    request = signed(signer, "PUT", "/bucket/" + quote(name, safe="/~"), query, headers)
    GOOD.check(request, ("s3",))
    assert refusal(OTHER, request, ("s3",)) == "SignatureDoesNotMatch"
    assert refusal(GOOD, request, ("sqs",)) == "AuthorizationHeaderMalformed"


@given(name=names, query=queries, expires_s=st.integers(600, 604_800))
def test_presigned_urls(name: str, query: dict[str, str], expires_s: int) -> None:
    signer = auth.S3SigV4QueryAuth(PAIR, "s3", "us-east-1", expires=expires_s)
    request = signed(signer, "GET", "/bucket/" + quote(name, safe="/~"), query, {})
    GOOD.check(request, ("s3",))
    assert refusal(OTHER, request, ("s3",)) == "SignatureDoesNotMatch"
    later = Verifier(None, lambda: time.time() + expires_s)
    assert refusal(later, request, ("s3",)) == "AccessDenied"


@given(name=names, query=queries)
def test_requests_of_other_services(name: str, query: dict[str, str]) -> None:
    """Lambda has names in its paths, which are encoded twice."""
    path = f"/2015-03-31/functions/{quote(name, safe='')}/invocations"
    headers = {"Content-Type": "application/json"}
    request = signed(auth.SigV4Auth(PAIR, "lambda", "us-east-1"), "POST", path, query, headers)
    GOOD.check(request, ("lambda",), BODY)
    assert refusal(GOOD, request, ("lambda",), b"") == "SignatureDoesNotMatch"


def temporary(verifier: Verifier, ends_s: float) -> Credentials:
    made = verifier.issue("arn:aws:iam::000000000000:role/f", ends_s)
    return Credentials(made.pair.access_key, made.pair.secret_key, made.token)


@pytest.mark.parametrize("presigned", [False, True])
def test_temporary_credentials_are_accepted_until_they_end(presigned: bool) -> None:
    keys = temporary(GOOD, time.time() + 60.0)
    kind = auth.S3SigV4QueryAuth if presigned else auth.S3SigV4Auth
    request = signed(kind(keys, "s3", "us-east-1"), "GET", "/bucket/key", {}, {})
    GOOD.check(request, ("s3",))
    assert refusal(OTHER, request, ("s3",)) == "InvalidAccessKeyId"  # of another cloud
    later = Verifier({KEY: SECRET}, lambda: time.time() + 61.0)
    assert refusal(later, request, ("s3",)) == "ExpiredToken"


def test_temporary_keys_need_their_own_token() -> None:
    ends_s = time.time() + 60.0
    first, second = temporary(GOOD, ends_s), temporary(GOOD, ends_s)
    for token in (second.token, "", "x.y", None):
        mixed = Credentials(first.access_key, first.secret_key, token)
        request = signed(auth.SigV4Auth(mixed, "sqs", "r"), "POST", "/", {}, {})
        assert refusal(GOOD, request, ("sqs",), BODY) == "UnrecognizedClientException"


def test_the_date_may_come_in_the_header_of_http() -> None:
    request = signed(auth.SigV4Auth(PAIR, "sqs", "r"), "POST", "/a/../b//", {}, {"Date": "x"})
    assert "x-amz-date" not in request.headers
    GOOD.check(request, ("sqs",), BODY)


# --- AWS's examples: "Signature calculations … transferring payload in multiple chunks"

SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
CHUNKS = (
    (b"a" * 65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
    (b"a" * 1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
    (b"", "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
)
TRAILING_SEED = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
TRAILING = (
    (b"a" * 65536, "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2"),
    (b"a" * 1024, "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7"),
    (b"", "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992"),
)
TRAILER = (
    b"x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:"
    b"d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n"
)


def wire(chunks: Any, trailer: bytes = b"") -> bytes:
    sent = (
        b"%x;chunk-signature=%b\r\n%b%b"
        % (len(data), name.encode(), data, b"\r\n" if data else b"")
        for data, name in chunks
    )
    return b"".join(sent) + trailer + b"\r\n"


def signer_of(seed: str) -> ChunkSigner:
    """A chain that begins with this signature, of the key and the date of AWS's examples."""
    again = AWSRequest(method="PUT", url="http://localhost/")
    again.context["timestamp"] = "20130524T000000Z"
    key: Any = auth.S3SigV4Auth(PAIR, "s3", "us-east-1")
    scope = "20130524T000000Z\n20130524/us-east-1/s3/aws4_request"
    return ChunkSigner(lambda text: str(key.signature(text, again)), scope, seed)


def received(folder: Path, body: bytes, signer: ChunkSigner | None, cuts: list[int]) -> bytes:
    """The payload of an aws-chunked body that arrives in pieces."""

    async def receive() -> bytes:
        loop = asyncio.get_running_loop()
        stream = StreamReader(BaseProtocol(loop), 2**16, loop=loop)
        for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True):
            stream.feed_data(body[start:stop])
        stream.feed_eof()
        headers = {"x-amz-content-sha256": "STREAMING-", "Content-Length": str(len(body))}
        request = make_mocked_request("PUT", "/b/k", CIMultiDict(headers), payload=stream)
        bodies = FileBodies(folder)
        content, _ = await receive_body(request, bodies, signer=signer)
        return bodies.read(content.segments)

    return asyncio.run(receive())


@pytest.mark.parametrize(
    ("body", "seed"), [(wire(CHUNKS), SEED), (wire(TRAILING, TRAILER), TRAILING_SEED)]
)
def test_aws_examples_of_signed_chunks_and_trailers(body: bytes, seed: str, tmp_path: Path) -> None:
    for signer in (signer_of(seed), None):
        assert received(tmp_path, body, signer, list(range(999, len(body), 999))) == b"a" * 66560


@pytest.mark.parametrize(
    ("body", "seed"),
    [
        (wire(CHUNKS), TRAILING_SEED),
        (wire(CHUNKS).replace(b"\r\na", b"\r\nb", 1), SEED),
        (wire(CHUNKS[::2]), SEED),  # one left out
        (wire(CHUNKS).replace(b";chunk-signature=b6", b";chunk-signature=b7"), SEED),
        (wire(TRAILING, TRAILER.replace(b"sOO8", b"sOO9")), TRAILING_SEED),
        (wire(TRAILING, TRAILER.partition(b"\n")[0] + b"\n"), TRAILING_SEED),  # unsigned
        (b"3\r\nabc\r\n0\r\n\r\n", SEED),
    ],
)
def test_a_payload_that_was_changed_on_its_way_is_refused(
    body: bytes, seed: str, tmp_path: Path
) -> None:
    with pytest.raises(CloudError, match="SignatureDoesNotMatch"):
        received(tmp_path, body, signer_of(seed), [])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"zz\r\n", "InvalidRequest"),
        (b"-5\r\n", "InvalidRequest"),
        (b"3\r\nabcX\r\n", "InvalidRequest"),
        (b"6\r\nabc", "IncompleteBody"),
        (b"3\r\nabc\r\n", "IncompleteBody"),
    ],
)
def test_a_body_that_is_not_chunked_is_refused(body: bytes, code: str, tmp_path: Path) -> None:
    with pytest.raises(CloudError, match=code):
        received(tmp_path, body, None, [])


# --- claims that are none


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "AWS4-HMAC-SHA256 Credential=x",
        "AWS4-HMAC-SHA256 Credential=a/b/c, SignedHeaders=host, Signature=0",
        "AWS key:signature",
    ],
)
def test_a_malformed_claim_is_refused(authorization: str) -> None:
    headers = {"Authorization": authorization, "x-amz-date": "20260131T120000Z"}
    assert refusal(Verifier({}, lambda: 1769860800.0), request_of("GET", "/", headers), ("s3",))


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_a_claim_or_a_refusal(authorization: str, query: str) -> None:
    headers = {"Authorization": f"AWS4-HMAC-SHA256 {authorization}"}
    for path in ("/", f"/?X-Amz-Algorithm={quote(query)}", f"/?AWSAccessKeyId={quote(query)}"):
        assert refusal(GOOD, request_of("GET", path, headers), ("s3",))


# --- the key pair


def test_a_key_pair_is_made_once_and_private(tmp_path: Path) -> None:
    made = key_pair(tmp_path / "state", {})
    assert key_pair(tmp_path / "state", {}) == made
    assert (tmp_path / "state" / FILE_NAME).stat().st_mode & 0o777 == 0o600
    given_pair = key_pair(tmp_path, {ACCESS_KEY_VARIABLE: "a", SECRET_KEY_VARIABLE: "b"})
    assert (given_pair.access_key, given_pair.secret_key) == ("a", "b")
    with pytest.raises(AppError, match="neither"):
        key_pair(tmp_path, {ACCESS_KEY_VARIABLE: "a"})
    (tmp_path / FILE_NAME).write_text("[]")
    with pytest.raises(AppError, match="no key pair"):
        key_pair(tmp_path, {})
