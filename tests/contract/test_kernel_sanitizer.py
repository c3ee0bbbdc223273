"""Translations of drawn programs under AddressSanitizer: no access is outside, none is of old data.

Each kernel runs twice on a stack with other old data; if the results differ, it has read some.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from operations.kernels.source import read_source
from remote_gpu.wire.errors import OpFailed
from tests.contract.kernel_programs import STRUCTURES, Program

#: Overflow, shifts and divisions have no meaning in C that a check depends on.
FLAGS = (
    "-std=gnu11 -O0 -w -fwrapv -fsanitize=address,undefined -fno-sanitize-recover=all"
    " -fno-sanitize=shift,signed-integer-overflow,integer-divide-by-zero"
)
#: Kernels of one compilation.
BATCH = 25
BEFORE = """
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define __kernel
#define __global
#define __private
#define __constant const
#define ORCHGPU_CPU
typedef unsigned char uchar; typedef unsigned short ushort;
typedef unsigned int uint; typedef unsigned long ulong;
static ulong get_local_id(uint d) { return 0; }
"""
AFTER = """
#include <alloca.h>
typedef void Kernel(ulong *, int *, int, uint, uint *, ulong, ulong, ulong);
__attribute__((noinline, no_sanitize_address)) static void old_data(int of) {
    volatile unsigned char old[1 << 16];
    for (int i = 0; i < sizeof old; i++) old[i] = of;
}
static int run(const char *name, Kernel *kernel) {
    int differ = 0;
    for (int w = -1; w < 6; w++) {
        ulong *y[2]; int *z[2];
        for (int turn = 0; turn < 2; turn++) {
            fprintf(stderr, "%s(%d)\\n", name, w);
            uint *fault = calloc(1, sizeof *fault);
            y[turn] = malloc(4 * sizeof(ulong)); z[turn] = malloc(5 * sizeof(int));
            for (int i = 0; i < 4; i++) y[turn][i] = i * w;
            for (int i = 0; i < 5; i++) z[turn][i] = i + w;
            old_data(turn ? 0x55 : 0xfe);
            kernel(y[turn], z[turn], w, 9, fault, 0, 4 * sizeof(ulong), 5 * sizeof(int));
            free(fault);
        }
        if (memcmp(y[0], y[1], 4 * sizeof(ulong)) || memcmp(z[0], z[1], 5 * sizeof(int))) {
            fprintf(stderr, "%s(%d) read what was never written\\n", name, w);
            differ = 1;
        }
        for (int turn = 0; turn < 2; turn++) { free(y[turn]); free(z[turn]); }
    }
    return differ;
}
"""
#: A translation without the rules on labels, as C has them: the sanitizer finds each.
JUMP = "void f(ulong *y, int *z, int w, uint u, uint *fault, ulong zero, ulong ys, ulong zs)"
WRONG = {
    "an array": "switch (w) { case 9: ; ulong a[9] = {0}; case 1: y[0] = a[0]; }",
    "an own name": "int a = w; { int a = a; y[0] = a; }",
    "a counter": "ulong a[4] = {0}; switch (w) for (uint i = 0; i < 4; i++) case 1: y[0] = a[i];",
    "a pointer": "ulong *p = y; { ulong a[2] = {0}; p = a; } y[0] = *p;",
    "outside": "y[0] = z[w];",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sanitizer")
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on this machine")
    (made / "empty.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
    command = ["gcc", *FLAGS.split(), "empty.c", "-o", "empty"]
    if subprocess.run(command, cwd=made, capture_output=True, check=False).returncode:
        pytest.skip("gcc has no AddressSanitizer on this machine")
    return made


def ran(folder: Path, text: str, names: Iterable[str]) -> str:
    """The report of a run of these kernels, "" without one."""
    calls = " ".join(f'differ |= run("{name}", (Kernel *){name});' for name in names)
    main = f"int main(void) {{ int differ = 0; {calls} return differ; }}\n"
    (folder / "programs.c").write_text(f"{BEFORE}{text}{AFTER}{main}", encoding="utf-8")
    command = ["gcc", *FLAGS.split(), "programs.c", "-o", "programs"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, f"the translation does not compile: {built.stderr[:4000]}"
    done = subprocess.run(
        ["./programs"], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    return "" if done.returncode == 0 else done.stderr[-6000:]


def check(folder: Path, seeds: Iterable[int]) -> int:
    """Run the kernels of these seeds in one program; returns how many the translator accepts."""
    accepted = list[Program]()
    for seed in seeds:
        program = Program(seed)
        try:
            read_source(STRUCTURES + program.text)
        except OpFailed:
            continue
        accepted.append(program)
    source = read_source(STRUCTURES + "".join(program.text for program in accepted))
    report = ran(folder, source.text, [one.entry for one in source.kernels.values()])
    assert not report, f"{report}\nThe name of the kernel that ran last has its seed."
    return len(accepted)


@pytest.mark.parametrize("what", WRONG)
def test_the_sanitizer_finds_what_the_rules_prevent(folder: Path, what: str) -> None:
    assert "f(" in ran(folder, f"{JUMP} {{\n{WRONG[what]}\n}}\n", ["f"])


def test_drawn_programs_stay_inside_of_their_memory(folder: Path) -> None:
    accepted = check(folder, range(BATCH))
    assert BATCH // 3 < accepted < BATCH, "most are valid, and some are not"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_drawn_programs_stay_inside_of_their_memory(folder: Path) -> None:
    for first in range(1000, 3000, BATCH):
        check(folder, range(first, first + BATCH))
