"""The worker: the process that owns one device. Started by `harness.channel`, never by hand.

It answers requests over its socket until that closes. For kind `device` it is trusted, since no code of a submission runs
on its host side, and serves a whole Bench; for kind `native` it is not, and only runs and times what it is told.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from harness.channel import Endpoint
from harness.devices import MachineFault, SubmissionFault
from harness.messages import Failure, Open, Request
from harness.model import HgemmError, Model
from harness.record import Reason

if TYPE_CHECKING:
    from harness.devices.cuda_host import NativeHost
    from harness.devices.host import Host


def main(arguments: list[str]) -> None:
    """Serve requests from the socket that is file descriptor `arguments[0]`."""
    connection = socket.socket(fileno=int(arguments[0]))
    # A parent that was killed must not leave a worker behind that hangs in a kernel and keeps the device busy.
    threading.Thread(target=_leave_with_parent, args=(connection.fileno(),), daemon=True).start()
    endpoint = Endpoint(connection)
    requests: TypeAdapter[Any] = TypeAdapter(Request)
    handlers: dict[str, Callable[[Any], Model]] = {}
    while True:
        try:
            request = requests.validate_json(endpoint.receive())
        except EOFError:
            return
        if not handlers:
            handlers = _handlers(request, arguments[1:])
        endpoint.send(_answer(handlers[request.type], request))


def _answer(handler: Callable[[Any], Model], request: Model) -> Model:
    try:
        return handler(request)
    except (SubmissionFault, MachineFault) as error:
        return Failure(reason=error.reason, detail=str(error), fatal=error.fatal)
    except HgemmError as error:
        return Failure(reason=Reason.DEVICE_ERROR, detail=str(error), fatal=False)
    except MemoryError:
        return Failure(reason=Reason.OUT_OF_MEMORY, detail="the host ran out of memory for this shape", fatal=True)


def _leave_with_parent(descriptor: int) -> None:
    hung_up = select.poll()
    hung_up.register(descriptor, 0)
    hung_up.poll()
    os._exit(0)


def _handlers(request: Open, arguments: list[str]) -> dict[str, Callable[[Any], Model]]:
    if request.device == "cpu":
        from harness.devices.host import Host

        return _untrusted(Host(int(arguments[0])))
    from harness.devices.cuda import CudaDevice

    cuda = CudaDevice(int(request.device.removeprefix("cuda:")))
    if request.native:
        from harness.devices.cuda_host import NativeHost

        host = NativeHost(cuda)
        return {
            **_untrusted(host),
            "map_memory": host.map_memory,
            "capture_window": host.capture_window,
            "run_marked": host.run_marked,
            "drop": host.drop,
        }
    from harness.bench import Bench
    from harness.devices.cuda_instrument import examine

    bench = Bench(cuda)
    return {
        "open": lambda _: cuda.info,
        "prepare": bench.prepare,
        "draw": bench.draw,
        "select": bench.select,
        "round": bench.round,
        "serve": bench.serve,
        "examine": lambda _: examine(cuda),
    }


def _untrusted(host: Host | NativeHost) -> dict[str, Callable[[Any], Model]]:
    """What every worker answers that only runs and times."""
    return {
        "open": host.open,
        "open_problem": host.open_problem,
        "bind_submission": host.bind_submission,
        "bind_stand_in": host.bind_stand_in,
        "bind_baselines": host.bind_baselines,
        "run_once": host.run_once,
        "arm_window": host.arm_window,
        "time_window": host.time_window,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
