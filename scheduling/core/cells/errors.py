"""The refusals of the cell engine: what was wrong, with which value, and what to do about it."""


class CellError(ValueError):
    """A refused specification, request or placement.

    Attributes:
        field: path of the offending field, for example ``virtual_clusters.vision.quotas[0]``.
        value: the offending value as received.
        remedy: what the sender can do about it, one sentence.
        sentence: the message in words for people, where the message is in those of schedulers.
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
    """A cluster specification that cannot be built."""


class InfeasibleSpecError(SpecError):
    """A specification whose quotas do not fit the physical cells; the message is the witness."""


class RequestError(CellError):
    """A request that can never be scheduled as written."""


class StaleDecisionError(CellError):
    """A decision that was taken on a state that has moved since."""
