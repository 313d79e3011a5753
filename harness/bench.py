"""Bench: one problem on one device, seen from the trusted side.

It draws inputs, has operations run and timed, compares outputs, and reports facts; the parent judges them.

It lives where no code of the submission runs: inside the worker for kind `device`, inside the parent for kind `native`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from harness.devices import (
    GUARD_BITS,
    UNSCORED_OPERATIONS,
    ArenaLayout,
    Device,
    MachineFault,
    OperationInfo,
    WindowTime,
    poison,
    signed,
)
from harness.messages import (
    Choice,
    Draw,
    Inspection,
    Integrity,
    Prepare,
    Prepared,
    Round,
    RoundResult,
    Select,
    Selected,
    Serve,
    ServeResult,
    StandIn,
)
from harness.problem import Track
from harness.record import SUBMISSION, L2State, Measure, Reason
from harness.refresher import Refresher, by_contender
from harness.timing.offline import FULL_EFFORT, LONG_EFFORT, select
from harness.timing.server import CLEAN_SHARE, clean_up_ns, serve, trace
from harness.verify.checks import Errors, compare
from harness.verify.inputs import InputKind, fill, plan_draws
from harness.verify.reference import project

if TYPE_CHECKING:
    import torch

    from harness.devices import Sets
    from harness.verify.reference import Projection

MAX_SLOTS = 514
"""Buffer sets at most, and operations of a window on warm data."""
MAX_SLOTS_CPU = 130
"""The same on the CPU, where filling and comparing them takes most of the time."""
LAUNCH_ESTIMATE_NS = 1_500
"""What a launch adds to the roof when the number of buffer sets is sized."""
SPAN_OF_L2 = 4
"""Buffer sets are spread over this many times the last-level cache."""
WARM_SHARE_OF_L2 = 0.5
"""A set fits the last-level cache when it takes at most this share: each half of a GPU's cache may hold its own copy."""
ARENA_SHARE_OF_MEMORY = 0.15
ARENA_SHARE_OF_MEMORY_ON_REQUEST = 0.6
"""The same where a number of buffer sets is asked for."""
SELECTION_SHARE = 5
"""A selection window lasts this fraction of a scoring window."""
LONG_SELECTION_NS = 200_000
"""From this speed-of-light time on, a selection makes do with fewer windows, and with no unscored operations."""
LONG_WINDOW_NS = 1_000_000
"""From this speed-of-light time on, one unscored operation is enough to bring a card into the state that it keeps."""
POWER_BOUND_NS = 100_000
"""From this speed-of-light time on, operations draw enough power for a card's limit to act."""


