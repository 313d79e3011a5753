"""The channel to a worker that may be hostile: whatever it sends, prints or does, the parent gets an answer or an error."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from fake_device import plan
from hypothesis import given
from hypothesis import strategies as st

from harness import channel, messages
from harness.channel import MAX_DETAIL, MAX_MESSAGE_BYTES, Endpoint, WorkerDied, WorkerFailed, WorkerProcess, WorkerTimeout
from harness.devices import WindowTime
from harness.messages import BindSubmission, Done, Failure, Inspection, Open, Prepared, RoundResult, Selected, TimeWindow
from harness.model import Model
from harness.record import REASONS, Reason, Status
from harness.run import DeviceInfo

REQUEST = TimeWindow()
PROGRAM = """#!{python} -S
import os, signal, socket, struct, sys, time
connection = socket.socket(fileno=int(sys.argv[5]))

def receive():
    size, = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))
    return connection.recv(size, socket.MSG_WAITALL)

def send(data):
    connection.sendall(struct.pack(">I", len(data)) + data)

"""

Start = Callable[[str], WorkerProcess]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a worker that runs a program of the test instead of `harness.worker`."""
    started: list[WorkerProcess] = []
    monkeypatch.setattr(channel, "ENDING_S", 0.3)

    def worker(body: str) -> WorkerProcess:
        script = tmp_path / f"worker{len(started)}"
        script.write_text(PROGRAM.format(python=sys.executable) + body)
        script.chmod(0o755)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(script))
            started.append(WorkerProcess(()))
        return started[-1]

    yield worker
    for each in started:
        each.kill()


def test_requests_and_answers_take_turns(start: Start) -> None:
    worker = start("while True: send(b'{\"window_ns\":%d}' % len(receive()))")
    for _ in range(3):
        assert worker.call(REQUEST, WindowTime, 20) == WindowTime(window_ns=len(REQUEST.model_dump_json()))
    assert worker.alive
    worker.close()
    assert not worker.alive


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"window_ns":0}',
        b'{"window_ns":-1}',
        b'{"window_ns":1.5}',
        b'{"window_ns":NaN}',
        b'{"window_ns":1e999}',
        b'{"window_ns":true}',
        b'{"window_ns":"1"}',
        b'{"window_ns":1,"also":1}',
        b'{"window_ns":1}{"window_ns":1}',
        b'{"window_ns":' + b"9" * 10_000 + b"}",
        b"[" * 200_000,
        b'{"type":"failure"}',
        b'{"type":"failure","reason":"gave_up","detail":"","fatal":false}',
        b'{"type":"failure","reason":"declared","detail":"","fatal":false}',
        b'{"type":"failure","reason":"because","detail":"","fatal":false}',
        b'{"type":"failure","reason":"crash","detail":"\\ud800","fatal":false}',
        b'{"reason":"crash","type":"failure","detail":"","fatal":false}',
    ],
)
def test_what_is_no_answer_ends_the_worker(start: Start, answer: bytes) -> None:
    worker = start(f"receive(); send({answer!r}); time.sleep(600)")
    with pytest.raises(WorkerDied) as error:
        worker.call(REQUEST, WindowTime, 20)
    assert error.value.returncode is None
    assert "sent what is no answer" in str(error.value)
    assert len(str(error.value)) < 2000
    assert str(error.value).isprintable()
    assert not worker.alive


def test_an_announced_length_beyond_the_limit_is_not_waited_for(start: Start) -> None:
    worker = start(f"receive(); connection.sendall(struct.pack('>I', {MAX_MESSAGE_BYTES + 1})); time.sleep(600)")
    with pytest.raises(WorkerDied, match=f"a message of {MAX_MESSAGE_BYTES + 1} bytes") as error:
        worker.call(REQUEST, WindowTime, 20)
    assert error.value.returncode is None


