"""A brute-force check of the outcomes of a replay, from outcome lines and leases.

Its input is the configuration, the events and the devices of every gang. It shares no code with
the engine: it counts bins of quota and idle devices separately and tries all packings.
"""

from functools import lru_cache
from typing import Any

from scheduling.core.cells import GroupState
from scheduling.core.cells.replay import Replay
from tests.support.cell_cases import Config, Event


@lru_cache(maxsize=100_000)
def packs(bins: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Return whether all instances fit the bins, by exhaustive search."""
    if not sizes:
        return True
    return any(
        packs(tuple(sorted((*bins[:i], room - sizes[0], *bins[i + 1 :]))), sizes[1:])
        for i, room in enumerate(bins)
        if room >= sizes[0] and room not in bins[:i]
    )


class Oracle:
    """Checks one replay, event by event.

    Args:
        config: configuration of the case.
        replay: the replay under test.
    """

    def __init__(self, config: Config, replay: Replay) -> None:
        self.config = config
        self.replay = replay
        self.bad: set[str] = set()
        self.pods: dict[str, tuple[str, str, tuple[int, ...]]] = {}  # pod -> group, node, devices
        self.requests: dict[str, dict[str, Any]] = {}
        self.devices = _devices(config)
        self.waits = self.binds = self.preempts = 0

    def apply(self, event: Event) -> dict[str, Any]:
        """Replay one event and check its outcome."""
        expected = self._before(event)
        outcome = self.replay.apply(event)
        match outcome["kind"]:
            case "bind":
                self._bound(event, outcome, expected)
            case "preempt":
                self._preempting(event, outcome)
            case "wait":
                self.waits += 1
                assert expected is not True, f"P7: a place was there: {event} {outcome}"
            case "error":
                assert outcome["code"] == 400
                assert outcome["message"]
        if event.get("op") == "delete":
            self.pods.pop(event["pod"], None)
        elif event.get("op") in ("bad_node", "healthy_node"):
            (self.bad.add if event["op"] == "bad_node" else self.bad.discard)(event["node"])
        elif event.get("op") == "reconfigure" and outcome["kind"] == "ok":
            self.bad.clear()
        return outcome

    def _before(self, event: Event) -> bool | None:
        """Return whether the gang of a well-formed first pod must fit; None if unknown."""
        spec = event.get("spec")
        if event.get("op") != "schedule" or not isinstance(spec, dict) or self.bad:
            return None
        group = spec.get("affinityGroup")
        if not isinstance(group, dict) or event["pod"] == "spoiled" or "suggested" in str(group):
            return None
        if event.get("suggested_nodes") != "ALL" or group["name"] in self.replay.engine.gangs:
            return None
        sizes = tuple(
            sorted(
                (m["leafCellNumber"] for m in group["members"] for _ in range(m["podNumber"])),
                reverse=True,
            )
        )
        if spec["priority"] < 0:
            return self._fits_idle(spec, sizes)
        return self._fits_quota(spec, sizes)

    def _fits_idle(self, spec: dict[str, Any], sizes: tuple[int, ...]) -> bool:
        taken: dict[str, set[int]] = {}
        for view in self._views():
            for placed in view.placements:
                taken.setdefault(placed.node, set()).update(placed.devices)
        chains: dict[str, list[int]] = {}
        for node, (chain, kind, devices) in self.devices.items():
            if spec["leafCellType"] in ("", kind):
                chains.setdefault(chain, []).append(len(devices - taken.get(node, set())))
        return any(packs(tuple(sorted(bins)), sizes) for bins in chains.values())

    def _fits_quota(self, spec: dict[str, Any], sizes: tuple[int, ...]) -> bool:
        """Return all bins of the virtual cluster, without devices of gangs of equal or higher
        priority."""
        vc = spec["virtualCluster"]
        used: dict[str, int] = {}
        for view in self._views():
            if view.request.vc == vc and view.request.priority >= spec["priority"]:
                for placed in view.placements:
                    for leaf in placed.virtual:
                        used[leaf] = 1
        chains: dict[str, list[int]] = {}
        for chain, kind, pin, leaves in _bins(self.config, vc):
            if pin != spec["pinnedCellId"] or (not pin and spec["leafCellType"] not in ("", kind)):
                continue
            chains.setdefault(chain, []).append(sum(leaf not in used for leaf in leaves))
        return any(packs(tuple(sorted(bins)), sizes) for bins in chains.values())

    def _views(self) -> list[Any]:
        engine = self.replay.engine
        return [view for name in engine.gangs if (view := engine.group(name)) is not None]

    def _bound(self, event: Event, outcome: dict[str, Any], expected: bool | None) -> None:
        self.binds += 1
        node, devices = outcome["node"], tuple(outcome["leafCellIsolation"])
        group = event["spec"].get("affinityGroup") or {"name": f"test/{event['pod']}"}
        assert len(set(devices)) == len(devices) == event["spec"]["leafCellNumber"], "P8"
        assert set(devices) <= self.devices[node][2], "a device that is not there"
        for other, (_, where, taken) in self.pods.items():
            assert other == event["pod"] or where != node or not set(taken) & set(devices), "P1"
        state = self.replay.engine.gangs.get(group["name"])
        if state is not None and not any(g == group["name"] for g, _, _ in self.pods.values()):
            assert node not in self.bad, "a new gang on a bad node"
        if event.get("commit"):
            self.pods[event["pod"]] = (group["name"], node, devices)
            self.requests[group["name"]] = event["spec"]
        if expected is False:
            assert self._combines(group["name"]), f"more than the share: {event} {outcome}"

    def _combines(self, group: str) -> bool:
        """Return whether an instance is on several bins, which exceeds the guarantee and uses idle
        devices."""
        view = self.replay.engine.group(group)
        assert view is not None
        bins = [set(leaves) for _, _, _, leaves in _bins(self.config, view.request.vc)]
        return any(
            sum(bool(leaves & set(placed.virtual)) for leaves in bins) > 1
            for placed in view.placements
        )

    def _preempting(self, event: Event, outcome: dict[str, Any]) -> None:
        self.preempts += 1
        mine = self.replay.engine.gangs[event["spec"]["affinityGroup"]["name"]].request
        for pod in outcome["victims"]:
            name = self.pods[pod][0]
            gang = self.replay.engine.gangs[name]
            assert gang.state is GroupState.BEING_PREEMPTED
            if gang.guaranteed:
                assert gang.request.vc == mine.vc, "P9: another's guarantee"
                assert gang.request.priority < mine.priority, "P9: not lower"
            whole = {other for other, (owner, _, _) in self.pods.items() if owner == name}
            assert whole <= set(outcome["victims"]), "P8: a part of a gang"


def _devices(config: Config) -> dict[str, tuple[str, str, set[int]]]:
    """Node -> chain, device type, device indices; every node is complete."""
    types = config["physicalCluster"]["cellTypes"]
    found = {}
    for cell in config["physicalCluster"]["physicalCells"]:
        chain = cell["cellType"]
        level = chain
        while not types[level].get("isNodeLevel"):
            level = types[level]["childCellType"]
        size, kind = _size(types, level), _device(types, level)
        for node in cell.get("cellChildren", [cell]):
            found[str(node["cellAddress"])] = (chain, kind, set(range(size)))
    return found


def _size(types: dict[str, Any], kind: str) -> int:
    if kind not in types:
        return 1
    return int(types[kind]["childCellNumber"]) * _size(types, types[kind]["childCellType"])


def _device(types: dict[str, Any], kind: str) -> str:
    return _device(types, types[kind]["childCellType"]) if kind in types else kind


def _bins(config: Config, vc: str) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """(chain, device type, pinned id, virtual leaves) of each bin: a node, or a smaller cell."""
    types = config["physicalCluster"]["cellTypes"]
    share = config["virtualClusters"][vc]
    cells: list[tuple[str, str, str]] = []
    for entry in share["virtualCells"]:
        path = entry["cellType"].split(".")
        cells += [(path[0], path[-1], "")] * entry["cellNumber"]
    for entry in share["pinnedCells"]:
        cells.append(("A-rack", "A-node", entry["pinnedCellId"]))
    found = []
    for slot, (chain, level, pin) in enumerate(cells):
        kind = _device(types, level)
        bins = _subtrees(types, level, f"{vc}/{slot}", 0, top=True)
        found += [(chain, kind, pin, leaves) for leaves in bins]
    return found


def _subtrees(
    types: dict[str, Any], kind: str, address: str, index: int, *, top: bool
) -> list[tuple[str, ...]]:
    """Virtual leaves of each bin inside a cell."""
    if kind not in types or types[kind].get("isNodeLevel") or not _above_node(types, kind):
        return [tuple(_leaves(types, kind, address, index, top=top))]
    found = []
    for i in range(types[kind]["childCellNumber"]):
        at = i if top else index * types[kind]["childCellNumber"] + i
        child = types[kind]["childCellType"]
        found += _subtrees(types, child, f"{address}/{at}", at, top=False)
    return found


def _above_node(types: dict[str, Any], kind: str) -> bool:
    while kind in types:
        kind = types[kind]["childCellType"]
        if kind in types and types[kind].get("isNodeLevel"):
            return True
    return False


def _leaves(types: dict[str, Any], kind: str, address: str, index: int, *, top: bool) -> list[str]:
    if kind not in types:
        return [address]
    found = []
    for i in range(types[kind]["childCellNumber"]):
        at = i if top else index * types[kind]["childCellNumber"] + i
        found += _leaves(types, types[kind]["childCellType"], f"{address}/{at}", at, top=False)
    return found
