"""Errors in the input of a simulation."""


class SimulationError(ValueError):
    """The requested simulation cannot be run."""


class TraceError(SimulationError):
    """A file of a trace or a profile is wrong.

    Attributes:
        source: the file.
        line: the line, counted from 1; 0: the file as a whole.
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
