"""Marks: a NaN in one element of A or of B before each operation of a window, which must show in a row or column of C.

The inputs of all operations of a window lie in memory when it begins, and where is no secret: a plan can work it out, a
library is told. So an operation could do the work of others, and all outputs would be right. Therefore a window is captured
a second time, with marks, and run once after the first timed one. Every product with a NaN is one, so each output that depends
on a marked element is NaN, whatever the order of the sum; only an operation that reads the element after the mark was set can
give them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple, Self

from harness.devices import SubmissionFault, poison
from harness.problem import HALF_BYTES
from harness.record import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from harness.devices import Sets


class Marks(NamedTuple):
    """One mark for each operation of a window; `slots`, `rows` and `columns` are index tensors of their places."""

    in_a: bool
    """In A, else in B."""
    slots: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    offsets_bytes: tuple[int, ...]
    """Where they lie in the arena."""
    bits: int
    """What is written, a NaN."""

    @classmethod
    def draw(cls, sets: Sets, slots: tuple[int, ...]) -> Self:
        """Places that nobody can foresee, in A of all or in B of all.

        Args:
            sets: all sets of the arena, as the operation reads them.
            slots: slots of a window's operations, in order.
        """
        import torch

        chance = random.SystemRandom()
        in_a = chance.random() < 0.5
        view = sets.a if in_a else sets.b
        places = [(slot, chance.randrange(view.shape[1]), chance.randrange(view.shape[2])) for slot in slots]
        strides, start = [int(stride) for stride in view.stride()], int(view.storage_offset())
        halves = [start + sum(at * stride for at, stride in zip(place, strides, strict=True)) for place in places]
        offsets = tuple(half * HALF_BYTES for half in halves)
        index = torch.tensor(places, dtype=torch.int64, device=view.device)
        return cls(in_a, index[:, 0], index[:, 1], index[:, 2], offsets, poison(chance.getrandbits(16)))

    def examine(self, sets: Sets, run: Callable[[], object]) -> None:
        """Run the window with marks on what the timed one left, look for them, and put everything back.

        Raises:
            SubmissionFault: they do not show.
        """
        used = sorted(set(self.slots.tolist()))
        inputs, outputs = self.inputs(sets), sets.c[used]
        run()
        shown = self.show(sets)
        self.restore(sets, inputs)
        sets.c[used] = outputs
        if not shown:
            detail = "an operation does not work on its inputs as they are when it begins: its outputs are made elsewhere"
            raise SubmissionFault(Reason.FORBIDDEN, detail)

    def inputs(self, sets: Sets) -> torch.Tensor:
        """The elements that the marks replace, fp16 [operations]."""
        return (sets.a if self.in_a else sets.b)[self.slots, self.rows, self.columns]

    def restore(self, sets: Sets, elements: torch.Tensor) -> None:
        """Put the elements back."""
        (sets.a if self.in_a else sets.b)[self.slots, self.rows, self.columns] = elements

    def show(self, sets: Sets) -> bool:
        """Whether every output that depends on a mark is NaN."""
        outputs = sets.c[self.slots, self.rows] if self.in_a else sets.c[self.slots, :, self.columns]
        return bool(outputs.isnan().all().item())
