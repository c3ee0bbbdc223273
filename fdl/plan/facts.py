"""The parts of a cloud's present state on which a desired state depends."""

from __future__ import annotations

from collections.abc import Mapping

from corekit.values import Value


class DataFacts(Value):
    """The present content of a source of data."""

    digest: str  #: of its manifest
    bytes: int = 0  #: 0 = not known
    source: str = ""  #: pinned by the commit that its branch or tag names now; "" = as declared


class Facts(Value):
    """Read before a plan; the defaults are those of a cloud without any."""

    #: ARN of the boundary of made roles, where the definition names none; "" = the account's own.
    boundary: str = ""
    #: Bucket → ARN of the KMS key of its default encryption; without those that AWS manages.
    bucket_keys: Mapping[str, str] = {}
    #: Reference to a secret → ARN of the KMS key of the account that encrypts it; without those
    #: that AWS manages.
    secret_keys: Mapping[str, str] = {}
    #: Image → the same with the digest that its tag names now.
    images: Mapping[str, str] = {}
    data: Mapping[str, DataFacts] = {}  #: by source, those that were read
