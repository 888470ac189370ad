"""How often a job may be tried again: what its document says by class of failure."""

from collections.abc import Mapping
from typing import Final

from scheduling.core.jobspec.errors import Place
from scheduling.core.jobspec.scalars import read_integer
from scheduling.core.jobspec.table import Field, number_schema, read_object
from scheduling.core.jobspec.values import Retries
from scheduling.core.lifecycle import FailureClass

_RETRY_HELP: Final[Mapping[FailureClass, str]] = {
    FailureClass.USER: "The command ended with an error of its own.",
    FailureClass.RESOURCE_LIMIT: "It used more memory or disk than it may.",
    FailureClass.NODE: "The node failed or vanished; the retry avoids that node.",
    FailureClass.IMAGE: "The image could not be fetched or started.",
    FailureClass.PREEMPTED: "It had to leave for another job.",
    FailureClass.TIMEOUT: "It ran longer than max_duration.",
    FailureClass.PLATFORM: "The scheduler or its nodes' software failed.",
}

RETRY_FIELDS: Final = tuple(
    Field(
        name=failure.value,
        type="number, or -1",
        default=str(Retries().of(failure)),
        help=f"{_RETRY_HELP[failure]} So often it may be tried again; -1: without limit.",
        read=lambda value, _place: read_integer(value, -1, 100),
        schema=number_schema(-1, 100),
    )
    for failure in FailureClass
)


def read_retries(value: object, place: Place) -> Retries:
    """The number of retries for each class of failure; the usual one where none is given."""
    given = read_object(value, RETRY_FIELDS, place)
    return Retries(**{name.replace("-", "_"): count for name, count in given.items()})
