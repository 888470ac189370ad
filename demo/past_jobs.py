"""Workload of the demo's history: jobs of a day, with the work that each of them has to do.

Only the workload is invented. Starts, waits, preemptions and placements are decisions of rounds.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

HOURS: Final = 24
DEVICES: Final = 24
SEED: Final = 2
"""Of seeds 1 to 5 and 7, the one whose what-if shows the largest difference (ADR 114)."""

MARK: Final = {"demo": "history"}
NOTE: Final = "Demo history: simulated by the scheduler at the first start; no process ran."
STEP: Final = 10.0
"""Resolution of all times, in seconds: the interval of rounds."""

_SUBMITS: Final = (1, 0, 1, 0, 1, 1, 2, 4, 5, 5, 4, 3, 4, 5, 5, 4, 3, 2, 2, 2, 1, 1, 1, 1)
"""Submits by hour of the day, from its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Contents of the reports of a training.

    Attributes:
        samples: per step.
        step_seconds: duration of a step.
        first, last: loss at the beginning, and the loss that the run approaches.
    """

    samples: int
    step_seconds: float
    first: float
    last: float

    def loss(self, step: int, total: int, noise: float) -> float:
        """Return the loss after a step of ``total``, for a noise in [-1, 1]."""
        share = step / max(1, total)
        return self.last + (self.first - self.last) * math.exp(-5.0 * share) + 0.02 * noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of job.

    Attributes:
        minutes: median duration.
        weight: relative frequency.
        busy: mean utilisation of its devices, 0 to 1.
    """

    name: str
    owner: str
    cluster: str
    role: Mapping[str, Any]
    minutes: float
    weight: float
    busy: float
    fields: Mapping[str, Any] = field(default_factory=dict)
    training: Training | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """A job of the history.

    Attributes:
        at: seconds from the beginning of the day to its submit.
        seconds: work, in seconds of running.
        code: exit code.
    """

    at: float
    seconds: float
    code: int
    kind: Kind
    document: Mapping[str, Any]


_SPARE: Final = {"class": "opportunistic"}
_IMAGES: Final = Training(samples=256, step_seconds=1.5, first=6.9, last=1.2)
_TEXTS: Final = Training(samples=64, step_seconds=2.5, first=4.1, last=1.9)
KINDS: Final = (
    Kind(
        name="resnet-50 ablation", owner="alice", cluster="vision-a",
        role={"devices": 2}, minutes=95, weight=4, busy=0.88, training=_IMAGES,
    ),
    Kind(
        name="vit-small", owner="alice", cluster="vision-a",
        role={"devices": 4, "within": "socket"}, minutes=150, weight=3, busy=0.93,
        training=_IMAGES,
    ),
    Kind(
        name="vit-large pretraining", owner="alice", cluster="vision-a",
        role={"devices": 8, "within": "node"}, minutes=190, weight=1.6, busy=0.95,
        training=_IMAGES,
    ),
    Kind(
        name="hyperparameter trial", owner="alice", cluster="vision-a",
        role={"devices": 2}, minutes=60, weight=3, busy=0.71, fields=_SPARE,
    ),
    Kind(
        name="nightly evaluation", owner="alice", cluster="vision-b",
        role={"devices": 1}, minutes=25, weight=3, busy=0.42,
    ),
    Kind(
        name="tokenizer", owner="bob", cluster="language-a",
        role={"devices": 1}, minutes=25, weight=2, busy=0.35,
    ),
    Kind(
        name="7b finetune", owner="bob", cluster="language-a",
        role={"devices": 4, "within": "socket"}, minutes=160, weight=2.5, busy=0.9,
        training=_TEXTS,
    ),
    Kind(
        name="adapter, two instances", owner="bob", cluster="language-a",
        role={"instances": 2, "devices": 1}, minutes=80, weight=2, busy=0.8,
    ),
    Kind(
        name="perplexity sweep", owner="bob", cluster="language-a",
        role={"devices": 4, "within": "socket"}, minutes=120, weight=3, busy=0.85, fields=_SPARE,
        training=_TEXTS,
    ),
)  # fmt: skip


def past_jobs(seed: int = SEED) -> Sequence[PastJob]:
    """Return the jobs of the day by submit time; equal seeds give equal jobs."""
    return tuple(sorted(_jobs(random.Random(seed)), key=lambda job: job.at))  # noqa: S311 no secret


def _jobs(chance: random.Random) -> Iterator[PastJob]:
    numbers: dict[str, int] = {}
    for hour, submits in enumerate(_SUBMITS):
        for _ in range(submits):
            kind = chance.choices(KINDS, [kind.weight for kind in KINDS])[0]
            numbers[kind.name] = number = numbers.get(kind.name, 0) + 1
            at = STEP * int((hour + chance.random()) * 3600 / STEP)
            # The work of a last hour must end before the day does.
            most = HOURS * 3600.0 - at - 1500.0
            seconds = 60.0 * kind.minutes * math.exp(chance.gauss(0.0, 0.4))
            is_faulty = chance.random() < 0.07
            seconds = chance.uniform(20.0, 90.0) if is_faulty else min(seconds, most)
            if seconds > 0:
                yield PastJob(
                    at=at,
                    seconds=STEP * math.ceil(seconds / STEP),
                    code=int(is_faulty),
                    kind=kind,
                    document=_document(kind, number),
                )


def _document(kind: Kind, number: int) -> Mapping[str, Any]:
    command = f"python3 train.py --run {number}" if kind.training else f"./run.sh {number}"
    return {
        "name": f"{kind.name} {number}",
        "note": NOTE,
        "labels": dict(MARK),
        "virtual_cluster": kind.cluster,
        "roles": {"worker": {**kind.role, "command": command}},
        **kind.fields,
    }
