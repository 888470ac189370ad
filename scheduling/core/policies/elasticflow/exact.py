"""Exact admission for few jobs: whether any schedule meets all deadlines.

Filling backwards in the order of the deadlines misses some feasible sets of jobs. For a few jobs
over a few slots an integer program covers all schedules.
"""

from collections.abc import Sequence

import numpy as np

from scheduling.core.policies.elasticflow.shares import Contract, Horizon, Profile, ShareSpan
from scheduling.core.policies.engines.lp import InfeasibleError, LinearProgram

_MOST_COLUMNS = 3000


def any_way(contracts: Sequence[Contract], horizon: Horizon) -> dict[int, Profile] | None:
    """Profiles that meet all deadlines, slot by slot; None: none exist, or too many slots."""
    end = max((horizon.slot_after(contract.deadline) for contract in contracts), default=0.0)
    slots = _slots(horizon, end)
    if len(slots) * sum(len(contract.rates) for contract in contracts) > _MOST_COLUMNS:
        return None
    program = LinearProgram()
    columns: dict[tuple[int, int, int], int] = {}
    for row, contract in enumerate(contracts):
        mine = _keep_deadline(program, contract, slots)
        if not mine and contract.steps > 0:
            return None
        columns |= {(row, number, size): column for (number, size), column in mine.items()}
    _keep_capacity(program, columns, slots)
    if not columns:
        return {contract.id: () for contract in contracts}
    try:
        found = program.maximise(
            list(columns.values()), -np.array([float(size) for _, _, size in columns])
        )
    except InfeasibleError:
        return None
    profiles = {
        contract.id: tuple(
            ShareSpan(slots[number].start, slots[number].end, size)
            for (owner, number, size), column in sorted(columns.items())
            if owner == row and found.x[column] > 0.5
        )
        for row, contract in enumerate(contracts)
    }
    kept = all(
        contract.work(profiles[contract.id], horizon.now) >= contract.steps * (1 - 1e-6)
        for contract in contracts
    )
    return profiles if kept else None


def _keep_deadline(
    program: LinearProgram, contract: Contract, slots: Sequence[ShareSpan]
) -> dict[tuple[int, int], int]:
    """A contract's columns, by slot and size, which must add up to all of its work in time."""
    columns: dict[tuple[int, int], int] = {}
    worth: list[float] = []
    for number, slot in enumerate(slots):
        seconds = min(slot.end, contract.deadline) - slot.start
        sizes = [n for n in sorted(contract.rates) if n <= slot.n and seconds > 0]
        if not sizes:
            continue
        chosen = program.variables(len(sizes), upper=1.0, integral=True)
        program.at_most(chosen, np.ones(len(sizes)), 1.0)
        for size, column in zip(sizes, chosen, strict=True):
            columns[number, size] = int(column)
            worth.append(contract.rates[size] * seconds)
    if columns:
        # Scaled to 1, so that the solver's tolerance is a part of the work.
        program.at_least(
            list(columns.values()),
            np.array(worth) / max(contract.steps, 1e-9),
            1.0 if contract.steps > 0 else 0.0,
        )
    return columns


def _keep_capacity(
    program: LinearProgram, columns: dict[tuple[int, int, int], int], slots: Sequence[ShareSpan]
) -> None:
    for number, slot in enumerate(slots):
        inside = [(size, column) for (_, at, size), column in columns.items() if at == number]
        if inside:
            program.at_most(
                [column for _, column in inside],
                np.array([float(size) for size, _ in inside]),
                float(slot.n),
            )


def _slots(horizon: Horizon, end: float) -> list[ShareSpan]:
    """Free devices by slot until ``end``; empty if there are too many slots."""
    count = (end - horizon.now) / horizon.slot
    if count > _MOST_COLUMNS:
        return [ShareSpan(horizon.now, end, 0)] * (_MOST_COLUMNS + 1)
    found: list[ShareSpan] = []
    time = horizon.now
    while time < end - 1e-9:
        following = min(horizon.slot_before(time) + horizon.slot, end)
        free = min(span.n for span in horizon.spans if span.start < following and span.end > time)
        found.append(ShareSpan(time, following, free))
        time = following
    return found
