"""Signatures as botocore makes them, and AWS's own examples of payloads signed in chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from corekit.errors import AppError
from local_cloud.model.errors import CloudError
from local_cloud.server.s3.bodies.chunked import ChunkDecoder
from local_cloud.server.signatures import v2, v4
from local_cloud.server.signatures.keys import (
    ACCESS_KEY_VARIABLE,
    FILE_NAME,
    SECRET_KEY_VARIABLE,
    key_pair,
)
from local_cloud.server.signatures.sent import SentRequest

KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
BODY = b"some body"
HOST = "127.0.0.1:4566"

keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=15)
queries = st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), max_size=4)
metadata = st.dictionaries(
    st.from_regex(r"[a-z0-9-]{1,10}", fullmatch=True), st.lists(values).map("  ".join), max_size=3
)


def signed(
    signer: Any, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> SentRequest:
    """A request signed by botocore, as it arrives."""
    pairs = "&".join(f"{quote(n, safe='')}={quote(v, safe='')}" for n, v in query.items())
    url = f"http://{HOST}{path}" + (f"?{pairs}" if pairs else "")
    body = b"" if method == "GET" else BODY
    request = AWSRequest(method=method, url=url, data=body, headers=dict(headers))
    signer.add_auth(request)
    prepared = request.prepare()
    parts = urlsplit(prepared.url)
    sent = [("host", HOST), *((n.lower(), str(v)) for n, v in prepared.headers.items())]
    return SentRequest(
        method=method,
        path=parts.path,
        query=parts.query,
        headers=[(n, v if v != "b''" else "") for n, v in sent],
    )


def credentials(token: str | None = None) -> Credentials:
    return Credentials(KEY, SECRET, token)


@given(key=keys, query=queries, meta=metadata, token=st.sampled_from([None, "to/ken=="]))
def test_s3_requests_signed_in_headers(
    key: str, query: dict[str, str], meta: dict[str, str], token: str | None
) -> None:
    headers = {f"x-amz-meta-{name}": value for name, value in meta.items()}
    signer = auth.S3SigV4Auth(credentials(token), "s3", "eu-west-1")
    sent = signed(signer, "PUT", "/bucket/" + quote(key, safe="/~"), query, headers)
    claim = v4.header_claim(sent)
    assert (claim.access_key, claim.service) == (KEY, "s3")
    assert v4.sign(sent, claim, SECRET, "").signature == claim.signature
    assert v4.sign(sent, claim, SECRET + "x", "").signature != claim.signature
    assert v4.unsigned_headers(sent, claim) == []


def test_the_date_may_come_in_the_header_of_http() -> None:
    signer = auth.S3SigV4Auth(credentials(), "s3", "eu-west-1")
    date = {"Date": "Tue, 07 Jul 2026 21:53:04 GMT"}
    sent = signed(signer, "PUT", "/bucket/key", {}, date)
    claim = v4.header_claim(sent)
    assert sent.header("x-amz-date") is None
    assert v4.sign(sent, claim, SECRET, "").signature == claim.signature


@given(key=keys, query=queries, expires_s=st.integers(1, 604_800))
def test_presigned_urls(key: str, query: dict[str, str], expires_s: int) -> None:
    signer = auth.S3SigV4QueryAuth(credentials(), "s3", "us-east-1", expires=expires_s)
    sent = signed(signer, "GET", "/bucket/" + quote(key, safe="/~"), query, {})
    claim = v4.query_claim(sent)
    assert claim.expires_s == expires_s
    assert v4.sign(sent, claim, SECRET, "").signature == claim.signature


@given(name=keys, query=queries)
def test_requests_of_other_services(name: str, query: dict[str, str]) -> None:
    """Lambda has names in its paths, which are encoded twice."""
    signer = auth.SigV4Auth(credentials(), "lambda", "us-east-1")
    path = f"/2015-03-31/functions/{quote(name, safe='')}/invocations"
    sent = signed(signer, "POST", path, query, {"Content-Type": "application/json"})
    claim = v4.header_claim(sent)
    found = v4.sign(sent, claim, SECRET, hashlib.sha256(BODY).hexdigest())
    assert found.signature == claim.signature
    assert v4.sign(sent, claim, SECRET, hashlib.sha256(b"").hexdigest()) != found


@pytest.mark.parametrize("path", ["/", "", "/a//b/", "/a/../b", "/./", "/a/.", "//"])
def test_paths_are_normalized_for_services_other_than_s3(path: str) -> None:
    sent = signed(auth.SigV4Auth(credentials(), "sqs", "us-east-1"), "POST", path, {}, {})
    claim = v4.header_claim(sent)
    found = v4.sign(sent, claim, SECRET, hashlib.sha256(BODY).hexdigest())
    assert found.signature == claim.signature


SUB_RESOURCES = st.dictionaries(
    st.sampled_from(["acl", "uploads", "versionId", "response-content-type", "prefix", "other"]),
    st.text(max_size=6),
    max_size=4,
)


@given(key=keys, query=SUB_RESOURCES, meta=metadata)
def test_version_2_in_headers_and_urls(
    key: str, query: dict[str, str], meta: dict[str, str]
) -> None:
    path = "/bucket/" + quote(key, safe="/~")
    headers = {f"x-amz-meta-{n}": " ".join(v.split()) for n, v in meta.items()}
    given_headers = {**headers, "Content-Type": "text/plain", "Content-MD5": "abc="}
    sent = signed(auth.HmacV1Auth(credentials()), "PUT", path, query, given_headers)
    claim = v2.header_claim(sent)
    assert v2.sign(sent, claim, SECRET).signature == claim.signature
    sent = signed(auth.HmacV1QueryAuth(credentials()), "GET", path, query, {})
    claim = v2.query_claim(sent)
    assert v2.sign(sent, claim, SECRET).signature == claim.signature


# --- AWS's examples: "Signature calculations … transferring payload in multiple chunks"

SCOPE = "20130524/us-east-1/s3/aws4_request"
SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
CHUNKS = (
    (b"a" * 65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
    (b"a" * 1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
    (b"", "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
)


def signer(seed: str) -> v4.ChunkSigner:
    return v4.ChunkSigner(v4.signing_key(SECRET, SCOPE), "20130524T000000Z", SCOPE, seed)


def wire(chunks: Any, trailer: bytes = b"") -> bytes:
    return (
        b"".join(
            b"%x;chunk-signature=%b\r\n%b%b" % (len(c), s.encode(), c, b"\r\n" if c else b"")
            for c, s in chunks
        )
        + trailer
        + b"\r\n"
    )


def decoded(body: bytes, seed: str) -> bytes:
    decoder = ChunkDecoder(signer(seed))
    found = b"".join(b"".join(decoder.feed(body[at : at + 999])) for at in range(0, len(body), 999))
    decoder.end()
    return found


def test_aws_example_of_signed_chunks() -> None:
    assert decoded(wire(CHUNKS), SEED) == b"a" * 66560


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


def test_aws_example_of_signed_trailers() -> None:
    assert decoded(wire(TRAILING, TRAILER), TRAILING_SEED) == b"a" * 66560


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
def test_a_payload_that_was_changed_on_its_way_is_refused(body: bytes, seed: str) -> None:
    with pytest.raises(CloudError, match="SignatureDoesNotMatch"):
        decoded(body, seed)


# --- claims that are none


BAD_SCOPE = "AWS4-HMAC-SHA256 Credential=a/b/c, SignedHeaders=host, Signature=0"


@pytest.mark.parametrize(
    "authorization",
    ["AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 Credential=x", BAD_SCOPE, "AWS nothing", "AWS key:sig"],
)
def test_a_malformed_claim_is_refused(authorization: str) -> None:
    sent = SentRequest(method="GET", path="/", query="", headers=[("authorization", authorization)])
    module = v4 if authorization.startswith("AWS4") else v2
    with pytest.raises(CloudError) as error:
        module.header_claim(sent)
    assert error.value.status in (400, 403)


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_a_claim_or_a_refusal(authorization: str, query: str) -> None:
    headers = [("authorization", f"AWS4-HMAC-SHA256 {authorization}")]
    sent = SentRequest(method="GET", path="/", query=f"X-Amz-Algorithm={query}", headers=headers)
    for claim in (v4.header_claim, v4.query_claim, v2.header_claim, v2.query_claim):
        with pytest.raises(CloudError):
            claim(sent)


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
