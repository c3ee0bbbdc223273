"""Repositories of the Hugging Face Hub, by its public HTTP API.

Endpoint and token are the operator's, in the variables of the hub's own tools: HF_ENDPOINT (a
mirror; it may be on this machine) and HF_TOKEN (for gated and private repositories).
"""

from __future__ import annotations

import os
from urllib.parse import quote

import msgspec

from corekit.addresses import refused_address
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.data_manifest import File, HubListing, hub_files
from remote_gpu.host.data.web import Sink, Web, on_this_machine

_ENDPOINT = "https://huggingface.co"
_REDIRECTS_MAX = 5  #: of a renamed repository, and to the store of large files


class HubSource:
    """The files of one revision of a repository, or those at or below a path of it."""

    def __init__(self, repository: str, revision: str, path: str | None) -> None:
        own = os.environ.get("HF_ENDPOINT", "").rstrip("/")
        self._endpoint = own or _ENDPOINT
        refused = refused_address if own else on_this_machine
        self._web = Web(refused, redirects_max=_REDIRECTS_MAX)
        token = os.environ.get("HF_TOKEN", "").strip()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._repository, self._revision = repository, revision
        self._path = (path or "").rstrip("/")
        self._paths: dict[str, str] = {}  #: of a file of the set → in the repository

    @property
    def pinned(self) -> str:
        """Its text with the commit, once it was listed."""
        path = self._path and f"/{self._path}"
        return f"hf://{self._repository}@{self._revision}{path}"

    async def files(self) -> list[File]:
        found = await self._listing()
        self._revision = found.sha
        files = dict(hub_files(found, self._path))
        self._paths = {file.path: path for path, file in files.items()}
        return [*files.values()]

    async def read(self, file: File, start: int, stop: int | None, sink: Sink) -> None:
        path = quote(self._paths[file.path])
        url = f"{self._endpoint}/{self._repository}/resolve/{self._revision}/{path}"
        await self._web.get(url, start, stop, sink, self._headers)

    async def close(self) -> None:
        await self._web.close()

    async def _listing(self) -> HubListing:
        kind, _, name = self._repository.partition("/")
        of_kind = f"datasets/{name}" if kind == "datasets" else f"models/{self._repository}"
        url = f"{self._endpoint}/api/{of_kind}/revision/{self._revision}?blobs=true"
        try:
            return msgspec.json.decode(
                await self._web.document(url, self._headers), type=HubListing
            )
        except msgspec.MsgspecError as error:
            text = f"{self._endpoint} does not list {self.pinned} as the Hugging Face Hub: {error}"
            raise AppError(ErrorCode.UNAVAILABLE, text) from None
        except AppError as error:
            if error.code not in (ErrorCode.DENIED, ErrorCode.NOT_FOUND):
                raise
            text = f"{self.pinned} does not exist, or HF_TOKEN of this machine may not read it"
            raise AppError(error.code, f"{text}: {error.message}") from None
