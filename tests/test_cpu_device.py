"""C kernels that misbehave in a real worker: each gets its reason, and the next shape is measured all the same."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cpu_kernels import EVEN, ODD, native, on_odd

from harness import channel, elf
from harness.evaluate import MAX_ATTEMPTS, Evaluator
from harness.problem import Problem
from harness.protocol import Protocol, Purpose, protocol_for
from harness.record import Measure, Reason, Record, Status
from harness.submission import Submission
from harness.verify.inputs import InputKind, plan_draws

DEADLINE_S = 3.0
ANCHOR = "torch_matmul_fp32"
TIMED = Protocol(measures=(Measure(),), baselines=(ANCHOR,), anchor=ANCHOR, window_ns=50_000, target_half_width=0.9)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    """One device for all these tests, locked apart from what else runs on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("locks")))
        patch.setattr(channel, "ENDING_S", 0.5)
        # What the build refuses is reached by other ways, and must not get further than this.
        patch.setattr(elf, "check_library", lambda *_: None)
        with Evaluator("cpu", TIMED) as evaluator:
            yield evaluator


@pytest.fixture
def check(shared: Evaluator) -> Evaluator:
    """It verifies only."""
    shared.protocol = protocol_for(shared.profile, Purpose.CHECK)
    return shared


@pytest.fixture
def timed(shared: Evaluator) -> Evaluator:
    """It times a few short windows, too."""
    shared.protocol = TIMED
    return shared


def both(evaluator: Evaluator, submission: Submission, *, hangs: bool = False) -> Record:
    """The record of the odd shape, with a short deadline where it hangs; the even one must verify after it."""
    protocol = evaluator.protocol
    if hangs:
        # Baselines bring torch, whose import may take longer than that.
        assert [record.status for record in evaluator.evaluate(submission, [EVEN])] == [Status.VERIFIED]
        evaluator.protocol = protocol.model_copy(update={"deadline_s": DEADLINE_S})
    records = evaluator.evaluate(submission, [ODD, EVEN])
    odd = next(records)
    evaluator.protocol = protocol
    (even,) = records
    assert (even.problem, even.status) == (EVEN, Status.VERIFIED), even
    assert odd.problem == ODD
    assert odd.detail.isprintable()
    return odd


def test_an_honest_kernel_verifies_with_and_without_workspace(check: Evaluator, tmp_path: Path) -> None:
    body = """
        float *partial = workspace;
        for (int i = 0; i < 16; i++) if (partial[i] != 0) c[0] = 1; else partial[i] = 1;
        memset((char *)workspace + 64, 0x5a, 960);
        HONEST;
        memset(partial, 0, 64);"""
    assert both(check, native(tmp_path / "plain", "HONEST;")).status is Status.VERIFIED
    assert both(check, native(tmp_path / "used", body, workspace_bytes=1024, zeroed_bytes=64)).status is Status.VERIFIED


def test_a_worker_imports_torch_for_baselines_only(check: Evaluator, tmp_path: Path) -> None:
    spy = "import sys; open(%r, 'w').write(str('torch' in sys.modules))"
    for evaluator_protocol, expected in ((check.protocol, "False"), (TIMED, "True")):
        check.protocol, seen = evaluator_protocol, tmp_path / expected
        body = f"python({json.dumps(spy % str(seen))}); HONEST;"
        (record,) = check.evaluate(native(tmp_path / f"spy-{expected}", body), [EVEN])
        assert (record.status, seen.read_text()) == (Status.VERIFIED, expected)


