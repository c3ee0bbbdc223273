"""The resources of sessions of operations: models, data and programs, loaded once, with references.

Their bytes are contents of the tenant (`contents.py`), kept for its next lease too. The loaded form
is kept while a session has the resource registered, and, in a worker that may outlive its lease,
until its memory is needed. A session belongs to the lane that opened it and ends with it at the
latest.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar, cast

from remote_gpu.wire.errors import OpCode, OpFailed, invalid
from remote_gpu.wire.frames import Meta
from remote_gpu.wire.graphs import check_content_id
from remote_gpu.worker.arguments import Arguments
from remote_gpu.worker.loading import LoadingTime
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.store.contents import Contents
from remote_gpu.worker.store.declared_sizes import check_declared_sizes

T = TypeVar("T")

#: A program is a kernel source; sent machine code is not executed.
TYPES = ("model", "data", "program")
SESSIONS_MAX = 64  #: of one lane
RESOURCES_MAX = 1024  #: registered in one worker


class _Resource:
    """One registered content."""

    def __init__(self, kind: str, data: memoryview) -> None:
        self.kind = kind
        self.data = data
        self.references: Counter[int] = Counter()  # by session
        self.lock = threading.Lock()  # of the fields below: loading takes seconds
        self.gone = False
        self.forms: dict[str, object] = {}  #: loaded, by the kind of device that uses them
        self.frees: list[Callable[[], None]] = []


class Resources:
    """The resources of one worker. Thread-safe."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._resources: dict[str, _Resource] = {}
        self._unused: dict[str, _Resource] = {}  # loaded, and registered by no session
        self.keeps_loaded = False  #: keep what is loaded when no session has it registered
        self.loading = LoadingTime()

    def new_session(self) -> int:
        """A new session number, unique in this worker."""
        return next(self._ids)

    def register(self, session: int, kind: str, content: str, data: memoryview) -> None:
        """Add a reference of a session. Raises OpFailed: EINVAL for another type, E2BIG."""
        with self._lock:
            resource = self._resources.get(content)
            if resource is None:
                if len(self._resources) >= RESOURCES_MAX:
                    message = f"a lease has at most {RESOURCES_MAX} resources registered"
                    raise OpFailed(OpCode.E2BIG, message)
                resource = self._unused.get(content)
                if resource is None or resource.kind != kind:
                    resource = _Resource(kind, data)
                else:
                    del self._unused[content]
                self._resources[content] = resource
            elif resource.kind != kind:
                raise invalid(f"{content} is registered as {resource.kind}")
            resource.references[session] += 1

    def release(self, session: int, content: str) -> None:
        """Drop a reference; the last one frees the resource. Raises OpFailed(ENOENT)."""
        with self._lock:
            resource = self._resources.get(content)
            if resource is None or not resource.references[session]:
                raise OpFailed(OpCode.ENOENT, f"session {session} has not registered {content}")
            resource.references[session] -= 1
            gone = self._pop_unused()
        _free(gone)

    def end_session(self, session: int) -> None:
        """Drop all references of a session."""
        with self._lock:
            for resource in self._resources.values():
                del resource.references[session]
            gone = self._pop_unused()
        _free(gone)

    def data(self, content: str) -> memoryview:
        """The bytes of a resource. Raises OpFailed(ENOENT)."""
        return self._find(content).data

    def loaded(
        self, content: str, quota: Quota, load: Callable[[memoryview], T], form: str = ""
    ) -> T:
        """The result of `load`, called at most once per form while the resource is registered.

        The size of the bytes is reserved in the quota for each form. Raises OpFailed: ENOENT,
        ENOMEM, or of `load`.
        """
        resource = self._find(content)
        with resource.lock:
            if resource.gone:
                raise _unregistered(content)
            if form not in resource.forms:
                size = resource.data.nbytes
                quota.reserve(size)
                try:
                    with self.loading:
                        resource.forms[form] = load(resource.data)
                        self.loading.count(size)
                except BaseException:
                    quota.free(size)
                    raise
                resource.frees.append(lambda: quota.free(size))
            return cast("T", resource.forms[form])

    def unused(self) -> tuple[str, ...]:
        """The contents that are loaded, and registered by no session."""
        with self._lock:
            return tuple(self._unused)

    def evict(self) -> bool:
        """Free what no session has registered. True when it freed something. Does not block."""
        freed = False
        with self._lock:
            for name, resource in list(self._unused.items()):
                if resource.lock.acquire(blocking=False):  # else a call has just found it
                    del self._unused[name]
                    _release(resource)
                    resource.lock.release()
                    freed = True
        return freed

    def _find(self, content: str) -> _Resource:
        resource = self._resources.get(content)
        if resource is None:
            raise _unregistered(content)
        return resource

    def _pop_unused(self) -> list[_Resource]:
        gone: list[_Resource] = []
        unused = [name for name, resource in self._resources.items() if not +resource.references]
        for name in unused:
            resource = self._resources.pop(name)
            if not self._kept(name, resource):
                gone.append(resource)
        return gone

    def _kept(self, name: str, resource: _Resource) -> bool:
        if not self.keeps_loaded or not resource.forms or name in self._unused:
            return False
        if len(self._unused) >= RESOURCES_MAX:
            return False
        self._unused[name] = resource
        return True


