"""Coordinator of the devices of a run: the holder's runner decides when its guests may work.

It runs in the loop of the runner and only while the control plane has ordered guests. It reads the
steps that the holder reports, applies ``law`` and ``memory``, and writes a bound for each guest. A
bound expires 3 s later, so that a coordinator that has ended, or is frozen, closes the gate.
"""

from __future__ import annotations

import math
import os
from collections import deque
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Tuple

from tessera import protocol
from tessera.node import system
from tessera.node.runs import Run
from tessera.node.sharing import account, bounds, files, law, memory
from tessera.node.sharing.coordinated import CoordinatedDevice, CoordinatedGuest
from tessera.node.sharing.figures import stdev
from tessera.node.sharing.files import GuestReport
from tessera.node.sharing.requests import device_dirs
from tessera.node.sharing.tails import ReportTail
from tessera.node.sharing.turns import FROZEN_TIER, GATE_TIER, Turns
from tessera.protocol import ProtocolError, RunSpec

LOOK_SECONDS = 0.05
STATE_SECONDS = 1.0
HEARING_SECONDS = 0.05
"""Longest time until the library of a guest has read a new bound."""
_RENEWED_WITH = bounds.LIFETIME_SECONDS - 1.0
_LOSS_SECONDS, _LOSS_STEPS = 60.0, 2000


class CountedStep(NamedTuple):
    """A step of the holder while guests ran: its end, its seconds, and the baseline then."""

    end: float
    seconds: float
    baseline: float


