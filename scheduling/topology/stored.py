"""The newest stored topology, parsed once per version."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from scheduling.clusters.models import Topology
from scheduling.core.cells.spec import ClusterSpec

NO_CELLS: Final = ClusterSpec(cell_types={}, physical=(), virtual_clusters={})


class StoredTopology:
    """A stored version as a cache key: hashed by its number, compared by its content."""

    __slots__ = ("_json", "version")

    def __init__(self, version: int, spec: Mapping[str, Any]) -> None:
        """Create the key from a row."""
        self.version = version
        self._json = spec

    def __hash__(self) -> int:
        return hash(self.version)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, StoredTopology)
            and self.version == other.version
            and self._json == other._json
        )

    @property
    def spec(self) -> ClusterSpec:
        """The cells, without guarantees."""
        return _parsed(self)

    @classmethod
    def newest(cls, using: str = "default") -> "StoredTopology":
        """Load the current version in one query; return version 0 without cells if none exists."""
        rows = Topology.objects.using(using).order_by("-version")
        return cls(*(rows.values_list("version", "spec").first() or (0, {})))


@lru_cache(maxsize=8)
def _parsed(stored: StoredTopology) -> ClusterSpec:
    return ClusterSpec.from_json(stored._json) if stored.version else NO_CELLS
