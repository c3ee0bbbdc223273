"""The first use of classes by several threads at once."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading
from collections.abc import Mapping, Sequence
from corekit.decode import decode, decode_json
from corekit.values import Value

def made(number):
    class Part(Value):
        a: Mapping[str, Sequence[int]]
        b: tuple[str, ...] = ()
    class Whole(Value):
        parts: Sequence[Part]
        more: Mapping[str, Part]
        name: str | None = None
    for one in (Part, Whole):
        one.__annotations__ = {k: eval(v, globals(), locals()) if isinstance(v, str) else v
                               for k, v in one.__annotations__.items()}
    return Whole

sys.setswitchinterval(1e-6)
for number in range(60):
    cls, start = made(number), threading.Barrier(8)
    def read(use):
        start.wait()
        use()
    uses = [lambda: decode_json(cls, b'{"parts":[{"a":{"x":[1]}}],"more":{}}'),
            lambda: decode(cls, {"parts": [{"a": {"x": [1]}}], "more": {}})] * 4
    threads = [threading.Thread(target=read, args=(use,)) for use in uses]
    for one in threads: one.start()
    for one in threads: one.join()
print("read")
"""


def test_several_threads_may_read_a_class_for_the_first_time() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr[-2000:]
