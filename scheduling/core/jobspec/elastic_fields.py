"""The fields of ``elastic``, and the checks between them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from scheduling.core.jobspec.elastic import LEVELS, Elastic, ElasticMode, ProfileUse
from scheduling.core.jobspec.errors import DocumentPlace
from scheduling.core.jobspec.scalars import read_integer
from scheduling.core.jobspec.table import Field, choice, number_schema, read_object
from scheduling.core.messages import sentence

MOST_DEVICES: Final = 65_536
MOST_LOGICAL_WORKERS: Final = 4_096
MOST_EXECUTORS: Final = 16
LARGEST_BATCH: Final = 1 << 30
MOST_STEPS: Final = 1 << 53

_MODES: Final = tuple(mode.value for mode in ElasticMode)
_BATCHES: Final = ("initial_batch", "max_batch", "max_local_batch")
_ONLY_FOR: Final[Mapping[ElasticMode, tuple[str, ...]]] = {
    ElasticMode.LOGICAL_WORKERS: ("logical_workers", "determinism", "executors"),
    ElasticMode.ADAPTIVE_BATCH: (*_BATCHES, "profile"),
}
_NEEDED: Final[Mapping[ElasticMode, tuple[str, ...]]] = {
    ElasticMode.LOGICAL_WORKERS: ("logical_workers",),
    ElasticMode.ADAPTIVE_BATCH: ("initial_batch", "max_batch"),
}


def read_elastic(value: object, place: DocumentPlace) -> Elastic | None:
    """Read ``elastic``; None if it is invalid; its errors are collected."""
    faults = len(place.errors)
    given = read_object(value, ELASTIC_FIELDS, place)
    if len(place.errors) != faults:
        return None
    elastic = Elastic(**given)
    _check_mode(elastic, place)
    _check_numbers(elastic, place)
    if len(place.errors) != faults:
        return None
    if elastic.mode is ElasticMode.ADAPTIVE_BATCH and elastic.max_local_batch is None:
        return replace(elastic, max_local_batch=elastic.max_batch)
    return elastic


def _mode(value: object, _place: DocumentPlace) -> ElasticMode:
    return ElasticMode(choice(value, _MODES))


def _check_mode(elastic: Elastic, place: DocumentPlace) -> None:
    for mode, names in _ONLY_FOR.items():
        if mode is elastic.mode:
            continue
        for name in names:
            value = getattr(elastic, name)
            if value is not None:
                place.child(name).refuse(
                    value,
                    sentence("needs-mode", value=mode.value),
                    sentence("write-mode", value=mode.value, name=name),
                    "conflict",
                )
    for name in _NEEDED.get(elastic.mode, ()):
        if getattr(elastic, name) is None:
            place.child(name).refuse(
                None,
                sentence("missing"),
                sentence("mode-needs", mode=elastic.mode.value, name=name),
                "missing-field",
            )


def _check_numbers(elastic: Elastic, place: DocumentPlace) -> None:
    first, most, local = elastic.initial_batch, elastic.max_batch, elastic.max_local_batch
    if first is not None and most is not None and most < first:
        place.child("max_batch").refuse(
            most,
            sentence("below-initial-batch", first=first),
            sentence("write-or-more", first=first),
            "conflict",
        )
    if local is not None and most is not None and local > most:
        place.child("max_local_batch").refuse(
            local,
            sentence("above-largest-batch", most=most),
            sentence("write-or-less", most=most),
            "conflict",
        )
    if elastic.total_steps is not None and elastic.epochs is not None:
        place.child("epochs").refuse(
            elastic.epochs, sentence("epochs-and-steps"), sentence("omit-one"), "conflict"
        )


def check_workers(elastic: Elastic, devices: int, place: DocumentPlace) -> None:
    """Add an error if a job may get more devices than it has logical workers.

    Args:
        elastic: declaration of the job.
        devices: requested number of devices.
        place: place of ``elastic`` in the document.
    """
    _, most = elastic.bounds(devices)
    workers = elastic.logical_workers
    if workers is not None and most > workers:
        place.child("logical_workers").refuse(
            workers,
            sentence("fewer-workers-than-devices", most=most),
            sentence("write-more-or-smaller-max", most=most),
            "conflict",
        )


def check_profile(elastic: Elastic, devices: int, place: DocumentPlace) -> None:
    """Add an error if a job that only measures a profile may have more than one device.

    Args:
        elastic: declaration of the job.
        devices: requested number of devices.
        place: place of ``elastic`` in the document.
    """
    _, most = elastic.bounds(devices)
    if elastic.profile is ProfileUse.ONLY and most != 1:
        place.child("profile").refuse(
            elastic.profile.value,
            sentence("profile-needs-one-device", devices=most),
            sentence("use-one-device"),
            "conflict",
        )


def _number(name: str, words: str, most: int, default: str) -> Field:
    return Field(
        name=name,
        type="number",
        default=default,
        help=words,
        read=lambda value, _place: read_integer(value, 1, most),
        schema=number_schema(1, most),
    )


def _schema(words: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "string", "enum": list(words)}


_SIZE: Final = "the requested size"
ELASTIC_FIELDS: Final = (
    Field(
        name="mode",
        type="fixed, logical_workers, adaptive_batch or hybrid",
        default="fixed",
        help="fixed: the command itself handles another size. logical_workers: training gives the "
        "same bits at every size. adaptive_batch: Tessera chooses the batch size during the run. "
        "hybrid: each size has its own parallel plan; requires parallel.",
        read=_mode,
        schema=_schema(_MODES),
    ),
    _number("min", "Minimum number of devices of the whole job.", MOST_DEVICES, _SIZE),
    _number("max", "Maximum number of devices of the whole job.", MOST_DEVICES, _SIZE),
    _number(
        "logical_workers",
        "Number of logical workers, at least max; independent of the number of devices. For mode "
        "logical_workers.",
        MOST_LOGICAL_WORKERS,
        "none",
    ),
    Field(
        name="determinism",
        type="D0, D1 or D2",
        default="set by the command",
        help="Reproducible bits on the same devices (D0), on any number of devices of one type "
        "(D1), or on devices of several types (D2). For mode logical_workers. Below D2 the job "
        "stays on one device type.",
        read=lambda value, _place: choice(value, LEVELS),
        schema=_schema(LEVELS),
    ),
    _number(
        "executors",
        "Maximum number of processes of the job on one device; all must fit into its memory. For "
        "mode logical_workers, with a command that starts tessera.train.launch. Each further "
        "process is tried once, and used if it is faster.",
        MOST_EXECUTORS,
        "1",
    ),
    _number(
        "initial_batch",
        "Samples per step for which the learning rate was chosen; for mode adaptive_batch.",
        LARGEST_BATCH,
        "none",
    ),
    _number(
        "max_batch",
        "Maximum number of samples per step; for mode adaptive_batch.",
        LARGEST_BATCH,
        "none",
    ),
    _number(
        "max_local_batch",
        "Maximum number of samples that fit on a device at once; for mode adaptive_batch.",
        LARGEST_BATCH,
        "max_batch",
    ),
    Field(
        name="profile",
        type="automatic, none or only",
        default="automatic",
        help="For mode adaptive_batch. automatic: if the policy uses goodput, a small job on one "
        "device of each type measures step times of some batches. none: no such job. only: this "
        "job measures them and ends.",
        read=lambda value, _place: ProfileUse(choice(value, tuple(ProfileUse))),
        schema=_schema(tuple(one.value for one in ProfileUse)),
    ),
    _number(
        "total_steps",
        "Total number of training steps; with adaptive_batch, in steps of the initial batch. "
        "Policies use the remaining steps.",
        MOST_STEPS,
        "none",
    ),
    _number(
        "epochs",
        "Total number of passes over the data; the command reads it.",
        MOST_STEPS,
        "none",
    ),
)
