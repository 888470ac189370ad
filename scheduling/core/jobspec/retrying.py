"""Maximum numbers of retries of a job, by class of failure."""

from collections.abc import Mapping
from typing import Final

from scheduling.core.jobspec.errors import DocumentPlace
from scheduling.core.jobspec.scalars import read_integer
from scheduling.core.jobspec.table import Field, number_schema, read_object
from scheduling.core.jobspec.values import Retries
from scheduling.core.lifecycle import FailureClass
from scheduling.core.messages import sentence
from tessera.messages import follow

_RETRY_HELP: Final[Mapping[FailureClass, str]] = {
    FailureClass.USER: sentence("retry-user"),
    FailureClass.RESOURCE_LIMIT: sentence("retry-resource-limit"),
    FailureClass.NODE: sentence("retry-node"),
    FailureClass.IMAGE: sentence("retry-image"),
    FailureClass.PREEMPTED: sentence("retry-preempted"),
    FailureClass.TIMEOUT: sentence("retry-timeout"),
    FailureClass.PLATFORM: sentence("retry-platform"),
}

RETRY_FIELDS: Final = tuple(
    Field(
        name=failure.value,
        type="number, or -1",
        default=str(Retries().of(failure)),
        help=follow(_RETRY_HELP[failure], sentence("retry-count")),
        read=lambda value, _place: read_integer(value, -1, 100),
        schema=number_schema(-1, 100),
    )
    for failure in FailureClass
)


def read_retries(value: object, place: DocumentPlace) -> Retries:
    """Read the number of retries for each class of failure, or the default if none is given."""
    given = read_object(value, RETRY_FIELDS, place)
    return Retries(**{name.replace("-", "_"): count for name, count in given.items()})
