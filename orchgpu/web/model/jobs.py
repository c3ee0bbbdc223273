"""The job records of the scheduler, in short, indexed for lists and counts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from corekit.errors import invalid
from corekit.values import Value, replace
from orchgpu.jobs.summary import JobSummary, Key
from orchgpu.web.model.pages import Page, SortedKeys, search, sliced


class JobQuery(Value):
    """The conditions of a list of jobs."""

    state: str | None = None  #: a state, or `live`, `over`
    function: str | None = None
    text: str = ""  #: of the id, the input or the function
    since_s: float | None = None  #: received then or later
    sort: str | None = None  #: a name of `SORTS`; None: in the order of receipt, newest first
    descending: bool = False
    limit: int = 50
    after: str | None = None  #: cursor

    def fits(self, job: JobSummary) -> bool:
        """Whether a job, as the viewer sees it, meets the conditions."""
        text = self.text.lower()
        fits = _in_state(job, self.state) and self.function in (None, job.function)
        recent = self.since_s is None or job.received_s >= self.since_s
        return fits and recent and (not text or job.matches(text))


#: The form of a job that the viewer sees; None: the viewer does not see it.
Shown = Callable[[JobSummary], JobSummary | None]
#: Column → its value of a job. A list sorted by one has the newest `SORTED_MAX` jobs that match.
SORTS: Mapping[str, Callable[[JobSummary], str | float]] = {
    "state": lambda job: job.state,
    "input": lambda job: job.files_text or job.key or "",
    "function": lambda job: job.function or "",
    "tenant": lambda job: job.tenant or "",
    "reason": lambda job: job.reason,
    "device": lambda job: job.device or "",
    "attempt": lambda job: job.attempt,
    "submitted": lambda job: job.submitted_s or job.received_s,
    "duration": lambda job: job.duration_s,
}
SORTED_MAX = 5_000


class Jobs:
    """All jobs, each once, with the counts by state."""

    def __init__(self) -> None:
        self._by_id: dict[str, JobSummary] = {}
        self._all: SortedKeys[Key] = SortedKeys()
        self._by_state: dict[str, SortedKeys[Key]] = {}
        self._by_function: dict[str, SortedKeys[Key]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[JobSummary]:
        return iter(self._by_id.values())

    def get(self, job: str) -> JobSummary | None:
        return self._by_id.get(job)

    def put(self, job: JobSummary) -> bool:
        """Add or replace a job; False: nothing about it changed."""
        old = self._by_id.get(job.job)
        if old is not None:
            job = replace(job, received_s=old.received_s, device=job.device or old.device)
            if old == job:
                return False
            self._leave_indexes(old)
        else:
            self._all.add(job.order)
        self._by_id[job.job] = job
        self._by_state.setdefault(job.state, SortedKeys()).add(job.order)
        if job.function is not None:
            self._by_function.setdefault(job.function, SortedKeys()).add(job.order)
        return True

    def forget(self, job: str) -> bool:
        """Remove a job; False: there was none."""
        old = self._by_id.pop(job, None)
        if old is None:
            return False
        self._all.remove(old.order)
        self._leave_indexes(old)
        return True

    def counts(self) -> dict[str, int]:
        return {state: len(keys) for state, keys in sorted(self._by_state.items())}

    def functions(self) -> dict[str, int]:
        return {name: len(keys) for name, keys in sorted(self._by_function.items())}

    def page(self, query: JobQuery, shown: Shown) -> Page:
        """The jobs that match as the viewer sees them, newest first. Raises INVALID."""
        if query.sort is not None:
            return self._sorted(query, shown)
        keys, total = self._narrowest(query)

        def matching(key: Key) -> JobSummary | None:
            job = shown(self._by_id[key[1]])
            return job if job is not None and query.fits(job) else None

        found, more = search(keys.before(parsed_cursor(query.after)), query.limit, matching)
        if more is not None and query.since_s is not None and more[0] < query.since_s:
            more = None  # all others are older
        return Page(items=tuple(found), next=None if more is None else cursor(more), total=total)

    def matching(self, query: JobQuery, shown: Shown) -> Iterator[JobSummary]:
        """All jobs that match as the viewer sees them, newest first; jobs may change meanwhile."""
        for _, job in list(self._narrowest(query)[0].before(None)):
            found = self._by_id.get(job)
            one = None if found is None else shown(found)
            if one is not None and query.fits(one):
                yield one

    def _sorted(self, query: JobQuery, shown: Shown) -> Page:
        value = SORTS.get(query.sort or "")
        if value is None:
            raise invalid(f"sort by {', '.join(SORTS)}: not {query.sort!r:.40}")
        found = list(islice(self.matching(query, shown), SORTED_MAX))
        found.sort(key=value, reverse=query.descending)  # stable: equal ones stay newest first
        items, more = sliced(found, query.after, query.limit)
        return Page(items=tuple(items), next=more, total=len(found))

    def _narrowest(self, query: JobQuery) -> tuple[SortedKeys[Key], int | None]:
        """The shortest index that holds all matches, and their number if that is known."""
        found = [self._all]
        if query.state is not None and query.state not in GROUPS:
            found.append(self._by_state.get(query.state, SortedKeys()))
        if query.function is not None:
            found.append(self._by_function.get(query.function, SortedKeys()))
        given = [query.state, query.function, query.text or None, query.since_s]
        conditions = sum(one is not None for one in given)
        narrowest = min(found, key=len)
        is_exact = conditions == 0 or (conditions == 1 and len(found) == 2)
        return narrowest, len(narrowest) if is_exact else None

    def _leave_indexes(self, old: JobSummary) -> None:
        _remove(self._by_state, old.state, old.order)
        if old.function is not None:
            _remove(self._by_function, old.function, old.order)


#: Words for several states.
GROUPS = ("live", "over")


def _in_state(job: JobSummary, state: str | None) -> bool:
    if state in GROUPS:
        return job.over is (state == "over")
    return state in (None, job.state)


def _remove(index: dict[str, SortedKeys[Key]], name: str, key: Key) -> None:
    index[name].remove(key)
    if not len(index[name]):
        del index[name]


def cursor(key: Key) -> str:
    return f"{key[0]!r}_{key[1]}"


def parsed_cursor(text: str | None) -> Key | None:
    if text is None:
        return None
    at_s, _, job = text.partition("_")
    try:
        return float(at_s), job
    except ValueError:
        raise invalid(f"after {text!r:.60} is not a cursor of this list") from None
