"""The parent's clock over a worker that is not trusted: which windows are asked for again, and which end it at once."""

from __future__ import annotations

from typing import Any

import pytest

from harness.devices import SubmissionFault, WindowTime
from harness.devices.untrusted import CLOCK_AHEAD_NS, Reported, UntrustedDevice
from harness.messages import Done, TimeWindow
from harness.record import SUBMISSION, L2State, Reason


class Claiming(UntrustedDevice):
    """A worker that claims what it likes, and is disbelieved as often as a test wants."""

    clock_tries = 4

    def __init__(self, claim_ns: int, disbelieved: int) -> None:
        self._claim_ns, self._disbelieved = claim_ns, disbelieved
        self.windows = 0

    def _call(self, request: Any, reply: Any) -> Any:
        if not isinstance(request, TimeWindow):
            return Done()
        self.windows += 1
        return WindowTime(window_ns=self._claim_ns)

    def _agrees(self, window: Reported) -> bool:
        return self.windows > self._disbelieved

    def timed(self) -> WindowTime:
        return self.window(SUBMISSION, (0,), L2State.COLD, 0)


def test_a_window_longer_than_the_parents_time_is_not_asked_for_again() -> None:
    device = Claiming(10**12 + CLOCK_AHEAD_NS, disbelieved=1)
    with pytest.raises(SubmissionFault, match="by the parent's clock") as error:
        device.timed()
    assert error.value.reason is Reason.CLOCK_MISMATCH
    assert device.windows == 1


@pytest.mark.parametrize(("disbelieved", "windows"), [(0, 1), (3, 4)])
def test_a_shorter_one_is_since_either_side_can_lose_the_processor(disbelieved: int, windows: int) -> None:
    device = Claiming(1, disbelieved)
    assert device.timed().window_ns == 1
    assert device.windows == windows


def test_but_not_for_ever() -> None:
    device = Claiming(1, disbelieved=4)
    with pytest.raises(SubmissionFault):
        device.timed()
    assert device.windows == 4
