"""One configuration of each mechanism of the kernel families, for tests on a GPU and under emulation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.plan import Layout

STRIPS = {"family": "output", "bm": 128, "warpgroups": 2, "buffers": 2, "cache": "stream_c", "group": 1}
TURNS = {"family": "ws_persistent", "bm": 128, "bn": 128, "warpgroups": 2, "ping_pong": True}

BASIC: Mapping[str, tuple[dict[str, Any], str]] = {
    "latency": ({"family": "latency", "bm": 64, "bn": 64, "stages": 4, "store": "direct"}, "256x256x512"),
    "latency-tma": ({"family": "latency", "bm": 64, "bn": 64, "stages": 4}, "256x256x512"),
    "persistent": (
        {"family": "ws_persistent", "bm": 128, "bn": 128, "stages": 4, "warpgroups": 2, "buffers": 2},
        "2048x2048x512",
    ),
    "wide": (
        {"family": "ws_persistent", "bm": 128, "bn": 256, "stages": 4, "warpgroups": 2, "buffers": 2},
        "2048x2048x512",
    ),
    "three-warpgroups": (
        {"family": "ws_persistent", "bm": 192, "bn": 160, "stages": 4, "warpgroups": 3, "buffers": 2},
        "2048x2048x512",
    ),
    "ping-pong": (
        {"family": "ws_persistent", "bm": 128, "bn": 128, "stages": 4, "warpgroups": 2, "ping_pong": True, "buffers": 2},
        "2048x2048x512",
    ),
    "rows": ({"family": "skinny", "bm": 128, "bn": 128, "stages": 4, "warpgroups": 2, "store": "rows"}, "2048x128x512"),
    "rows-latency": ({"family": "latency", "bm": 64, "bn": 48, "stages": 4, "store": "rows"}, "256x256x512"),
    "wide-store": (
        {"family": "ws_persistent", "bm": 128, "bn": 160, "stages": 4, "warpgroups": 2, "store": "wide"},
        "2048x2048x512",
    ),
    "wide-store-ping-pong": ({**TURNS, "bn": 192, "stages": 4, "cluster_p": 2, "store": "wide"}, "2048x2048x512"),
    "wide-store-latency": ({"family": "latency", "bm": 64, "bn": 32, "stages": 4, "store": "wide"}, "256x256x512"),
    "overlapping-panels": (
        {"family": "ws_persistent", "bm": 128, "bn": 176, "stages": 4, "warpgroups": 2, "buffers": 2},
        "2048x2048x512",
    ),
    "overlapping-panels-ping-pong": (
        {**TURNS, "bn": 144, "stages": 4, "buffers": 2, "cluster_p": 2},
        "2048x2048x512",
    ),
    "cluster-p": (
        {"family": "ws_persistent", "bm": 128, "bn": 256, "stages": 4, "warpgroups": 2, "cluster_p": 2, "buffers": 2},
        "2048x2048x512",
    ),
    "cluster-q": (
        {"family": "ws_persistent", "bm": 128, "bn": 256, "stages": 4, "warpgroups": 2, "cluster_q": 2, "buffers": 2},
        "2048x2048x512",
    ),
    "clusters-of-four": (
        {
            "family": "ws_persistent",
            "bm": 128,
            "bn": 256,
            "stages": 4,
            "warpgroups": 2,
            "cluster_p": 2,
            "cluster_q": 2,
            "buffers": 2,
        },
        "2048x2048x512",
    ),
    "stream": (
        {"family": "ws_persistent", "bm": 128, "bn": 256, "stages": 4, "warpgroups": 2, "buffers": 2, "split": "stream"},
        "2048x4608x512",
    ),
    "stream-ping-pong": (
        {**TURNS, "stages": 4, "buffers": 2, "split": "stream"},
        "2048x2304x1024",
    ),
    "stream-cluster": (
        {
            "family": "ws_persistent",
            "bm": 128,
            "bn": 128,
            "stages": 4,
            "warpgroups": 2,
            "cluster_q": 2,
            "buffers": 2,
            "split": "stream",
        },
        "1024x1024x2048",
    ),
    "halves": (
        {"family": "ws_persistent", "bm": 256, "bn": 256, "stages": 3, "warpgroups": 2, "buffers": 2, "accumulator": "f16"},
        "2048x2048x512",
    ),
    "halves-ping-pong": (
        {**TURNS, "stages": 4, "buffers": 2, "accumulator": "f16"},
        "2048x2048x512",
    ),
    "output": (
        {**STRIPS, "bn": 256, "stages": 4, "held": 1},
        "4096x4096x64",
    ),
    "output-ping-pong": ({**STRIPS, "bn": 96, "stages": 5, "held": 4, "ping_pong": True, "cache": "ahead"}, "4096x4096x200"),
    "output-one-strip": ({**STRIPS, "bn": 176, "stages": 3, "held": 4, "cache": "ahead"}, "4096x4096x256"),
    "output-one-strip-ping-pong": ({**STRIPS, "bm": 64, "bn": 256, "stages": 4, "held": 4, "ping_pong": True}, "4096x4096x200"),
    "skinny": ({"family": "skinny", "bm": 64, "bn": 64, "stages": 8}, "64x4096x4096"),
    "split-cluster": (
        {"family": "splitk", "bm": 64, "bn": 64, "stages": 8, "split": "cluster", "splits": 8, "store": "direct"},
        "64x64x16384",
    ),
    "split-workspace": (
        {"family": "splitk", "bm": 64, "bn": 64, "stages": 8, "split": "workspace", "splits": 16, "store": "direct"},
        "128x64x16384",
    ),
    "split-kernel": (
        {"family": "splitk", "bm": 64, "bn": 64, "stages": 8, "split": "kernel", "splits": 16, "store": "direct"},
        "128x64x16384",
    ),
    "split-atomic": (
        {"family": "splitk", "bm": 64, "bn": 64, "stages": 8, "split": "atomic", "splits": 64, "store": "direct"},
        "128x64x16384",
    ),
    "registers": ({"family": "registers", "bm": 32, "bn": 16, "bk": 64, "stages": 1, "store": "direct"}, "256x256x256"),
    "unaligned": ({"family": "unaligned", "bm": 64, "bn": 64, "bk": 32, "stages": 1, "store": "direct"}, "129x257x333"),
}
"""One configuration of each mechanism and a shape that it fits, without the layout and the orientation."""


def sides_of(fields: Mapping[str, Any]) -> Iterator[tuple[Layout, bool]]:
    """Layouts of B, plain and swapped, that a mechanism has."""
    if fields["family"] == "registers" or fields.get("store") == "wide":
        yield Layout.TN, False
        return
    for layout in Layout:
        yield from ((layout, swapped) for swapped in (False, True) if not swapped or fields["family"] != "unaligned")


EVERY_SIDE = tuple((name, *sides) for name, (fields, _) in BASIC.items() for sides in sides_of(fields))
"""Each mechanism with each of its layouts, plain and swapped."""


def side_id(value: object) -> str:
    """How a test that has these as parameters is called."""
    return {True: "swapped", False: "plain"}[value] if isinstance(value, bool) else str(value)