class Sessions:
    """The sessions of one lane, as commands. Not thread-safe."""

    def __init__(self, resources: Resources, contents: Contents, quota: Quota) -> None:
        self._resources = resources
        self._contents = contents
        self._quota = quota
        self._open: dict[int, None] = {}  # in the order of their opening

    def new(self, args: Arguments) -> tuple[Meta, list[memoryview]]:
        """→ {"session": number}."""
        del args
        if len(self._open) >= SESSIONS_MAX:
            raise OpFailed(OpCode.E2BIG, f"a lane has at most {SESSIONS_MAX} sessions")
        session = self._resources.new_session()
        self._open[session] = None
        return {"session": session}, []

    def free(self, args: Arguments) -> tuple[Meta, list[memoryview]]:
        """`session` → nothing; frees its resources that no other session has registered."""
        session = self._of(args)
        del self._open[session]
        self._resources.end_session(session)
        return {}, []

    def register(self, args: Arguments) -> tuple[Meta, list[memoryview]]:
        """`session`, `type`, `content` → {"missing": true} if its bytes must be sent first
        (`content.put`), else registers it. Raises OpFailed(ENOMEM) for a model with a declared
        tensor larger than the lease's memory."""
        session, kind = self._of(args), args.get("type")
        if kind not in TYPES:
            raise invalid(f"'type' must be one of {', '.join(TYPES)}")
        content = check_content_id(args.get("content"))
        data = self._contents.find(content)
        if data is None:
            return {"missing": True}, []
        if kind == "model" and self._quota.limit_bytes is not None:
            check_declared_sizes(data, self._quota.limit_bytes)
        self._resources.register(session, kind, content, data)
        return {"missing": False}, []

    def release(self, args: Arguments) -> tuple[Meta, list[memoryview]]:
        """`session`, `content` → nothing."""
        self._resources.release(self._of(args), check_content_id(args.get("content")))
        return {}, []

    def close(self) -> None:
        for session in self._open:
            self._resources.end_session(session)
        self._open.clear()

    def _of(self, args: Arguments) -> int:
        session = args.get("session")
        if type(session) is not int:
            raise invalid("'session' must be the number of a session")
        if session not in self._open:
            raise OpFailed(OpCode.ENOENT, f"no session {session} on this lane; it may have ended")
        return session


def _unregistered(content: str) -> OpFailed:
    message = f"{content} is not registered in any session of this lease"
    return OpFailed(OpCode.ENOENT, message)


def _free(resources: list[_Resource]) -> None:
    for resource in resources:
        with resource.lock:
            _release(resource)


def _release(resource: _Resource) -> None:
    resource.gone = True
    resource.forms.clear()
    for free in resource.frees:
        free()
    resource.frees.clear()