class Coordinator:
    """Coordinates the guests on the devices of a run.

    Args:
        run: the holder.
        spec: its specification, which names the devices.
        freeze: freezes or thaws all processes of the holder, for turns.
    """

    def __init__(
        self, run: Run, spec: RunSpec, freeze: Callable[[bool], None] = lambda frozen: None
    ) -> None:
        self._run, self._freeze = run, freeze
        self._turns: Optional[Turns] = None
        self._is_frozen = False
        self._devices = [
            CoordinatedDevice(directory)
            for directory in device_dirs(run.store.root, spec).values()
        ]
        self._guests: Dict[str, CoordinatedGuest] = {}
        self._tail: Optional[ReportTail] = None
        self._limits = law.Limits(0.05, HEARING_SECONDS)
        self._state = law.initial(self._limits)
        self._latest_end = 0.0
        self._steps: Deque[CountedStep] = deque(maxlen=_LOSS_STEPS)
        self._step_count = 0
        self._report = GuestReport()
        self._peaks = memory.Peaks()
        self._memory_free: Optional[int] = None
        self._delay = self._open_seconds = self._shared_seconds = 0.0
        self._closings = self._number = 0
        self._looked_at = self._state_at = -math.inf

    @property
    def is_coordinating(self) -> bool:
        """Whether there are guests."""
        return bool(self._guests)

    def next_at(self, now: float) -> float:
        """Return the time of the next call of ``look``; infinity without guests."""
        return now + LOOK_SECONDS if self._guests else math.inf

    def look(self, now: float, *, is_leaving: bool = False) -> None:
        """Read orders and reports, move the gate if it must move, and renew the bounds.

        Args:
            now: the node's boot clock, in seconds.
            is_leaving: whether the holder has its notice to leave, and thus the only turn.
        """
        changed = [device.take_orders(self._run.run_id) for device in self._devices]
        if any(changed):
            self._take_guests(now)
        if not self._guests:
            self._turns = None
            self.thaw()
            return
        self._count_time(now)
        steps = self._new_steps(now)
        for guest in self._guests.values():
            guest.read(now)
        before = self._state
        self._limits = self._limits_now()
        working = self._take_turn(now, is_leaving=is_leaving)
        if self._turns is None:
            self._state = law.look(before, steps, now, self._limits)
        self._closings += before.is_open and not self._state.is_open
        self._note_steps(steps, now)
        self._divide_memory(now)
        for guest in self._guests.values():
            self._renew(guest, now, working)
        if now - self._state_at >= STATE_SECONDS:
            self._state_at = now
            self._drop_ended()
            self._write_states()

    def thaw(self) -> None:
        """Let the holder work, at the end of turns or for its own end."""
        if self._is_frozen:
            self._is_frozen = False
            self._freeze(False)

    def close(self) -> None:
        """Release the locks of the devices, which guests' runners detect; stop renewing bounds."""
        self.thaw()
        system.remove_quietly(self._run.file(protocol.SHARED_FILE))
        for device in self._devices:
            device.release()

    # -- orders and reports ----------------------------------------------------------------------

    def _take_guests(self, now: float) -> None:
        ordered = {
            order.run_id: (order, device)
            for device in self._devices
            for order in files.guests_of(device.orders)
            if order.run_id != self._run.run_id and _is_run_id(order.run_id)
        }
        for run_id in [one for one in self._guests if one not in ordered]:
            self._write_bound(self._guests.pop(run_id), 0.0, "removed", now)
        for run_id, (order, device) in ordered.items():
            known = self._guests.get(run_id)
            if known is not None:
                known.order, known.device = order, device
            else:
                run = self._run.store.run(run_id)
                self._guests[run_id] = CoordinatedGuest(run, order, device, now)
        path = self._run.file(protocol.SHARED_FILE)
        if not self._guests:
            self._tail = None
            system.remove_quietly(path)
            self._write_states()
        elif self._tail is None:
            self._tail = ReportTail(self._run)
            self._state = law.initial(self._limits_now())
            self._looked_at = now
            system.replace_file(path, b"", mode=0o644)

    def _drop_ended(self) -> None:
        self._guests = {
            run_id: guest for run_id, guest in self._guests.items() if not guest.has_ended()
        }

    def _new_steps(self, now: float) -> List[law.HolderStep]:
        found: List[law.HolderStep] = []
        for line in self._tail.lines() if self._tail is not None else ():
            self._report = files.report_of(line) or self._report
            for start, end in files.steps_of(line, self._latest_end, now):
                found.append(law.HolderStep(start, end))
                self._latest_end = end
        self._step_count += len(found)
        peak = max(self._report.peak, self._report.reserved)
        if peak and found:
            seen = memory.Peak(now, self._step_count, peak)
            self._peaks = memory.after_look(self._peaks, seen)
        return found

    def _limits_now(self) -> law.Limits:
        ordered = [guest.device.orders for guest in self._guests.values()]
        slowdown = min((one.order.slowdown for one in ordered if one is not None), default=0.05)
        module = max((one.report.module_seconds for one in self._guests.values()), default=0.0)
        return law.Limits(slowdown, HEARING_SECONDS + 2 * min(module, 1.0))

    def _note_steps(self, steps: List[law.HolderStep], now: float) -> None:
        baseline = self._state.account.baseline
        if baseline is None:
            return
        counted = self._state.counted
        if self._turns is not None:  # the law does not run
            counted = tuple(account.clipped(step.end - step.start, baseline) for step in steps)
        for step, seconds in zip(steps, counted):  # noqa: B905
            self._steps.append(CountedStep(step.end, seconds, baseline))
            if self._state.is_open or self._state.moved_at > step.start:
                self._delay += seconds - baseline
        while self._steps and now - self._steps[0].end > _LOSS_SECONDS:
            self._steps.popleft()

    def _count_time(self, now: float) -> None:
        passed = max(now - self._looked_at, 0.0) if self._looked_at > -math.inf else 0.0
        self._looked_at = now
        self._shared_seconds += passed
        opened = passed if self._state.is_open else 0.0
        self._open_seconds += opened
        for guest in self._guests.values():
            guest.note_open(now, opened)

    # -- turns -----------------------------------------------------------------------------------

    def _take_turn(self, now: float, *, is_leaving: bool) -> str:
        """Freeze or thaw the holder as its turn requires; returns the run that may work."""
        orders = [guest.device.orders for guest in self._guests.values()]
        seconds = max((one.order.turn_seconds for one in orders if one is not None), default=0.0)
        if not seconds:
            self._turns = None
            self.thaw()
            return ""
        holder = self._run.run_id
        if self._turns is None:
            self._turns = Turns(seconds, holder, now)
        self._turns.seconds = seconds
        by_slot = sorted(self._guests.values(), key=lambda guest: guest.order.slot)
        there = [guest.run.run_id for guest in by_slot if not guest.has_to_leave]
        runs = [holder] if is_leaving else [holder, *there]
        working = self._turns.look(runs, now, self._tier_of)
        if working == holder:
            self.thaw()
        elif not self._is_frozen:
            self._is_frozen = True
            self._freeze(True)
        return working

    def _tier_of(self, run_id: str) -> str:
        """Return how a run is suspended now; empty while it is active."""
        guest = self._guests.get(run_id)
        if guest is None:
            return FROZEN_TIER if self._is_frozen or run_id != self._run.run_id else ""
        if os.path.lexists(guest.run.file(files.FROZEN_FILE)):
            return FROZEN_TIER
        bound = guest.bound
        is_closed = bound is not None and bound.compute <= 0
        return GATE_TIER if is_closed and guest.report.stands >= guest.closed_number else ""

    # -- memory ----------------------------------------------------------------------------------

    def _divide_memory(self, now: float) -> None:
        """Divide the memory of each device whose size a library has reported."""
        for device in self._devices:
            guests = [one for one in self._guests.values() if one.device is device]
            reports = [self._report, *(one.report for one in guests)]
            size = max(report.device for report in reports)
            if not size or not guests:
                continue
            free = min(report.free for report in reports if report.device)
            contexts = max(size - free - sum(report.reserved for report in reports), 0)
            peaks = [self._peaks.highest] if self._peaks.window else []
            room = memory.room(size, contexts, memory.holder_bound(peaks, size))
            floors = [one.order.floor for one in guests]
            self._memory_free = max(room - sum(floors), 0)
            # Without a split of runs, zip ends with the shorter list; both have the same length.
            for guest, part in zip(guests, memory.divided(room, floors)):  # noqa: B905
                self._bound_memory(guest, part, now)

    def _bound_memory(self, guest: CoordinatedGuest, part: int, now: float) -> None:
        is_stable = memory.is_stable(self._peaks, now, self._step_count)
        rises = memory.may_rise(
            stable=is_stable, now=now, guest_since=guest.since, rose_at=guest.rose_at
        )
        found = memory.guest_bound(part, guest.order.floor, guest.memory, rises=rises)
        if found.action is memory.MemoryAction.EVICT:
            guest.has_to_leave = "no-memory"
        if found.bytes > guest.memory:
            guest.rose_at = now
        guest.memory = found.bytes

    # -- bounds and state ------------------------------------------------------------------------

    def _renew(self, guest: CoordinatedGuest, now: float, working: str) -> None:
        orders = guest.device.orders
        is_drained = orders is not None and orders.order.drain
        is_closed = not self._state.is_open or is_drained or bool(guest.has_to_leave)
        compute = 0.0 if is_closed else self._state.compute / len(self._guests)
        why = guest.has_to_leave or ("drain" if is_drained else self._state.rule.value)
        if self._turns is not None and not is_drained and not guest.has_to_leave:
            compute, why = float(guest.run.run_id == working), "turn"
        bound = guest.bound
        is_same = (
            bound is not None
            and (bound.compute, bound.memory) == (compute, guest.memory)
            and guest.written_why == why
        )
        if bound is None or not is_same or bound.until - now < _RENEWED_WITH:
            self._write_bound(guest, compute, why, now)

    def _write_bound(self, guest: CoordinatedGuest, compute: float, why: str, now: float) -> None:
        """Write a bound for the guest's runner, then for its library."""
        bound = bounds.issued(guest.bound, compute, guest.memory, now)
        # In turns the holder is suspended, whatever its page shows.
        host = guest.host_page(self._run) if self._turns is None else None
        leave = bool(guest.has_to_leave)
        document = files.bound_document(bound, host=host, why=why, leave=leave)
        guest.written_why = why
        is_written = files.write_document(guest.run.file(files.BOUND_FILE), document)
        job_file = guest.run.file(protocol.JOB_BOUND_FILE)
        if is_written and files.write_document(job_file, document, mode=0o644):
            if bound.compute <= 0 and (guest.bound is None or guest.bound.compute > 0):
                guest.closed_number = bound.number
            guest.bound = bound  # otherwise the old bound expires

    def _write_states(self) -> None:
        self._number += 1
        for device in self._devices:
            if device.orders is None:
                continue
            guests = [one for one in self._guests.values() if one.device is device]
            path = os.path.join(device.directory, files.DEVICE_STATE_FILE)
            if not guests:
                system.remove_quietly(path)
                continue
            files.write_document(path, self._document(guests))

    def _document(self, guests: List[CoordinatedGuest]) -> Dict[str, Any]:
        loss, error = self._loss()
        state, baseline = self._state, self._state.account.baseline
        shared = self._shared_seconds
        return {
            "version": files.VERSION,
            "number": self._number,
            "at": self._looked_at,
            "holder_run_id": self._run.run_id,
            "baseline": baseline,
            "loss": loss,
            "loss_low": None if loss is None else loss - 1.96 * error,
            "loss_high": None if loss is None else loss + 1.96 * error,
            "gate": "open" if state.is_open else "closed",
            "why": state.rule.value,
            "open": min(self._open_seconds / shared, 1.0) if shared else 0.0,
            "account": state.account.balance,
            "reserve": baseline and account.reserve(baseline, self._limits.slowdown),
            "closings": self._closings,
            "delay_seconds": max(self._delay, 0.0),
            "memory_free": self._memory_free,
            **self._suspended(self._run.run_id),
            "guests": [self._guest_document(guest) for guest in guests],
        }

    def _guest_document(self, guest: CoordinatedGuest) -> Dict[str, Any]:
        return {
            "run_id": guest.run.run_id,
            "slot": guest.order.slot,
            "duty": guest.duty(),
            "open": None if guest.bound is None else guest.bound.compute > 0,
            "pace": None,
            "memory": guest.report.reserved or None,
            "spilled": guest.report.spilled,
            "frozen": os.path.lexists(guest.run.file(files.FROZEN_FILE)),
            **self._suspended(guest.run.run_id),
        }

    def _suspended(self, run_id: str) -> Dict[str, Any]:
        """Return the fields about the suspensions of a run; none without turns."""
        if self._turns is None:
            return {}
        found = self._turns.suspension(run_id)
        return {
            "tier": found.tier,
            "suspensions": found.number,
            "suspended_seconds": round(found.seconds, 3),
            "suspend_seconds": round(found.longest, 3),
            "suspended_for": (
                None if found.since is None else round(max(self._looked_at - found.since, 0.0), 3)
            ),
        }

    def _loss(self) -> Tuple[Optional[float], float]:
        """Return the loss over the last minute and its standard error; None without steps.

        In turns, a step contains the turns of others, so that it shows no loss.
        """
        steps = self._steps
        if len(steps) < 2 or self._turns is not None:
            return None, 0.0
        baseline = sum(step.baseline for step in steps)
        loss = sum(step.seconds for step in steps) / baseline - 1
        relative = [step.seconds / step.baseline for step in steps]
        return loss, stdev(relative) / math.sqrt(len(relative))


def _is_run_id(run_id: str) -> bool:
    try:
        protocol.parse_run_id(run_id)
    except ProtocolError:
        return False
    return True
