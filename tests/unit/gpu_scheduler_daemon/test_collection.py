"""Garbage collection beside a large state, in a process of its own, all of which it changes."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from gpu_scheduler.daemon.collection import visited_once

def visited(marks):
    ids = {id(one) for generation in range(3) for one in gc.get_objects(generation)}
    return [id(one) in ids for one in marks]

def cycle():
    one = []
    one.append(one)

before = [[]]
with visited_once():
    print("existed:", visited(before))
    survivors = [[] for _ in range(3)]
    print("made:", visited(survivors))
    gc.collect()
    print("left by a full collection:", visited(survivors))
    cycle()
    print("new garbage:", gc.collect())
print("afterwards:", visited(before + survivors), len(gc.callbacks))
"""


def test_a_full_collection_visits_what_was_made_since_the_last_one() -> None:
    line = [sys.executable, "-c", PROGRAM]
    found = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert found.splitlines() == [
        "existed: [False]",
        "made: [True, True, True]",
        "left by a full collection: [False, False, False]",
        "new garbage: 1",
        "afterwards: [True, True, True, True] 0",
    ]
