"""Refusals that are remembered: a gang of the same shape waits for the same reason."""

from scheduling.core.cells.requests import GangRequest, Wait

Shape = tuple[object, ...]


class Refusals:
    """Answers that hold until something is freed; nothing that only takes more can change them."""

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: dict[Shape, Wait] = {}

    def recall(self, request: GangRequest, nodes: frozenset[str] | None) -> Wait | None:
        """The refusal of a gang of this shape on these nodes, addressed to this one."""
        if not self._waits:
            return None
        known = self._waits.get(_shape(request, nodes))
        return _readdress(known, request) if known is not None else None

    def keep(self, wait: Wait, nodes: frozenset[str] | None) -> None:
        """Remember an answer for others of its shape."""
        self._waits[_shape(wait.request, nodes)] = wait

    def forget(self) -> None:
        """Something was freed."""
        self._waits.clear()


def _shape(request: GangRequest, nodes: frozenset[str] | None) -> Shape:
    """What a refusal depends on besides the books."""
    return (
        request.vc,
        request.priority,
        request.members,
        request.leaf_types,
        request.pinned,
        request.within,
        nodes,
    )


def _readdress(known: Wait, request: GangRequest) -> Wait:
    """The same refusal for another gang of the same shape."""
    mine = request.group
    others = known.blocked_by
    if mine in others:
        others = tuple(name for name in others if name != mine)
    # By hand: a round says this to hundreds of gangs, and ``replace`` takes five times as long.
    return Wait(
        request=request,
        code=known.code,
        message=known.message,
        reason=known.reason,
        blocked_by=others,
        unblock=known.unblock,
        chain=known.chain,
        level=known.level,
        quota=known.quota,
        nodes=known.nodes,
        counts=known.counts,
        free=known.free,
    )
