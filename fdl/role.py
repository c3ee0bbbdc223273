"""`iam:`, the role of a function."""

from __future__ import annotations

from dataclasses import dataclass

from corekit.errors import invalid

#: The path of the roles that deploy makes: a deployer's policy allows changes below it only.
ROLE_PATH = "/orchgpu/functions/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Iam:
    """The role the function runs under."""

    role: str | None = None
    create: bool = False  #: make one with least privilege; on AWS only
    #: ARN of the policy that limits the role made. [default: that of the account, in `plan`]
    permissions_boundary: str | None = None
    path: str = ROLE_PATH  #: of the role made
    boto_profile: str | None = None
    region: str | None = None

    def __post_init__(self) -> None:
        if self.create and self.role is not None:
            raise invalid("role and create contradict each other; keep one")