class Bench:
    """Serves Prepare, Draw, Select and Round requests, in that order, for one problem after another."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._chosen: dict[str, dict[str, Choice]] = {}
        self._orders: dict[int, tuple[int, ...]] = {}
        self._finalists: dict[str, tuple[OperationInfo, ...]] = {}
        self._verified: set[str] = set()

    def prepare(self, request: Prepare) -> Prepared:
        """Lay out the buffers and bind the submission.

        Raises:
            SubmissionFault: the plan cannot be bound.
        """
        problem, profile = request.problem, self.device.profile
        roof_ns = profile.roof_ns(problem) + LAUNCH_ESTIMATE_NS
        wanted = int(request.window_ns / roof_ns) + 1 + UNSCORED_OPERATIONS
        room = int(profile.memory_bytes * ARENA_SHARE_OF_MEMORY) // problem.bytes_total
        least = UNSCORED_OPERATIONS + 1
        draws = max(draw.sets for draw in plan_draws(problem))
        slots = max(least, draws, request.sets or min(wanted, room, self._most_slots))
        plan = request.plan
        workspace_bytes = 0 if isinstance(plan, StandIn) else plan.workspace_bytes
        self._zeroed_bytes = 0 if isinstance(plan, StandIn) else plan.zeroed_bytes
        self._window_ns = request.window_ns
        self._roof_ns = roof_ns
        self._layout = ArenaLayout.plan(problem, slots, SPAN_OF_L2 * profile.l2_bytes, workspace_bytes)
        if request.sets is not None and self._layout.total_bytes > ARENA_SHARE_OF_MEMORY_ON_REQUEST * profile.memory_bytes:
            detail = (
                f"{request.sets} buffer sets of {problem} take {self._layout.total_bytes >> 30} GiB; ask for fewer requests"
            )
            raise MachineFault(Reason.OUT_OF_MEMORY, detail, fatal=False)
        self._memory = self.device.memory(self._layout.total_bytes)
        self._chosen, self._orders, self._finalists = {}, {}, {}
        self._verified = set()
        self._clean_ns = 0.0
        for guard in self._layout.guards(self._memory, whole=not self.device.profile.is_cpu):
            guard.fill_(signed(GUARD_BITS))
        self._workspace[: self._zeroed_bytes].zero_()
        self.device.open_problem(self._layout)
        self._stand_in = plan if isinstance(plan, StandIn) else None
        if not isinstance(plan, StandIn):
            self._submission = self.device.bind_submission(plan, request.artifacts)
        return Prepared(warm_applies=self._warm_applies)

    def draw(self, request: Draw) -> Inspection:
        """Run the submission on fresh inputs of one kind.

        Raises:
            SubmissionFault: it could not be launched, or faulted.
        """
        rng = random.Random(request.seed)
        slots = tuple(range(request.draws))
        sets = self._first_sets(len(slots), self._submission)
        bits = self._refresh(sets, request.kind, rng)
        before = self._digest(sets)
        self.device.run(self._submission.key, slots)
        errors = compare(sets.a, sets.b, sets.c, request.kind, self._track, bits)
        integrity = self._integrity(sets, before)
        if not request.repeat:
            return Inspection(errors=errors, integrity=integrity)
        first = sets.c.clone()
        bits = self._poison_outputs(sets, rng)
        self.device.run(self._submission.key, slots)
        repeatable = bool((first.view(_int16()) == sets.c.view(_int16())).all().item())
        # Equal bits have equal errors: over another poison, nothing of it is left, or it would be NaN in both.
        again = errors if repeatable else compare(sets.a, sets.b, sets.c, request.kind, self._track, bits)
        integrity = integrity.merge(self._integrity(sets, before))
        projection = self._over_old_outputs(sets, slots, rng)
        return Inspection(errors=errors.merge(again), integrity=integrity, repeatable=repeatable, projection=projection)

    def select(self, request: Select) -> Selected:
        """Choose the contenders' layouts and algorithms for a measure, and size their windows."""
        rng = random.Random(request.seed)
        l2_state = request.measure.l2_state
        operations = self._candidates(request)
        self._refresh(self._first_sets(self._layout.slots, operations[0]), InputKind.NORMAL, rng)

        def window(key: str, launches: int) -> WindowTime:
            return self.device.window(key, self._slots(launches, l2_state, rng, unscored), l2_state, unscored)

        # Where one operation takes long, neither its predecessor nor the window's constant matters in a selection.
        long = self._roof_ns >= LONG_SELECTION_NS
        unscored, effort = (0, LONG_EFFORT) if long else (UNSCORED_OPERATIONS, FULL_EFFORT)
        seed = rng.getrandbits(32)
        selection = select(operations, window, lambda ns: self._launches(ns, l2_state, SELECTION_SHARE), seed, effort)
        chosen = selection.chosen
        choices = {
            name: Choice(
                operation=pick.operation,
                launches_per_window=self._launches(pick.launch_ns, l2_state, 1),
                selection_window_ns=pick.window_ns,
                selection_launches=pick.launches,
                errors=self._baseline_errors(pick.operation, rng) if self._is_unverified(pick.operation) else None,
            )
            for name, pick in chosen.items()
        }
        self._finalists |= {operation.contender: () for operation in selection.finalists}
        for operation in selection.finalists:
            self._finalists[operation.contender] += (operation,)
        kept = {operation.key for operation in selection.finalists}
        kept |= {choice.operation.key for others in self._chosen.values() for choice in others.values()}
        self.device.drop(tuple(operation.key for operation in operations if operation.key not in kept))
        self._chosen.setdefault(str(request.measure), {}).update(choices)
        return Selected(choices=choices, best=min(chosen, key=lambda name: chosen[name].launch_ns))

    def round(self, request: Round) -> RoundResult:
        """Time every contender once in the given order; the submission's outputs are looked at when all are done.

        Its inputs are drawn for it alone right before its window, and nothing else in memory was computed from them.

        Raises:
            SubmissionFault: the submission faulted.
        """
        rng = random.Random(request.seed)
        l2_state = request.measure.l2_state
        choices = self._chosen[str(request.measure)]
        times: dict[str, WindowTime] = {}
        pending: tuple[Sets, int, int] | None = None
        if self._roof_ns >= POWER_BOUND_NS:
            # Verification heats the card or lets it rest; one window that does not count puts all contenders on a par.
            other = next(name for name in reversed(request.order) if name != SUBMISSION)
            self._window(choices[other], l2_state, rng)
        for name in request.order:
            choice = choices[name]
            if name == SUBMISSION:
                count = choice.launches_per_window + self._unscored if l2_state is L2State.COLD else 1
                sets = self._first_sets(count, choice.operation)
                bits = self._refresh(sets, InputKind.NORMAL, rng)
                before = self._digest(sets)
            times[name] = self._window(choice, l2_state, rng)
            if name == SUBMISSION:
                # C counts as it is now: host code could go on, and the baselines that follow write to the same place.
                pending = (sets._replace(c=sets.c.clone()), bits, before)
        conditions = self.device.conditions() if request.readings else None
        if pending is None:
            return RoundResult(times=times, conditions=conditions)
        sets, bits, before = pending
        integrity = self._integrity(sets, before)
        if request.full:
            errors = compare(sets.a, sets.b, sets.c, InputKind.NORMAL, self._track, bits)
            launches = choices[SUBMISSION].launches_per_window
            self.device.examine(self._slots(launches, l2_state, rng, self._unscored), self._unscored)
            return RoundResult(times=times, conditions=conditions, inspection=Inspection(integrity=integrity, errors=errors))
        late = random.SystemRandom().getrandbits(62)
        projection = project(sets.a, sets.b, sets.c, late, self._track, bits)
        return RoundResult(
            times=times, conditions=conditions, inspection=Inspection(integrity=integrity, projection=projection)
        )

    def serve(self, request: Serve) -> ServeResult:
        """Answer a trace of random arrivals, and verify the submission's outputs when it has ended.

        Raises:
            SubmissionFault: the submission faulted.
        """
        rng = random.Random(request.seed)
        choices = self._chosen[str(Measure())]
        if self._stand_in is not None and choices[SUBMISSION].operation != self._submission:
            self._submission_for(Measure())  # A later measure let it stand in for another operation.
        # One set more where baselines' requests can follow all of the submission's.
        spare = 1 if request.refreshed else 0
        each = min(request.requests_each, self._layout.slots - spare)
        owner = SUBMISSION if SUBMISSION in request.contenders else request.contenders[0]
        sets = self._first_sets(each + spare, choices[owner].operation)
        keys = {name: choices[name].operation.key for name in request.contenders}
        rate_per_s, seed = request.rate_per_s, rng.getrandbits(62)
        if request.refreshed:
            if not self._clean_ns:
                # A refresher of its own, since what is cleaned up here is followed by no request.
                port = self.device.port(keys, each + 1, Refresher(sets, seed).between)
                self._clean_ns = clean_up_ns(trace(request.contenders, 1, rate_per_s, seed, owner), port)
            rate_per_s = min(rate_per_s, CLEAN_SHARE / (self._clean_ns * 1e-9))
        refresher = Refresher(sets, rng.getrandbits(62), request.refreshed)
        port = self.device.port(keys, each + spare, refresher.between if request.refreshed else None)
        served = serve(trace(request.contenders, each, rate_per_s, seed, owner), port)
        conditions = self.device.conditions()
        inspection = self._inspect_requests(refresher, request.full) if SUBMISSION in request.contenders else None
        return ServeResult(
            rate_per_s=rate_per_s,
            device_ns=by_contender(served, lambda one: None if one.disturbed else one.device_ns),
            latency_ns=by_contender(served, lambda one: one.latency_ns),
            disturbed=sum(one.disturbed for one in served),
            poll_resolution_ns=port.poll_resolution_ns,
            conditions=conditions,
            inspection=inspection,
        )

    def _inspect_requests(self, refresher: Refresher, full: bool) -> Inspection:
        sets = refresher.answered
        before = self._digest(sets)
        refresher.draw_again()
        integrity = self._integrity(sets, before)
        a, b, c, bits = *sets, refresher.poison_bits
        if full:
            errors = compare(a, b, c, InputKind.NORMAL, self._track, bits)
            return Inspection(integrity=integrity, errors=errors)
        late = random.SystemRandom().getrandbits(62)
        return Inspection(integrity=integrity, projection=project(a, b, c, late, self._track, bits))

    def _window(self, choice: Choice, l2_state: L2State, rng: random.Random) -> WindowTime:
        slots = self._slots(choice.launches_per_window, l2_state, rng, self._unscored)
        return self.device.window(choice.operation.key, slots, l2_state, self._unscored)

    @property
    def _unscored(self) -> int:
        return 1 if self._roof_ns >= LONG_WINDOW_NS else UNSCORED_OPERATIONS

    @property
    def _workspace(self) -> torch.Tensor:
        return self._layout.workspace(self._memory)

    @property
    def _most_slots(self) -> int:
        return MAX_SLOTS_CPU if self.device.profile.is_cpu else MAX_SLOTS

    @property
    def _track(self) -> Track:
        return self._layout.problem.track

    @property
    def _warm_applies(self) -> bool:
        return self._layout.problem.bytes_total <= WARM_SHARE_OF_L2 * self.device.profile.l2_bytes

    def _candidates(self, request: Select) -> list[OperationInfo]:
        if request.contenders == (SUBMISSION,):
            return [self._submission_for(request.measure)]
        known = tuple(name for name in request.contenders if name in request.keys)
        # Who reached the selection rounds of an earlier measure races on; the others lost by a wide margin.
        raced = [name for name in request.contenders if name not in known and name in self._finalists]
        unknown = tuple(name for name in request.contenders if name not in known and name not in raced)
        found = [operation for name in raced for operation in self._finalists[name]]
        found += self.device.bind_baselines(unknown, None) if unknown else ()
        if known:
            found += self.device.bind_baselines(known, tuple(request.keys[name] for name in known))
        return found

    def _submission_for(self, measure: Measure) -> OperationInfo:
        """The submission, or what the baseline that stands in for it chose for this measure."""
        if self._stand_in is not None:
            original = self._chosen[str(measure)][self._stand_in.baseline].operation
            self._submission = self.device.bind_stand_in(original, self._stand_in.delay_ns)
        return self._submission

    def _launches(self, launch_ns: float, l2_state: L2State, share: int) -> int:
        """Launches that fill a window's length divided by `share`."""
        wanted = int(self._window_ns / share / max(launch_ns, self._roof_ns)) + 1
        most = min(self._layout.slots, self._most_slots) - UNSCORED_OPERATIONS if l2_state is L2State.COLD else self._most_slots
        return min(wanted, most)

    def _slots(self, launches: int, l2_state: L2State, rng: random.Random, unscored: int) -> tuple[int, ...]:
        """Distinct slots in random order for cold data, the same slot again and again for warm data.

        Drawn once per problem and length, so that a device can keep what it built for a window.
        """
        count = launches + unscored
        if l2_state is L2State.WARM:
            return (0,) * count
        if count not in self._orders:
            self._orders[count] = tuple(rng.sample(range(count), count))
        return self._orders[count]

    def _first_sets(self, count: int, operation: OperationInfo) -> Sets:
        sets = self._layout.sets(self._memory, operation.layout)
        return type(sets)(sets.a[:count], sets.b[:count], sets.c[:count])

    def _refresh(self, sets: Sets, kind: InputKind, rng: random.Random) -> int:
        fill(kind, sets.a, sets.b, rng.getrandbits(62))
        return self._poison_outputs(sets, rng)

    def _poison_outputs(self, sets: Sets, rng: random.Random) -> int:
        """Poison C and what of the workspace is undefined; returns the bits."""
        bits = poison(rng.getrandbits(16))
        sets.c.view(_int16()).fill_(signed(bits))
        undefined = self._workspace[self._zeroed_bytes :]
        undefined.fill_(rng.getrandbits(7) | 0x80)
        return bits

    def _over_old_outputs(self, sets: Sets, slots: tuple[int, ...], rng: random.Random) -> Projection:
        """Run on new inputs while C holds what the old ones gave, which must not be taken for done."""
        fill(InputKind.NORMAL, sets.a, sets.b, rng.getrandbits(62))
        self.device.run(self._submission.key, slots)
        return project(sets.a, sets.b, sets.c, random.SystemRandom().getrandbits(62), self._track, None)

    def _digest(self, sets: Sets) -> int:
        return self.device.digest((sets.a, sets.b))

    def _integrity(self, sets: Sets, before: int) -> Integrity:
        guards = self._layout.guards(self._memory, whole=not self.device.profile.is_cpu)
        zeroed = self._workspace[: self._zeroed_bytes]
        return Integrity(
            guards_changed=not self.device.holds(guards, GUARD_BITS),
            inputs_changed=self._digest(sets) != before,
            workspace_dirty=bool(zeroed.any().item()) if self._zeroed_bytes else False,
        )

    def _is_unverified(self, operation: OperationInfo) -> bool:
        return operation.contender != SUBMISSION and operation.key not in self._verified

    def _baseline_errors(self, operation: OperationInfo, rng: random.Random) -> Errors:
        """Verify a baseline as a submission would be, on normal inputs.

        Raises:
            MachineFault: it wrote outside C.
        """
        self._verified.add(operation.key)
        (count,) = (draw.sets for draw in plan_draws(self._layout.problem) if draw.kind is InputKind.NORMAL)
        sets = self._first_sets(count, operation)
        bits = self._refresh(sets, InputKind.NORMAL, rng)
        before = self._digest(sets)
        self.device.run(operation.key, tuple(range(count)))
        integrity = self._integrity(sets, before)
        if integrity.guards_changed or integrity.inputs_changed:
            raise MachineFault(Reason.BASELINE_ERROR, f"{operation.key} wrote outside C", fatal=False)
        return compare(sets.a, sets.b, sets.c, InputKind.NORMAL, self._track, bits)


def _int16() -> torch.dtype:
    import torch

    return torch.int16
