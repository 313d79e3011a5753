"""Refresher: keeps requests of server mode honest, with fresh inputs right before each and outputs copied aside right after."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harness.devices import Sets, poison, signed
from harness.record import SUBMISSION
from harness.verify.inputs import InputKind, fill

if TYPE_CHECKING:
    from harness.timing.server import Arrival, Served


class Refresher:
    """Inputs and outputs of the submission's requests, the n-th of which works on set n.

    Nothing of a request can be computed before it arrives, since its inputs do not exist, and nothing can be made good
    later, since its outputs are taken away.

    Args:
        sets: one set per request.
        seed: seed of inputs and poison.
        one_by_one: draw inputs right before each request, and take its outputs away right after. Otherwise all inputs are
            there from the start and all outputs stay: for saturation, where nothing may come between two requests.
    """

    def __init__(self, sets: Sets, seed: int, one_by_one: bool = True) -> None:
        rng = random.Random(seed)
        self.sets = sets
        self.outputs = sets.c.new_empty(sets.c.shape) if one_by_one else sets.c
        self.poison_bits = poison(rng.getrandbits(16))
        self._seeds = [rng.getrandbits(62) for _ in range(sets.c.shape[0])]
        self._drawn = self._answered = 0
        if not one_by_one:
            for count in range(len(self._seeds)):
                self._draw(count)
                self._poison(count)
            self._drawn = self._answered = len(self._seeds)

    def between(self, following: Arrival | None) -> None:
        """After a request: copy its outputs aside if it was the submission's, and draw inputs if the next one is.

        Waits for nothing.
        """
        if self._drawn > self._answered:
            self.outputs[self._answered].copy_(self.sets.c[self._answered])
            self._answered += 1
        if following is not None and following.contender == SUBMISSION:
            self._draw(self._drawn)
            self._poison(self._drawn)
            self._drawn += 1

    def draw_again(self) -> None:
        """Draw the inputs of every request once more: they are then what they were, whoever wrote to them since."""
        for count in range(self._answered):
            self._draw(count)

    def _draw(self, count: int) -> None:
        one = slice(count, count + 1)
        fill(InputKind.NORMAL, self.sets.a[one], self.sets.b[one], self._seeds[count])

    def _poison(self, count: int) -> None:
        import torch

        self.sets.c[count].view(torch.int16).fill_(signed(self.poison_bits))


def by_contender(served: Sequence[Served], value: Callable[[Served], int | None]) -> dict[str, tuple[int, ...]]:
    """A figure of every request, by contender, in order; None leaves a request out."""
    figures: dict[str, list[int]] = {}
    for one in served:
        mine = figures.setdefault(one.arrival.contender, [])
        number = value(one)
        if number is not None:
            mine.append(number)
    return {name: tuple(numbers) for name, numbers in figures.items()}
