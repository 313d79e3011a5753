"""Refresher: keeps requests of server mode honest, with fresh inputs right before each and outputs copied aside right after."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harness.devices import Sets, poison, signed
from harness.record import SUBMISSION
from harness.verify.inputs import InputKind, fill

if TYPE_CHECKING:
    import torch

    from harness.timing.server import Arrival, Served


class Refresher:
    """Inputs and outputs of the submission's requests, the n-th of which works on set n.

    Nothing of a request can be computed before it arrives, since its inputs do not exist, and nothing can be made good
    later, since its outputs are taken away. A baseline's request works on the set that the submission's next one will get,
    with inputs of its own; the same is done before and after it, so that both find the device in the same state.

    Args:
        sets: one set per request of the submission, and a last one for baselines that follow them all.
        seed: seed of inputs and poison.
        one_by_one: draw inputs right before each request, and take its outputs away right after. Otherwise all inputs are
            there from the start and all outputs stay: for saturation, where nothing may come between two requests.
    """

    def __init__(self, sets: Sets, seed: int, one_by_one: bool = True) -> None:
        rng = random.Random(seed)
        self._sets = sets
        # Views of every set, made beforehand: between two requests there is no time for it.
        self._each = [Sets(sets.a[i : i + 1], sets.b[i : i + 1], sets.c[i]) for i in range(sets.c.shape[0])]
        self._words = [each.c.view(_int16()) for each in self._each]
        self._outputs = sets.c.new_empty(sets.c.shape) if one_by_one else sets.c
        self._rows = list(self._outputs)
        self.poison_bits = poison(rng.getrandbits(16))
        self._seeds = [rng.getrandbits(62) for _ in range(sets.c.shape[0])]
        self._others = rng
        self._last: int | None = None
        self._answered = 0
        if not one_by_one:
            self._answered = len(self._seeds)
            self.draw_again()
            for index in range(self._answered):
                self._poison(index)

    @property
    def answered(self) -> Sets:
        """Inputs and outputs of the submission's requests so far."""
        return Sets(self._sets.a[: self._answered], self._sets.b[: self._answered], self._outputs[: self._answered])

    def between(self, following: Arrival | None) -> None:
        """After a request: copy its outputs aside, and draw inputs for the next one.

        Waits for nothing.
        """
        if self._last is not None:
            self._rows[self._last].copy_(self._each[self._last].c)
        self._last = None
        if following is not None:
            mine = following.contender == SUBMISSION
            self._last = following.set_index
            self._draw(self._last, self._seeds[self._last] if mine else self._others.getrandbits(62))
            self._poison(self._last)
            self._answered += mine

    def draw_again(self) -> None:
        """Draw the inputs of the submission's requests once more: they are then what they were, whoever wrote to them."""
        for index in range(self._answered):
            self._draw(index, self._seeds[index])

    def _draw(self, index: int, seed: int) -> None:
        fill(InputKind.NORMAL, self._each[index].a, self._each[index].b, seed)

    def _poison(self, index: int) -> None:
        self._words[index].fill_(signed(self.poison_bits))


def _int16() -> torch.dtype:
    import torch

    return torch.int16


def by_contender(served: Sequence[Served], value: Callable[[Served], int | None]) -> dict[str, tuple[int, ...]]:
    """A figure of every request, by contender, in order; None leaves a request out."""
    figures: dict[str, list[int]] = {}
    for one in served:
        mine = figures.setdefault(one.arrival.contender, [])
        number = value(one)
        if number is not None:
            mine.append(number)
    return {name: tuple(numbers) for name, numbers in figures.items()}
