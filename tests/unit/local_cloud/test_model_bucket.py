"""Buckets by AWS's rules: versions, conditions, listing, multipart, shared bytes."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_cloud.model.cloud import Cloud
from local_cloud.model.errors import CloudError
from local_cloud.model.s3.body import MemoryBodies, Segment, cut
from local_cloud.model.s3.bucket import Bucket, page_of_keys
from local_cloud.model.s3.multipart import WantedPart
from local_cloud.model.s3.object_version import Attributes, Condition, ObjectVersion


class World:
    """A cloud with one bucket, and a clock."""

    def __init__(self, *, versioned: bool) -> None:
        self.bodies = MemoryBodies()
        self.cloud = Cloud(bodies=self.bodies)
        self.bucket: Bucket = self.cloud.create_bucket(0.0, "bucket")
        self.now_s = 0.0
        if versioned:
            self.bucket.set_versioning("Enabled")

    def put(self, key: str, data: bytes, condition: Condition | None = None) -> ObjectVersion:
        self.now_s += 1
        content = self.bodies.add(data)
        return self.cloud.put_object(self.now_s, "bucket", key, content, condition=condition)

    def read(self, key: str, version_id: str = "") -> bytes:
        return self.bodies.read(self.bucket.get(key, version_id).segments)

    def stored(self) -> int:
        return len(self.bodies._bodies)


def test_without_versioning_the_last_put_replaces() -> None:
    world = World(versioned=False)
    world.put("k", b"one")
    made = world.put("k", b"two")
    assert (made.version_id, made.etag) == ("null", hashlib.md5(b"two").hexdigest())
    assert (world.read("k"), world.stored()) == (b"two", 1)


def test_suspended_versioning_writes_the_null_version_over_and_over() -> None:
    world = World(versioned=True)
    kept = world.put("k", b"kept")
    world.bucket.set_versioning("Suspended")
    world.put("k", b"first null")
    assert world.put("k", b"second null").version_id == "null"
    page = world.bucket.version_page()
    assert [v.version_id for v in page.versions] == ["null", kept.version_id]
    assert world.stored() == 2


def test_if_none_match_holds_only_for_nothing() -> None:
    world = World(versioned=True)
    absent = Condition(if_none_match=True)
    world.put("k", b"one", absent)
    with pytest.raises(CloudError) as error:
        world.put("k", b"two", absent)
    assert (error.value.code, error.value.status) == ("PreconditionFailed", 412)
    world.cloud.delete_object(9.0, "bucket", "k")
    assert world.put("k", b"three", absent).etag == hashlib.md5(b"three").hexdigest()


def test_multipart_makes_one_object_of_the_parts_without_copying() -> None:
    world = World(versioned=True)
    upload = world.bucket.uploads.start(1.0, "big", Attributes(content_type="text/plain"))
    pieces = [b"a" * 5 * 2**20, b"b" * 5 * 2**20, b"tail"]
    for number, piece in enumerate(pieces, 1):
        world.bucket.uploads.put_part(1.0, upload, number, world.bodies.add(piece))
    wanted = [
        WantedPart(number=n, etag=hashlib.md5(p).hexdigest()) for n, p in enumerate(pieces, 1)
    ]
    made = world.cloud.complete_upload(2.0, "bucket", upload, wanted)
    digests = b"".join(hashlib.md5(p).digest() for p in pieces)
    assert made.etag == hashlib.md5(digests).hexdigest() + "-3"
    assert (made.size, made.attributes.content_type) == (sum(map(len, pieces)), "text/plain")
    assert world.bodies.read(cut(made.segments, 5 * 2**20 - 1, 10 * 2**20 + 2)) == (
        b"a" + b"b" * 5 * 2**20 + b"ta"
    )
    assert world.bucket.uploads.all() == []
    world.cloud.delete_object(3.0, "bucket", "big", made.version_id)
    assert world.stored() == 0


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ([], "MalformedXML"),
        ([(2, ""), (1, "")], "InvalidPartOrder"),
        ([(1, "wrong"), (2, "")], "InvalidPart"),
        ([(1, ""), (3, "")], "InvalidPart"),
        ([(1, ""), (2, "")], "EntityTooSmall"),
    ],
)
def test_a_wrong_list_of_parts_is_refused(wanted: list[tuple[int, str]], code: str) -> None:
    world = World(versioned=False)
    upload = world.bucket.uploads.start(1.0, "k", Attributes())
    for number in (1, 2):
        world.bucket.uploads.put_part(1.0, upload, number, world.bodies.add(b"small"))
    listed = [WantedPart(number=n, etag=etag) for n, etag in wanted]
    with pytest.raises(CloudError) as error:
        world.cloud.complete_upload(2.0, "bucket", upload, listed)
    assert error.value.code == code
    world.bucket.uploads.end(upload)
    assert world.stored() == 0


def test_deleted_keys_are_not_listed_and_versions_are_paged() -> None:
    world = World(versioned=True)
    for key in ("a", "b", "a"):
        world.put(key, key.encode())
    world.cloud.delete_object(9.0, "bucket", "b")
    assert world.bucket.page().keys == ("a",)
    seen: list[tuple[str, bool]] = []
    after = ("", "")
    for _ in range(5):
        page = world.bucket.version_page(after=after, limit=1)
        seen += [(v.key, v.marker) for v in page.versions]
        if page.after is None:
            break
        after = page.after
    assert seen == [("a", False), ("a", False), ("b", True), ("b", False)]


KEYS = st.lists(st.text(alphabet="ab/é", min_size=1, max_size=5), unique=True, max_size=30)


@given(
    keys=KEYS,
    prefix=st.sampled_from(["", "a", "a/"]),
    limit=st.integers(1, 5),
    delimiter=st.sampled_from(["", "/"]),
)
def test_pages_together_are_the_whole_listing(
    keys: list[str], prefix: str, limit: int, delimiter: str
) -> None:
    ordered = sorted(keys)
    found: list[str] = []
    prefixes: list[str] = []
    after: str | None = ""
    while after is not None:
        page = page_of_keys(ordered, prefix=prefix, delimiter=delimiter, after=after, limit=limit)
        assert len(page.keys) + len(page.prefixes) <= limit
        found += page.keys
        prefixes += page.prefixes
        after = page.after
    below = [k for k in ordered if k.startswith(prefix)]
    rolled = {k[: k.index("/", len(prefix)) + 1] for k in below if "/" in k[len(prefix) :]}
    assert prefixes == sorted(rolled if delimiter else ())
    assert found == [k for k in below if not delimiter or "/" not in k[len(prefix) :]]


@given(sizes=st.lists(st.integers(0, 5), max_size=6), data=st.data())
def test_cut_gives_exactly_the_bytes(sizes: list[int], data: st.DataObject) -> None:
    bodies = MemoryBodies()
    whole = bytes(range(sum(sizes)))
    segments: list[Segment] = []
    at = 0
    for size in sizes:
        segments += bodies.add(whole[at : at + size]).segments
        at += size
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert bodies.read(cut(segments, start, stop)) == whole[start:stop]
