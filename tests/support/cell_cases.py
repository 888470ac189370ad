"""Random event traces on small clusters, in the format of the recorded cases.

The clusters have the shapes of recorded cases: single nodes, racks, quotas at, above and below
node level, single devices as quota, a pinned node.
"""

import random
from typing import Any, Final

Config = dict[str, Any]
Event = dict[str, Any]

FAMILIES: Final = ("same", "priorities", "lazy", "borrowing", "failing", "spoiled")
_GANGS: Final = (
    ((1, 1),),
    ((1, 2),),
    ((1, 4),),
    ((2, 1),),
    ((2, 2),),
    ((2, 4),),
    ((3, 1),),
    ((1, 1), (1, 2)),
    ((2, 1), (1, 3)),
    ((1, 2), (2, 3)),
    ((2, 2), (2, 3)),
    ((4, 2), (3, 3)),
    ((1, 8),),
    ((2, 8),),
)
_JUNK: Final[tuple[object, ...]] = (
    None, True, -1, 0, 2.5, "", "x", "nobody", [], {}, [1], {"name": 3}, 10**9,
)  # fmt: skip


def _types(name: str, *rungs: tuple[str, int, bool]) -> dict[str, Any]:
    """Return cell types above the device ``name``, lowest first: (suffix, children, is a node)."""
    found: dict[str, Any] = {}
    child = name
    for suffix, count, is_node in rungs:
        body: dict[str, Any] = {"childCellType": child, "childCellNumber": count}
        if is_node:
            body["isNodeLevel"] = True
        child = f"{name}-{suffix}"
        found[child] = body
    return found


def _rack(kind: str, *nodes: str, pin: str = "") -> dict[str, Any]:
    children: list[dict[str, Any]] = [{"cellAddress": node} for node in nodes]
    if pin:
        children[0]["pinnedCellId"] = pin
    return {"cellType": kind, "cellChildren": children}


def _share(*cells: tuple[str, int], pins: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "virtualCells": [{"cellType": kind, "cellNumber": count} for kind, count in cells],
        "pinnedCells": [{"pinnedCellId": pin} for pin in pins],
    }


def _config(types: dict[str, Any], cells: list[dict[str, Any]], vcs: dict[str, Any]) -> Config:
    return {
        "physicalCluster": {"cellTypes": types, "physicalCells": cells},
        "virtualClusters": vcs,
    }


_EIGHT = _types("A", ("pair", 2, False), ("quad", 2, False), ("node", 2, True), ("rack", 2, False))
_FOUR = _types("A", ("pair", 2, False), ("node", 2, True))
_RACKS = _types("B", ("pair", 2, False), ("node", 2, True), ("rack", 2, False))
_FLAT = _types("A", ("node", 4, True), ("rack", 4, False))

CONFIGS: Final[dict[str, Config]] = {
    "parts": _config(
        _EIGHT,
        [_rack("A-rack", "a0", "a1"), _rack("A-rack", "a2", "a3"), _rack("A-rack", "a4", "a5")],
        {
            "v1": _share(("A-rack.A-node", 2), ("A-rack.A-node.A-quad", 2)),
            "v2": _share(("A-rack.A-node", 1), ("A-rack.A-node.A-quad.A-pair", 2)),
            "v3": _share(("A-rack.A-node", 1)),
        },
    ),
    "types": _config(
        {**_FOUR, **_RACKS},
        [
            *({"cellType": "A-node", "cellAddress": f"a{i}"} for i in range(4)),
            _rack("B-rack", "b0", "b1"),
            _rack("B-rack", "b2", "b3"),
        ],
        {
            "v1": _share(("A-node", 2), ("B-rack.B-node", 1)),
            "v2": _share(("A-node", 2), ("B-rack", 1), ("B-rack.B-node.B-pair", 2)),
        },
    ),
    "devices": _config(
        _FLAT,
        [_rack("A-rack", "a0", "a1", "a2", "a3")],
        {
            "v1": _share(("A-rack.A-node", 1), ("A-rack.A-node.A", 3)),
            "v2": _share(("A-rack.A-node", 1), ("A-rack.A-node.A", 4)),
        },
    ),
    "pinned": _config(
        _EIGHT,
        [_rack("A-rack", "a0", "a1", pin="lab"), _rack("A-rack", "a2", "a3")],
        {"v1": _share(("A-rack.A-node", 1), pins=("lab",)), "v2": _share(("A-rack.A-node", 2))},
    ),
}


