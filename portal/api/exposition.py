"""Numbers in the text format of Prometheus (0.0.4): escaped, finite, one family after another."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    """One number with its labels; ``suffix`` follows the family's name (``_sum``)."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one name: a gauge, a counter, a summary or a histogram."""

    name: str
    kind: str
    words: str
    samples: tuple[Sample, ...]


def exposition(families: Iterable[Family]) -> str:
    """The families as text; one without samples is left out."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    if not family.samples:
        return
    words = family.words.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {family.name} {words}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
        labels = f"{{{pairs}}}" if pairs else ""
        yield f"{family.name}{sample.suffix}{labels} {float(sample.value):.15g}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
