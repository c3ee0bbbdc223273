"""OCI artifacts: the named files of one manifest in a registry, by the distribution API.

Registries are read without an account: a registry that asks for a token gets an anonymous one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.data_manifest import ArtifactManifest, File, artifact_files
from remote_gpu.host.data.web import ChallengedError, Sink, Web, on_this_machine, url_of

T = TypeVar("T")
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_REDIRECTS_MAX = 5  #: to the store of blobs
#: Docker Hub's API has another name than its images.
_HOSTS = {"docker.io": "registry-1.docker.io"}


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""


class ArtifactSource:
    """The files of one artifact."""

    def __init__(
        self,
        registry: str,
        name: str,
        sha256: str,
        *,
        refused: Callable[[str], bool] = on_this_machine,
        scheme: str = "https",
    ) -> None:
        """`refused`: addresses that may not be connected to."""
        self._text = f"oci://{registry}/{name}@sha256:{sha256}"
        self._place = f"{scheme}://{_HOSTS.get(registry, registry)}/v2/{name}"
        self._scheme, self._sha256 = scheme, sha256
        self._web = Web(refused, redirects_max=_REDIRECTS_MAX)
        self._headers: dict[str, str] = {}

    async def files(self) -> list[File]:
        url, accept = f"{self._place}/manifests/sha256:{self._sha256}", {"Accept": _MANIFEST_TYPE}
        text = await self._called(lambda headers: self._web.document(url, headers | accept))
        if hashlib.sha256(text).hexdigest() != self._sha256:
            raise AppError(ErrorCode.CONFLICT, f"{self._text}: the registry sent another manifest")
        try:
            return [*artifact_files(msgspec.json.decode(text, type=ArtifactManifest))]
        except (msgspec.MsgspecError, AppError) as error:
            raise invalid(f"{self._text} is not an artifact of named files: {error}") from None

    async def read(self, file: File, start: int, stop: int | None, sink: Sink) -> None:
        url = f"{self._place}/blobs/{file.pin}"
        await self._called(lambda headers: self._web.get(url, start, stop, sink, headers))

    async def close(self) -> None:
        await self._web.close()

    async def _called(self, call: Callable[[dict[str, str]], Awaitable[T]]) -> T:
        """A call, again with a new token where the registry asks for one."""
        try:
            return await call(self._headers)
        except ChallengedError as error:
            self._headers = {"Authorization": f"Bearer {await self._token(error)}"}
        return await call(self._headers)

    async def _token(self, refusal: ChallengedError) -> str:
        asked = _parameters(refusal.challenge)
        realm = url_of(asked.pop("realm", ""))
        if realm.scheme not in ("https", self._scheme) or not realm.host:
            raise refusal
        wanted = {key: value for key, value in asked.items() if key in ("service", "scope")}
        answer = await self._web.document(str(realm.update_query(wanted)), {})
        try:
            found = msgspec.json.decode(answer, type=_Token)
        except msgspec.MsgspecError:
            raise refusal from None
        return found.token or found.access_token


def _parameters(challenge: str) -> dict[str, str]:
    """Those of a `Bearer` challenge; none of another one."""
    kind, _, rest = challenge.partition(" ")
    found: Mapping[str, str] = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    return dict(found) if kind.lower() == "bearer" else {}
