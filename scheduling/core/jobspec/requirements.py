"""Requirements of a role on GPUs and their driver: versions, and memory of each device."""

import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final

from scheduling.core.jobspec.errors import DocumentPlace, RefusalError
from scheduling.core.jobspec.scalars import read_matching, read_memory
from scheduling.core.jobspec.table import AMOUNT, Field, read_object, text_schema
from scheduling.core.messages import sentence

LONGEST_VERSION: Final = 32
_VERSION: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Minimum properties of the GPUs of a role, or the actual ones of a node.

    Attributes:
        driver: version of the GPU driver, such as ``535.104``; empty if any suffices, or unknown.
        cuda: version of CUDA that the driver supports, such as ``12.4``; likewise.
        device_memory: bytes of memory of each device; 0 likewise.
    """

    driver: str = ""
    cuda: str = ""
    device_memory: int = 0

    def unmet_by(self, node: "Requirements") -> list[str]:
        """Return the names of the requirements that the properties of a node do not meet.

        A node that does not report a property does not meet a requirement on it.
        """
        found = [
            name
            for name, least, value in (
                ("driver", self.driver, node.driver),
                ("cuda", self.cuda, node.cuda),
            )
            if least and version(value) < version(least)
        ]
        return found + (["device_memory"] if node.device_memory < self.device_memory else [])

    def to_json(self) -> dict[str, Any]:
        """Return the requirements that are set, as ``read_requirements`` reads them."""
        if self == NO_REQUIREMENTS:
            return {}
        return {name: value for name, value in asdict(self).items() if value}


NO_REQUIREMENTS: Final = Requirements()


@lru_cache(maxsize=4096)
def version(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version without trailing zeros: 12.0 equals 12."""
    found = _VERSION.match(text)
    numbers = [int(part) for part in found.group().split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def strictest(requirements: Collection[Requirements]) -> Requirements:
    """Return the requirements that meet all of the given ones."""
    return Requirements(
        driver=max((one.driver for one in requirements), key=version, default=""),
        cuda=max((one.cuda for one in requirements), key=version, default=""),
        device_memory=max((one.device_memory for one in requirements), default=0),
    )


def read_requirements(value: object, place: DocumentPlace) -> Requirements:
    """Read ``requires``; errors are collected."""
    return Requirements(**read_object(value, REQUIREMENT_FIELDS, place))


def _version(value: object, _place: DocumentPlace) -> str:
    remedy = sentence("write-version-text")
    if isinstance(value, int | float):  # YAML reads 12.10 as 12.1
        raise RefusalError(sentence("number-for-version"), remedy)
    return read_matching(value, _VERSION, remedy)


REQUIREMENT_FIELDS: Final[tuple[Field, ...]] = (
    Field(
        name="driver",
        type="text",
        default="any",
        help='Minimum version of the GPU driver, such as "535.104".',
        read=_version,
        schema=text_schema(LONGEST_VERSION),
    ),
    Field(
        name="cuda",
        type="text",
        default="any",
        help='Minimum version of CUDA that the GPU driver supports, such as "12.4".',
        read=_version,
        schema=text_schema(LONGEST_VERSION),
    ),
    Field(
        name="device_memory",
        type="bytes, or a string such as 40GiB",
        default="any",
        help="Minimum memory of each device.",
        read=lambda value, _place: read_memory(value),
        schema=AMOUNT,
    ),
)
