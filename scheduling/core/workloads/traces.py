"""The jobs of a simulation, independent of their file format, and errors in its input."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from scheduling.core.policy_interface import Kind, Scale

#: Returns the text of a file by its path below the profiles' directory; None if it does not exist.
FileReader: TypeAlias = Callable[[str], str | None]


class SimulationError(ValueError):
    """The requested simulation cannot be run."""


class TraceError(SimulationError):
    """A file of a trace or a profile is malformed.

    Attributes:
        source: name of the file.
        line: line number from 1; 0 for the complete file.
    """

    def __init__(self, source: str, line: int, message: str) -> None:
        self.source = source
        self.line = line
        where = f"{source}:{line}" if line else source
        self._message = message
        super().__init__(f"{where}: {message}")

    def __reduce__(self) -> tuple[type["TraceError"], tuple[str, int, str]]:
        """Support for pickling between processes."""
        return type(self), (self.source, self.line, self._message)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job of a trace.

    Attributes:
        submitted: seconds from the trace's start.
        devices: requested devices.
        duration: seconds at its requested size; None if profiles define it.
        steps: iterations at its batch size; None if unknown.
        application: name of the program in profiles.
        batch: requested total batch size.
        estimate: declared run time in seconds.
        deadline: seconds from the trace's start.
        types: usable device types; empty for any.
        wish: requested device type of a job that can use others, too; empty for none.
        scale: sizes of an elastic job; None if the rules set them.
        priority: higher ones come first under policies that use it.
        extra: fields that only one format has.
    """

    name: str
    submitted: float
    devices: int
    duration: float | None = None
    steps: float | None = None
    application: str = ""
    batch: int | None = None
    kind: Kind = Kind.RIGID
    tenant: str = ""
    user: str = ""
    estimate: float | None = None
    deadline: float | None = None
    types: tuple[str, ...] = ()
    wish: str = ""
    scale: Scale | None = None
    priority: int = 0
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The jobs in the order of their file.

    Attributes:
        left_out: number of lines without a valid job, by the reason.
    """

    name: str
    format: str
    jobs: tuple[TraceJob, ...]
    left_out: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Knowledge of a policy in a simulation.

    Attributes:
        oracle: true performance instead of the job's own observations.
        size_aware: the remaining work is declared.
        shared_history: jobs of one application share observations.
    """

    oracle: bool = False
    size_aware: bool = False
    shared_history: bool = False


#: A policy knows only the observations of the job itself.
NO_KNOWLEDGE: Final = Knowledge()