WRONG: dict[str, tuple[str, set[Reason]]] = {
    "past C": ("HONEST; c[m * n] = 1;", {Reason.OUT_OF_BOUNDS}),
    "before C": ("HONEST; c[-1] = 1;", {Reason.OUT_OF_BOUNDS}),
    "far past C": ("HONEST; c[m * n + 2000] = 1;", {Reason.OUT_OF_BOUNDS}),
    "past the workspace": ("HONEST; ((char *)workspace)[128] = 1;", {Reason.OUT_OF_BOUNDS}),
    "into A": ("HONEST; ((_Float16 *)a)[3] += 1;", {Reason.INPUT_MODIFIED}),
    "into B": ("HONEST; ((_Float16 *)b)[k * n - 1] += 1;", {Reason.INPUT_MODIFIED}),
    "workspace not restored": ("HONEST; ((char *)workspace)[63] = 1;", {Reason.WORKSPACE_NOT_RESTORED}),
    "nothing": ("(void)0;", {Reason.UNWRITTEN}),
    "a tile skipped": ("honest(a, b, c, workspace, m - 1, n, k);", {Reason.UNWRITTEN}),
    "accumulates": ("_Float16 o = c[0]; HONEST; c[0] = c[0] + o;", {Reason.UNWRITTEN, Reason.NOT_FINITE}),
    "uninitialised workspace": (
        "HONEST; c[0] += ((_Float16 *)workspace)[40];",
        {Reason.WRONG_RESULT, Reason.NOT_FINITE, Reason.NONDETERMINISTIC, Reason.INEXACT},
    ),
    "reads past A": ("HONEST; c[0] += a[m * k] * (_Float16)0;", {Reason.NOT_FINITE}),
    "reads before B": ("HONEST; c[0] += b[-1] * (_Float16)0;", {Reason.NOT_FINITE}),
    "NaN": ('HONEST; c[m * n - 1] = (_Float16)__builtin_nanf("");', {Reason.NOT_FINITE}),
    "constant": ("for (int64_t i = 0; i < m * n; i++) c[i] = 1;", {Reason.WRONG_RESULT}),
    "zero": ("memset(c, 0, 2 * m * n);", {Reason.WRONG_RESULT}),
    "B as if transposed": (
        """for (int64_t i = 0; i < m; i++) for (int64_t j = 0; j < n; j++) {
            float sum = 0;
            for (int64_t p = 0; p < k; p++) sum += (float)a[i * k + p] * (float)b[j * k + p];
            c[i * n + j] = (_Float16)sum; }""",
        {Reason.WRONG_RESULT},
    ),
    "right on even calls": (
        "static int calls; if (calls++ % 2) memset(c, 0, 2 * m * n); else HONEST;",
        {Reason.WRONG_RESULT},
    ),
    "by chance": (
        "HONEST; if (rand() % 2) for (int64_t i = 0; i < m * n; i++) c[i] = (_Float16)((float)c[i] * 1.0003f);",
        {Reason.NONDETERMINISTIC, Reason.WRONG_RESULT, Reason.PRECISION_CLASS},
    ),
    "the first result for ever": (
        "static _Float16 first[35]; static int filled; "
        "if (!filled++) { HONEST; memcpy(first, c, 70); } else memcpy(c, first, 70);",
        {Reason.WRONG_RESULT},
    ),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_a_wrong_kernel_has_its_reason(check: Evaluator, tmp_path: Path, case: str) -> None:
    act, reasons = WRONG[case]
    record = both(check, native(tmp_path / "wrong", on_odd(act), workspace_bytes=128, zeroed_bytes=64))
    assert record.status is Status.REJECTED
    assert record.reason in reasons
    assert record.segment == check._segment


DEADLY: dict[str, tuple[str, Reason]] = {
    "spins": ("volatile int spin = 1; while (spin) {}", Reason.DEADLINE),
    "crashes": ("*(volatile int *)16 = 1;", Reason.CRASH),
    "aborts": ("abort();", Reason.CRASH),
    "exits": ("exit(0);", Reason.CRASH),
    "babbles": ('for (int fd = 3; fd < 64; fd++) if (write(fd, "AAAAAAAA", 8)) {} sleep(100);', Reason.CRASH),
}


@pytest.mark.parametrize("case", list(DEADLY))
def test_a_kernel_that_costs_its_worker_is_blamed_and_the_next_shape_is_measured(
    check: Evaluator, tmp_path: Path, case: str
) -> None:
    act, reason = DEADLY[case]
    record = both(check, native(tmp_path / "deadly", on_odd(act)), hangs=reason is Reason.DEADLINE)
    assert (record.status, record.reason) == (Status.REJECTED, reason)
    assert record.segment == check._segment - 1


def test_a_library_that_kills_at_loading_is_blamed(check: Evaluator, tmp_path: Path) -> None:
    prelude = "__attribute__((constructor)) static void loaded(void) { abort(); }"
    (record,) = check.evaluate(native(tmp_path / "loading", "HONEST;", prelude), [ODD])
    assert (record.status, record.reason) == (Status.REJECTED, Reason.CRASH)
    assert "SIGABRT" in record.detail


def test_a_worker_killed_from_outside_is_the_machines_and_tried_again(check: Evaluator, tmp_path: Path) -> None:
    """The kernel's memory killer sends SIGKILL, and so does this kernel: nothing proves who did."""
    marker = tmp_path / "tries"
    once = f'FILE *f = fopen("{marker}", "a"); fputc(120, f); long tries = ftell(f); fclose(f);'
    submission = native(tmp_path / "killed", on_odd(f"{once} if (tries < 3) raise(SIGKILL); HONEST;"))
    prepared = check.prepare(submission, [ODD])
    records = [measured.record for measured in check.attempts(prepared, ODD)]
    lost = (Status.INFRA_ERROR, Reason.WORKER_LOST)
    assert [(record.status, record.reason) for record in records] == [lost, lost, (Status.VERIFIED, None)]
    assert [record.attempt for record in records] == list(range(MAX_ATTEMPTS))
    assert len({record.segment for record in records}) == 3
    assert check._deaths.get(submission.tree_sha256, 0) == 0


def test_megabytes_of_output_change_nothing(check: Evaluator, tmp_path: Path) -> None:
    act = 'HONEST; for (int i = 0; i < 2000; i++) puts("\\x1b[31m all the news all the news"); fflush(stdout);'
    assert both(check, native(tmp_path / "chatty", on_odd(act))).status is Status.VERIFIED
    crash = f"{act} *(volatile int *)16 = 1;"
    record = both(check, native(tmp_path / "crashing", on_odd(crash)))
    assert record.reason is Reason.CRASH
    assert "all the news" in record.detail
    assert len(record.detail) < 2000


CALLS = sum(draw.sets * (3 if draw.kind is InputKind.NORMAL else 1) for draw in plan_draws(ODD))
"""Calls of a kernel until verification is over, and timing begins."""


def later(act: str) -> str:
    return on_odd(f"static int calls; if (calls++ < {CALLS}) {{ HONEST; }} else {{ {act} }}")


LATE: dict[str, tuple[str, set[Reason]]] = {
    "hangs": ("for (;;) usleep(1000);", {Reason.DEADLINE}),
    "does nothing": ("(void)0;", {Reason.UNWRITTEN}),
    "is wrong": ("memset(c, 0, 2 * m * n);", {Reason.WRONG_RESULT}),
    "writes past C": ("HONEST; c[m * n] = 1;", {Reason.OUT_OF_BOUNDS}),
    "changes A": ("HONEST; ((_Float16 *)a)[0] += 1;", {Reason.INPUT_MODIFIED}),
}


@pytest.mark.parametrize("case", list(LATE))
def test_what_it_does_only_while_it_is_timed_is_seen(timed: Evaluator, tmp_path: Path, case: str) -> None:
    act, reasons = LATE[case]
    record = both(timed, native(tmp_path / "late", later(act)), hangs=Reason.DEADLINE in reasons)
    assert record.status is Status.REJECTED
    assert record.reason in reasons


def test_a_kernel_that_is_slower_than_it_was_pays_for_it(timed: Evaluator, tmp_path: Path) -> None:
    record = both(timed, native(tmp_path / "sleepy", later("HONEST; usleep(300);")))
    assert record.status is Status.VERIFIED
    (timing,) = record.timings
    assert timing.contenders["submission"].launch_ns > 300_000
    assert timing.speedups[ANCHOR].high < 1


BACKGROUND = """
static struct { const _Float16 *a, *b; _Float16 *c; int64_t m, n, k; } jobs[4096];
static volatile int count;
static void *work(void *unused) {
    (void)unused;
    for (;;) {
        usleep(3000);
        for (; count > 0; count--) {
            int i = count - 1;
            honest(jobs[i].a, jobs[i].b, jobs[i].c, 0, jobs[i].m, jobs[i].n, jobs[i].k);
        }
    }
}
static void defer(ARGUMENTS) {
    static int started;
    pthread_t thread;
    (void)workspace;
    if (!started++) pthread_create(&thread, 0, work, 0);
    jobs[count].a = a, jobs[count].b = b, jobs[count].c = c, jobs[count].m = m, jobs[count].n = n, jobs[count].k = k;
    count++;
}
"""


def test_work_that_is_done_after_the_window_does_not_count(timed: Evaluator, tmp_path: Path) -> None:
    submission = native(tmp_path / "deferred", later("defer(a, b, c, workspace, m, n, k);"), BACKGROUND)
    assert both(timed, submission).reason is Reason.UNWRITTEN
    timed._replace_worker()  # Its thread lives on in this one.


@pytest.mark.parametrize("scale", ["// 8", "* 3 // 2"])
def test_a_worker_whose_clock_was_changed_is_found_out(timed: Evaluator, tmp_path: Path, scale: str) -> None:
    tamper = f"import time; real = time.perf_counter_ns; time.perf_counter_ns = lambda: real() {scale}"
    body = on_odd(f"static int calls; if (!calls++) python({json.dumps(tamper)}); HONEST;")
    timed.protocol = TIMED.model_copy(update={"window_ns": 4_000_000, "deadline_s": 120.0})
    (record,) = timed.evaluate(native(tmp_path / "clock", body), [ODD])
    assert (record.status, record.reason) == (Status.REJECTED, Reason.CLOCK_MISMATCH)
    assert "parent's clock" in record.detail
    timed._replace_worker()


def forged(message: str) -> str:
    """Python that sends an answer of its own making to the parent."""
    return (
        f"import os, struct, sys; data = {message!r}.encode(); os.write(int(sys.argv[1]), struct.pack('>I', len(data)) + data)"
    )


@pytest.mark.parametrize(
    ("message", "status", "reason"),
    [
        ('{"type":"failure","reason":"gave_up","detail":"","fatal":false}', Status.REJECTED, Reason.CRASH),
        ('{"type":"failure","reason":"launch_error","detail":"so there","fatal":true}', Status.REJECTED, Reason.LAUNCH_ERROR),
        ('{"window_ns":1}', Status.REJECTED, Reason.CRASH),
        ('{"status":"verified"}', Status.REJECTED, Reason.CRASH),
    ],
)
def test_a_forged_answer_wins_nothing(check: Evaluator, tmp_path: Path, message: str, status: Status, reason: Reason) -> None:
    body = on_odd(f"python({json.dumps(forged(message))}); usleep(200000); HONEST;")
    record = both(check, native(tmp_path / "forging", body))
    assert (record.status, record.reason) == (status, reason)


def test_a_forged_done_shows_outputs_that_are_not_there(check: Evaluator, tmp_path: Path) -> None:
    body = on_odd(f"static int calls; if (!calls++) {{ python({json.dumps(forged('{}'))}); usleep(500000); }} HONEST;")
    (record,) = check.evaluate(native(tmp_path / "early", body), [ODD])
    assert (record.status, record.reason) == (Status.REJECTED, Reason.UNWRITTEN)
    check._replace_worker()


def test_a_shape_that_needs_more_memory_than_there_is_is_the_machines_fault(check: Evaluator, tmp_path: Path) -> None:
    huge = Problem(m=16384, n=16384, k=16384)
    submission = native(tmp_path / "huge", "HONEST;", problems=(huge, EVEN), workspace_bytes=4 << 30)
    too_large, even = check.evaluate(submission, [huge, EVEN])
    assert (too_large.status, too_large.reason) == (Status.INFRA_ERROR, Reason.OUT_OF_MEMORY)
    assert "MiB of buffers" in too_large.detail
    assert even.status is Status.INFRA_ERROR  # The workspace alone is as large as the device's memory.


def test_a_worker_does_not_see_the_parents_secrets(check: Evaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "secret")
    check._replace_worker()
    record = both(check, native(tmp_path / "spy", on_odd('HONEST; if (getenv("API_TOKEN")) c[0] = 9;')))
    assert record.status is Status.VERIFIED
    assert os.environ["API_TOKEN"] == "secret"