@pytest.mark.parametrize(
    ("ending", "returncode", "says"),
    [
        ("sys.exit(0)", 0, "exit status 0"),
        ("os._exit(7)", 7, "exit status 7"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, "signal SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "signal SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 1)", -(signal.SIGRTMIN + 1), "signal 35"),
        ("connection.sendall(b'\\0\\0'); os._exit(3)", 3, "exit status 3"),
        ("connection.sendall(b'\\0\\0\\0\\x09{}'); os._exit(3)", 3, "exit status 3"),
        ("print('last words'); 1 / 0", 1, "ZeroDivisionError"),
    ],
)
def test_a_worker_that_ends_says_how(start: Start, ending: str, returncode: int, says: str) -> None:
    worker = start(f"receive(); {ending}")
    with pytest.raises(WorkerDied) as error:
        worker.call(REQUEST, WindowTime, 20)
    assert error.value.returncode == returncode
    assert says in str(error.value)


def test_a_worker_that_hangs_up_and_stays_is_ended_for_it(start: Start) -> None:
    worker = start("receive(); connection.close(); time.sleep(600)")
    with pytest.raises(WorkerDied, match="closed its connection and was killed") as error:
        worker.call(REQUEST, WindowTime, 20)
    assert error.value.returncode is None
    assert not worker.alive


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(600)",
        "connection.sendall(b'\\0\\0\\0\\x20{'); time.sleep(600)",
        "connection.sendall(struct.pack('>I', 1 << 20))\nwhile True: connection.sendall(b' '); time.sleep(0.002)",
    ],
    ids=["silent", "half a message", "a byte now and then"],
)
def test_a_worker_without_a_whole_answer_by_the_deadline_is_killed(start: Start, body: str) -> None:
    worker = start(f"receive()\n{body}")
    with pytest.raises(WorkerTimeout):
        worker.call(REQUEST, WindowTime, 1)
    assert not worker.alive


def test_a_worker_that_does_not_read_its_request_is_killed(start: Start) -> None:
    worker = start("time.sleep(600)")
    large = BindSubmission(plan=plan(), artifacts={"k": "x" * (16 << 20)})
    with pytest.raises(WorkerTimeout):
        worker.call(large, Done, 1)
    assert not worker.alive


def test_a_stopped_worker_is_killed(start: Start) -> None:
    worker = start("receive(); os.kill(os.getpid(), signal.SIGSTOP)")
    with pytest.raises(WorkerTimeout):
        worker.call(REQUEST, WindowTime, 1)
    assert not worker.alive


def test_a_failure_keeps_the_worker_and_its_detail_is_safe_to_print(start: Start) -> None:
    detail = json.dumps("\x1b[2J\r\n" + "x" * 1_000_000)
    failure = f'{{"type":"failure","reason":"launch_error","detail":{detail},"fatal":false}}'.encode()
    worker = start(f"receive(); send({failure!r}); receive(); send(b'{{}}'); time.sleep(600)")
    with pytest.raises(WorkerFailed) as error:
        worker.call(REQUEST, Done, 20)
    assert error.value.failure.reason is Reason.LAUNCH_ERROR
    assert str(error.value).isprintable()
    assert len(str(error.value)) == MAX_DETAIL
    assert worker.call(REQUEST, Done, 20) == Done()


def test_a_worker_can_only_fail_for_reasons_that_a_record_can_have() -> None:
    faults = REASONS[Status.INFRA_ERROR] | REASONS[Status.REJECTED]
    for reason in Reason:
        if reason in faults:
            assert Failure(reason=reason, detail="", fatal=False).reason is reason
        else:
            with pytest.raises(ValueError, match="no fault"):
                Failure(reason=reason, detail="", fatal=False)