def events_of(config: Config, family: str, seed: int, length: int = 60) -> list[Event]:
    """Return a trace of one family; deterministic."""
    return _Trace(config, family, random.Random(seed)).events(length)


class _Trace:
    def __init__(self, config: Config, family: str, chance: random.Random) -> None:
        self.config, self.family, self.chance = config, family, chance
        self.live: list[list[str]] = []
        self.bad: list[str] = []
        cells = config["physicalCluster"]["physicalCells"]
        self.nodes = [
            str(node["cellAddress"]) for cell in cells for node in cell.get("cellChildren", [cell])
        ]
        self.types = sorted(
            {t.split("-")[0] for t in config["physicalCluster"]["cellTypes"]} | {""}
        )

    def events(self, length: int) -> list[Event]:
        """Return a number of events, in complete gangs."""
        found: list[Event] = []
        number = 0
        while len(found) < length:
            draw = self.chance.random()
            if self.live and draw < 0.4:
                found += self._delete()
            elif self.family == "failing" and draw < 0.55:
                found.append(self._health())
            elif draw > 0.98:
                found.append({"op": "reconfigure", "config": self.config})
            else:
                number += 1
                found += self._submit(number)
        return found

    def _delete(self) -> list[Event]:
        pods = self.live.pop(self.chance.randrange(len(self.live)))
        return [{"op": "delete", "pod": pod} for pod in pods]

    def _health(self) -> Event:
        if self.bad and self.chance.random() < 0.6:
            node = self.bad.pop(self.chance.randrange(len(self.bad)))
            return {"op": "healthy_node", "node": node}
        node = self.chance.choice(self.nodes)
        if node not in self.bad:
            self.bad.append(node)
        return {"op": "bad_node", "node": node}

    def _submit(self, number: int) -> list[Event]:
        chance, family = self.chance, self.family
        vc = chance.choice(sorted(self.config["virtualClusters"]))
        pins = [p["pinnedCellId"] for p in self.config["virtualClusters"][vc]["pinnedCells"]]
        priorities = {"same": (0,), "borrowing": (-1, -1, 0, 1)}.get(family, (-1, 0, 1, 2))
        priority = chance.choice(priorities)
        members = chance.choice(_GANGS)
        spec = {
            "virtualCluster": vc,
            "priority": priority,
            "lazyPreemptionEnable": family in {"lazy", "failing"} and chance.random() < 0.5,
            "pinnedCellId": chance.choice([*pins, ""]) if priority >= 0 else "",
            "leafCellType": chance.choice(self.types),
            "ignoreK8sSuggestedNodes": True,
            "affinityGroup": {
                "name": f"g{number}",
                "members": [{"podNumber": n, "leafCellNumber": size} for n, size in members],
            },
        }
        if spec["pinnedCellId"]:
            spec["leafCellType"] = ""
        sizes = [size for count, size in members for _ in range(count)]
        pods = [f"g{number}-{i}" for i in range(len(sizes))]
        self.live.append(pods)
        found: list[Event] = [
            {
                "op": "schedule",
                "pod": pod,
                "phase": "Preempting",
                "suggested_nodes": "ALL",
                "spec": {**spec, "leafCellNumber": size},
                "commit": True,
            }
            for pod, size in zip(pods, sizes, strict=True)
        ]
        if family == "spoiled" and chance.random() < 0.5:
            found.insert(chance.randrange(len(found) + 1), self._spoil(chance.choice(found)))
        return found

    def _spoil(self, event: Event) -> Event:
        chance = self.chance
        junk = chance.choice(_JUNK)
        kind = chance.randrange(4)
        if kind == 0:
            return {**event, chance.choice(("op", "spec", "suggested_nodes", "pod")): junk}
        if kind == 1:
            return {"op": "reconfigure", "config": junk}
        spec = dict(event["spec"])
        if kind == 2:
            spec["affinityGroup"] = {"name": "spoiled", "members": [junk]}
        else:
            spec[chance.choice(sorted(spec))] = junk
        return {**event, "pod": "spoiled", "spec": spec}
