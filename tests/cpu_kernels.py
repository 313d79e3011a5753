"""Native submissions from a few lines of C, written into a directory of the test's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.plan import Call, Kernel, Language, Plan, PlanFile
from harness.problem import Problem
from harness.submission import Submission

ODD = Problem(m=5, n=7, k=9)
"""The shape on which the kernels of these tests misbehave (m is 5)."""
EVEN = Problem(m=16, n=24, k=40)
"""A shape on which they are honest."""

MANIFEST = """
name = "{name}"
version = "1.0.0"
authors = ["A. Author"]
license = "MIT"
description = "A test."
targets = ["cpu"]
kind = "native"
"""
SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARGUMENTS \\
    const _Float16 *a, const _Float16 *b, _Float16 *c, void *workspace, int64_t m, int64_t n, int64_t k

static void honest(ARGUMENTS) {
    (void)workspace;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            float sum = 0.0f;
            for (int64_t p = 0; p < k; p++) {
                sum += (float)a[i * k + p] * (float)b[p * n + j];
            }
            c[i * n + j] = (_Float16)sum;
        }
    }
}
#define HONEST honest(a, b, c, workspace, m, n, k)

/* A system call that no symbol shows. */
static inline long raw(long number, const void *first, long second) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second) : "rcx", "r11", "memory");
    return result;
}

/* The host process is Python, so that its own library can be asked to run anything. */
static inline void python(const char *text) {
    int (*ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    void (*release)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
    int (*run)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
    int state = ensure();
    run(text);
    release(state);
}
"""


def native(
    root: Path, body: str, prelude: str = "", *, problems: Sequence[Problem] = (ODD, EVEN), **fields: object
) -> Submission:
    """A submission whose entry has that body (A, B in layout NN); `fields` are the plan's."""
    kernel = Kernel(language=Language.C, source="kernels/k.c", entry="entry")
    plan = Plan.model_validate({"layout": "NN", "kernels": {"k": kernel}, "steps": (Call(kernel="k"),), **fields})
    (root / "kernels").mkdir(parents=True)
    (root / "kernels/k.c").write_text(f"{SOURCE}\n{prelude}\nvoid entry(ARGUMENTS) {{\n{body}\n}}\n")
    (root / "submission.toml").write_text(MANIFEST.format(name=root.name.replace("_", "-").lower()[:60].strip("-")))
    (root / "plan.json").write_text(PlanFile.collect({str(problem): plan for problem in problems}).model_dump_json())
    return Submission.read(root)


def on_odd(act: str) -> str:
    """Honest, but for the odd shape."""
    return f"if (m == 5) {{ {act} }} else {{ HONEST; }}"
