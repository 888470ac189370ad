"""The jobs of a simulation, whatever format they were read from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from scheduling.core.policy_interface import Kind, Scale

#: The text of a file by its path below the profiles' directory; None: there is no such file.
FileReader: TypeAlias = Callable[[str], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job of a trace.

    Attributes:
        submitted: seconds from the trace's start.
        devices: devices that were asked for.
        duration: seconds that it runs on what was asked for; None: profiles tell.
        steps: iterations that it makes at its batch size; None: the trace does not say.
        application: the program, by the name under which profiles know it.
        batch: requested total batch size.
        estimate: run time that the owner declares, in seconds.
        deadline: seconds from the trace's start.
        types: device types that will do; empty: any.
        scale: sizes at which a job that is not rigid can run; None: the rules say.
        priority: higher ones come first under policies that look at it.
        extra: what only one format has.
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
    scale: Scale | None = None
    priority: int = 0
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The jobs in the order in which they stand in their file.

    Attributes:
        left_out: how many lines of the file are no job that can be simulated, by the reason.
    """

    name: str
    format: str
    jobs: tuple[TraceJob, ...]
    left_out: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What a policy may see in a simulation.

    Attributes:
        oracle: true performance instead of what the job itself has shown.
        size_aware: how much work is left is declared.
        shared_history: jobs of one application share what was observed.
    """

    oracle: bool = False
    size_aware: bool = False
    shared_history: bool = False


#: What the job itself has shown, and nothing else.
NO_KNOWLEDGE: Final = Knowledge()