@pytest.mark.parametrize("line", ["'x' * 999 + chr(10)", "'x' * 1000", "chr(27) + '[2J' + chr(10)", "b'\\xff' * 999"])
def test_megabytes_of_chatter_neither_block_nor_stay(start: Start, line: str) -> None:
    write = "sys.stdout.buffer.write(data if isinstance(data, bytes) else data.encode())"
    worker = start(f"receive(); data = {line}\nfor i in range(20_000): {write}\nsys.stdout.flush(); send(b'{{}}'); os._exit(4)")
    assert worker.call(REQUEST, Done, 60) == Done()
    with pytest.raises(WorkerDied) as error:
        worker.call(REQUEST, Done, 20)
    assert error.value.returncode == 4
    assert len(worker.chatter()) <= 1000
    assert str(error.value).isprintable()


def test_an_interrupted_call_ends_the_worker_so_that_no_late_answer_is_taken_for_another(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start("while True: receive(); send(b'{}')")

    def interrupted(self: Endpoint, deadline: float | None = None) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Endpoint, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.call(REQUEST, Done, 20)
    assert not worker.alive
    with pytest.raises(WorkerDied):
        worker.call(REQUEST, Done, 20)


def test_what_a_worker_started_ends_with_it(start: Start) -> None:
    worker = start(
        "import subprocess; receive(); child = subprocess.Popen(['sleep', '600'])\n"
        "send(b'{\"window_ns\":%d}' % child.pid); time.sleep(600)"
    )
    child = worker.call(REQUEST, WindowTime, 20).window_ns
    assert Path(f"/proc/{child}").exists()
    worker.kill()
    deadline = time.monotonic() + 20
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_process_that_escaped_with_the_output_does_not_block(start: Start) -> None:
    worker = start("import subprocess; receive(); subprocess.Popen(['sleep', '5'], start_new_session=True); send(b'{}')")
    assert worker.call(REQUEST, Done, 20) == Done()
    worker.close()
    assert not worker.alive


def test_the_environment_is_an_allow_list(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "secret")
    monkeypatch.setenv("HGEMM_CACHE", "here")
    worker = start("import json; receive(); send(json.dumps({'device': ' '.join(os.environ)}).encode()); time.sleep(600)")
    seen = set(worker.call(REQUEST, Open, 20).device.split()) - {"LC_CTYPE"}
    assert "HGEMM_CACHE" in seen
    assert seen <= set(channel.PASSED_ON)


REPLIES: list[type[Model]] = [Done, WindowTime, DeviceInfo, Prepared, Inspection, Selected, RoundResult]
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9) | st.sampled_from(["type", "window_ns"]), inner)
    ),
    max_leaves=8,
)


@given(st.sampled_from(REPLIES), st.binary(max_size=60) | documents.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_an_answer_a_failure_or_a_value_error(reply: type[Model], data: bytes) -> None:
    for sent in (data, b'{"type":"failure"' + data):
        try:
            answer = channel._parse(sent, reply)
        except (ValueError, WorkerFailed):
            continue
        assert type(answer) is reply


@given(st.binary(max_size=40))
def test_any_stream_of_bytes_is_a_message_or_an_error(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            message = Endpoint(ours).receive(time.monotonic() + 20)
        except (EOFError, ValueError):
            size = struct.unpack(">I", data[:4])[0] if len(data) >= 4 else 0
            assert len(data) < 4 + size or len(data) < 4
        else:
            assert struct.pack(">I", len(message)) + message == data[: 4 + len(message)]


def test_messages_survive_both_ways() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        message = Open(device="cpu")
        for here, there in ((ours, theirs), (theirs, ours)):
            Endpoint(here).send(message)
            assert Open.model_validate_json(Endpoint(there).receive()) == message
        ours.close()
        with pytest.raises(EOFError):
            Endpoint(theirs).receive()
        with pytest.raises(OSError, match=os.strerror(32)):
            Endpoint(theirs).send(message)


def test_a_worker_understands_every_kind_of_request() -> None:
    answers = (Failure,)
    kinds = [each for each in vars(messages).values() if isinstance(each, type) and "type" in getattr(each, "model_fields", {})]
    requests = get_args(get_args(messages.Request)[0])
    assert {kind.__name__ for kind in kinds} == {kind.__name__ for kind in (*requests, *answers)}
