"""Errors of the cell engine, with field, value and remedy."""


class CellError(ValueError):
    """An invalid specification, request or placement.

    Attributes:
        field: path of the offending field, for example ``virtual_clusters.vision.quotas[0]``.
        value: the offending value as received.
        remedy: how to correct it, one sentence.
        sentence: the message for users, if ``message`` uses the terms of HiveD.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str,
        value: object = None,
        remedy: str = "",
        sentence: str = "",
    ) -> None:
        super().__init__(message)
        self.field = field
        self.value = value
        self.remedy = remedy
        self.sentence = sentence or f"{message[:1].upper()}{message[1:].rstrip('.')}."


class SpecError(CellError):
    """An invalid cluster specification."""


class InfeasibleSpecError(SpecError):
    """A specification whose quotas do not fit the physical cells; the message is the witness."""


class RequestError(CellError):
    """A request that can never be scheduled as written."""


class StaleDecisionError(CellError):
    """A decision on a state that has changed since."""
