"""Runs of a workflow as the console's server answers them: one that runs, one that failed."""

from __future__ import annotations

from benchmarks.scale.generated import Json

WORKFLOW = "pictures"
RUNNING, FAILED = "r" + "1" * 25, "r" + "2" * 25
#: Seconds since the begin of the run: the code of each part.
_PARTS = ((4.0, 9.0), (4.2, 8.1), (8.5, None), (9.1, None))


def runs(now_s: float) -> Json:
    return {"items": [_summary(RUNNING, now_s), _summary(FAILED, now_s)]}


def _summary(run: str, now_s: float) -> Json:
    runs_now = run == RUNNING
    began_s = now_s - (12 if runs_now else 600)
    return {
        "run": run,
        "state": "RUNNING" if runs_now else "FAILED",
        "reason": "NONE" if runs_now else "EXIT_NONZERO",
        "bucket": "pictures",
        "key": "in/holiday.zip" if runs_now else "in/broken.zip",
        "began_s": began_s,
        "ended_s": None if runs_now else began_s + 14,
        "steps": 4,
        "steps_ended": 1 if runs_now else 4,
        "running": ["yolo-detect"] if runs_now else [],
    }


def story(run: str, now_s: float, *, may_change: bool) -> Json:
    summary = _summary(run, now_s)
    began_s = float(str(summary["began_s"]))
    runs_now = run == RUNNING
    parts = [_job(f"{n:02}", began_s, start, end) for n, (start, end) in enumerate(_PARTS)]
    if not runs_now:
        parts = [{**parts[0], "state": "FAILED"}]
    unpack = _job("99", began_s, 0.5, 3.4)
    steps = [
        _step("thumbnail", "DONE", [unpack], 2.9),
        _step("yolo-detect", "STARTED" if runs_now else "FAILED", parts, 8.0),
        _step("whisper-small", "SKIPPED", []),
        _step("resnet-batch", "BLOCKED" if runs_now else "CANCELLED", []),
    ]
    edges = [("thumbnail", "yolo-detect"), ("thumbnail", "whisper-small")]
    edges += [("yolo-detect", "resnet-batch"), ("whisper-small", "resnet-batch")]
    return {
        **summary,
        "workflow": WORKFLOW,
        "detail": "" if runs_now else "step yolo-detect: the script ended with 3",
        "promise": None if runs_now else "slo missed FAILED: 14.0 s of 60 s",
        "tries": 1 if runs_now else 2,
        "now_s": now_s,
        "steps": steps,
        "edges": [{"from": source, "to": target} for source, target in edges],
        "files": [] if runs_now else [{"bucket": "pictures", "key": "out/x.txt", "bytes": 4711}],
        "may_change": may_change,
    }


def _job(name: str, began_s: float, start: float, end: float | None) -> Json:
    return {
        "job": f"j{name}".ljust(26, "0"),
        "state": "RUNNING" if end is None else "SUCCEEDED",
        "device": "cuda on gpu0002",
        "start_s": began_s + start,
        "end_s": None if end is None else began_s + end,
        "key": f"parts/{name}.jpg",
        "files": 1,
    }


def _step(name: str, state: str, jobs: list[Json], seconds: float | None = None) -> Json:
    return {
        "name": name,
        "state": state,
        "reason": "NONE",
        "detail": "",
        "device": "cuda on gpu0002" if jobs else "",
        "seconds": seconds,
        "ended": sum(job["end_s"] is not None for job in jobs),
        "count": len(jobs),
        "jobs": jobs,
    }
