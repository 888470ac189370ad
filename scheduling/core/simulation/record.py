"""Record of a simulation: starts, ends, preemptions, restarts and device-seconds of each job."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from scheduling.core.reasons import Reason


@dataclass(slots=True, kw_only=True)
class SimulationRecord:
    """Results of a simulation by job ID; times are on the clock of the snapshot, in seconds.

    Attributes:
        starts: first start.
        ends: end of the work.
        preemptions: notices to leave for other jobs or for another size.
        restarts: starts after the first one.
        failures: interruptions by failed or removed nodes.
        lost: seconds of work at the requested size that failures discarded.
        device_seconds: seconds with devices, multiplied by their number.
        rejections: reasons of jobs that their policies rejected.
        faults: faults of policies, in the order of rounds.
        rounds: number of decisions.
    """

    starts: dict[int, float] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)
    preemptions: Counter[int] = field(default_factory=Counter)
    restarts: Counter[int] = field(default_factory=Counter)
    failures: Counter[int] = field(default_factory=Counter)
    lost: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    device_seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    rejections: dict[int, Reason] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    rounds: int = 0
