"""Which card is `cuda:n`: the driver's tools and CUDA must mean the same one."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from harness.machine import choose_device, cuda_cards
from harness.model import InfraError

CARDS = (
    ("NVIDIA H200", "GPU-aa11"),
    ("NVIDIA A100-SXM4-80GB", "GPU-aa22"),
    ("NVIDIA H200", "GPU-bb33"),
    ("Other", "GPU-cc44"),
)


@pytest.fixture(autouse=True)
def nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's library as far as it is used, with four cards."""
    module = ModuleType("pynvml")
    functions = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: len(CARDS),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: CARDS[handle][0],
        "nvmlDeviceGetUUID": lambda handle: CARDS[handle][1],
    }
    for name, function in functions.items():
        setattr(module, name, function)
    module.__dict__["NVMLError"] = OSError
    monkeypatch.setitem(sys.modules, "pynvml", module)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, {"cuda:0": "GPU-aa11", "cuda:1": "GPU-aa22", "cuda:2": "GPU-bb33"}),
        ("2", {"cuda:0": "GPU-bb33"}),
        ("2,0", {"cuda:0": "GPU-bb33", "cuda:1": "GPU-aa11"}),
        ("3, 1", {"cuda:1": "GPU-aa22"}),
        ("GPU-b", {"cuda:0": "GPU-bb33"}),
        ("GPU-a", {}),
        ("0,9,1", {"cuda:0": "GPU-aa11"}),
        ("MIG-1", {}),
        ("", {}),
        ("-1", {}),
    ],
)
def test_cards_have_the_numbers_that_cuda_gives_them(
    visible: str | None, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert {card.name: card.uuid for card in cuda_cards()} == expected


def test_a_card_that_is_not_visible_cannot_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert (choose_device("auto").uuid, choose_device("cuda:0").uuid) == ("GPU-bb33", "GPU-bb33")
    with pytest.raises(InfraError, match="there are: cpu, cuda:0"):
        choose_device("cuda:2")
