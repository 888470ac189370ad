"""Replay of recorded scheduling events pod by pod, with an adapter from pods to gangs.

The format of the cases is that of ``cases/cells``: ``schedule``, ``delete``, ``bad_node``,
``healthy_node``, ``reconfigure`` and ``assert`` events on one HiveD configuration. Expectations in
the cases are not read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduling.core.cells.engine import CellEngine
from scheduling.core.cells.errors import CellError, RequestError
from scheduling.core.cells.gangs import Gang
from scheduling.core.cells.hived import spec_from_hived
from scheduling.core.cells.requests import (
    Bind,
    Decision,
    GangRequest,
    GroupState,
    Member,
    Phase,
    Placed,
    Preempt,
    Wait,
)
from scheduling.core.cells.spec import mapping, sequence, text

NAMESPACE = "test"

Line = dict[str, Any]


@dataclass(slots=True)
class _Group:
    """A gang and its pods.

    Attributes:
        placements: decided placements of the complete gang.
        pods: index into the placements -> pod added there.
        waiting: pods that were scheduled while the gang was Preempting.
    """

    request: GangRequest
    placements: tuple[Placed, ...] = ()
    pods: dict[int, str] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)


def replay_document(document: Mapping[str, Any], only: set[str] | None = None) -> Iterator[Line]:
    """Yield the outcome lines of all cases of a document, or of those in ``only``."""
    configs = mapping(document.get("configs", {}), "configs")
    for number, case in enumerate(sequence(document.get("cases", []), "cases")):
        body = mapping(case, f"cases[{number}]")
        if only is None or str(body.get("id")) in only:
            named = body.get("config_name")
            config = body.get("config") or (configs.get(named) if isinstance(named, str) else {})
            yield from replay_case(body, config)


def replay_case(case: Mapping[str, Any], config: object) -> Iterator[Line]:
    """Yield the outcome lines of one case; a refused configuration has the index -1."""
    name = case.get("id", "")
    try:
        replay = Replay(config, healthy=bool(case.get("nodes_initially_healthy", True)))
        events = sequence(case.get("events", []), "events")
    except CellError as error:
        outcome = {"kind": "platform_error", "message": str(error)}
        yield {"case": name, "index": -1, "op": "init", "outcome": outcome, "groups": {}}
        return
    for index, event in enumerate(events):
        outcome = replay.apply(event)
        yield {
            "case": name,
            "index": index,
            "op": event.get("op", "") if isinstance(event, Mapping) else "",
            "outcome": outcome,
            "groups": replay.group_states(),
        }


class Replay:
    """An engine and its pods.

    Args:
        config: HiveD configuration.
        healthy: whether all nodes are healthy at the start.

    Raises:
        CellError: the configuration is invalid.
    """

    def __init__(self, config: object, *, healthy: bool = True) -> None:
        self.engine = CellEngine(spec_from_hived(config), healthy=healthy)
        self._groups: dict[str, _Group] = {}
        self._pods: dict[str, str] = {}  # pod -> group, in the order of allocation

    def apply(self, event: object) -> Line:
        """Apply an event and return its outcome; an invalid event has an error outcome."""
        try:
            return self._apply(mapping(event, "event"))
        except CellError as error:
            return {"kind": "error", "code": 400, "message": str(error)}

    def group_states(self) -> dict[str, Line]:
        """Return the state of each gang by name."""
        return {
            name: {
                "state": str(gang.state),
                "lazy_preempted": gang.lazy_by is not None,
            }
            for name, gang in self.engine.gangs.items()
        }

    def _apply(self, event: Mapping[str, Any]) -> Line:
        match event.get("op"):
            case "schedule":
                return self._schedule(event)
            case "delete":
                self._delete(text(event.get("pod"), "pod"))
            case "bad_node":
                self.engine.set_node_health(text(event.get("node"), "node"), healthy=False)
            case "healthy_node":
                self.engine.set_node_health(text(event.get("node"), "node"), healthy=True)
            case "reconfigure":
                return self._reconfigure(event.get("config"))
            case "assert":
                pass
            case other:
                raise RequestError(
                    f"unknown event {other!r}", field="op", value=other, remedy="see the format"
                )
        return {"kind": "ok"}

    def _schedule(self, event: Mapping[str, Any]) -> Line:
        pod = text(event.get("pod"), "pod")
        request, size = parse_pod(event.get("spec"), pod)
        phase = Phase.PREEMPTING if event.get("phase") == "Preempting" else Phase.FILTERING
        nodes = _suggested(event.get("suggested_nodes"))
        group = self._groups.get(request.group)
        if group is not None and group.pods:
            return self._bind(group, pod, size, commit=bool(event.get("commit")))
        before = self.engine.gangs.get(request.group)
        decision = self.engine.schedule(request, phase=phase, suggested=nodes)
        self._remember(before, decision, pod)
        match decision:
            case Wait():
                return {
                    "kind": "wait",
                    "reason": decision.reason,
                    "code": str(decision.code),
                    "message": decision.text,
                }
            case Preempt():
                return self._preempt(decision)
            case Bind():
                return self._first_bind(decision, pod, size, commit=bool(event.get("commit")))

    def _first_bind(self, decision: Bind, pod: str, size: int, *, commit: bool) -> Line:
        group = _Group(decision.request, decision.placements)
        outcome = self._bind(group, pod, size, commit=commit)
        if commit:
            group.placements = self.engine.commit(decision)
            self._groups[decision.request.group] = group
        return outcome

    def _bind(self, group: _Group, pod: str, size: int, *, commit: bool) -> Line:
        for index, placed in enumerate(group.placements):
            if len(placed.devices) == size and index not in group.pods:
                if commit:
                    group.pods[index] = pod
                    self._pods[pod] = group.request.group
                return {
                    "kind": "bind",
                    "node": placed.node,
                    "leafCellIsolation": list(placed.devices),
                }
        declared = sum(len(placed.devices) == size for placed in group.placements)
        raise RequestError(
            f"Requesting more pods than the configured number for {size} leaf cells"
            f" ({declared} total) in affinity group {group.request.group}",
            field="affinityGroup.members",
            value=size,
            remedy="declare more pods of that size",
        )

    def _remember(self, before: Gang | None, decision: Decision, pod: str) -> None:
        """Add a pod to the pods of its Preempting gang; without them the preemption ends."""
        name = decision.request.group
        gang = self.engine.gangs.get(name)
        if gang is not before:  # another pod's claims have ended
            self._groups.pop(name, None)
        if gang is not None and gang.state is GroupState.PREEMPTING:
            self._groups.setdefault(name, _Group(gang.request)).waiting.add(pod)

    def _preempt(self, decision: Preempt) -> Line:
        groups = [self._groups[name] for name in decision.victims if name in self._groups]
        victims = [pod for group in groups for pod in group.pods.values()]
        node = decision.victim_nodes[0] if decision.victim_nodes else ""
        return {"kind": "preempt", "node": node, "victims": sorted(victims)}

    def _delete(self, pod: str) -> None:
        name = self._pods.pop(pod, None)
        if name is not None:
            group = self._groups[name]
            for index in [i for i, p in group.pods.items() if p == pod]:
                del group.pods[index]
            if not group.pods:
                del self._groups[name]
                self.engine.release(name)
            return
        for name, group in list(self._groups.items()):
            if pod in group.waiting:
                group.waiting.discard(pod)
                if not group.waiting and not group.pods:
                    del self._groups[name]
                    gang = self.engine.gangs.get(name)
                    if gang is not None and gang.state is GroupState.PREEMPTING:
                        self.engine.release(name)

    def _reconfigure(self, config: object) -> Line:
        try:
            engine = CellEngine(spec_from_hived(config))
        except CellError as error:
            return {"kind": "platform_error", "message": str(error)}
        before, self.engine = self.engine, engine
        self._groups = {name: group for name, group in self._groups.items() if group.pods}
        for name in dict.fromkeys(self._pods.values()):
            group = self._groups[name]
            gang = before.gangs[name]
            keeps = gang.guaranteed or not group.request.guaranteed
            placements = [
                placed
                if keeps
                else Placed(
                    member=placed.member,
                    node=placed.node,
                    devices=placed.devices,
                    leaves=placed.leaves,
                    virtual=(),
                    chain=placed.chain,
                )
                for placed in group.placements
            ]
            engine.restore(group.request, placements)
            group.waiting.clear()
        return {"kind": "ok"}


def _suggested(value: object) -> list[str] | None:
    """Parse the names of the suggested nodes; None for all nodes."""
    if value is None or value == "ALL":
        return None
    return [text(node, "suggested_nodes") for node in sequence(value, "suggested_nodes")]


def parse_pod(document: object, pod: str) -> tuple[GangRequest, int]:
    """Parse the gang of a pod, and the size of the pod in devices.

    Raises:
        RequestError: the pod can never be scheduled as written.
    """
    if not isinstance(document, Mapping):
        raise RequestError("Pod annotation does not contain a scheduling spec", field="spec")
    spec = _modern(document)
    size = _int(spec, "leafCellNumber", 0)
    vc = _str(spec, "virtualCluster")
    priority = _int(spec, "priority", 0)
    _check_pod(vc, priority, size)
    name, members = _group(spec, pod, size)
    if not any(leaf_count == size for leaf_count in members):
        raise RequestError(
            f"AffinityGroup.Members does not contains current Pod: {size}",
            field="affinityGroup.members",
            value=size,
            remedy="declare a member of the pod's size",
        )
    leaf_type = _str(spec, "leafCellType")
    request = GangRequest(
        group=name,
        vc=vc,
        priority=priority,
        members=tuple(Member(count=n, leaf_count=leaf) for leaf, n in members.items()),
        leaf_types=(leaf_type,) if leaf_type else (),
        pinned=_str(spec, "pinnedCellId") or None,
        lazy_preemption=_bool(spec, "lazyPreemptionEnable", default=False),
        ignore_suggested=_bool(spec, "ignoreK8sSuggestedNodes", default=True),
    )
    return request, size


def _modern(document: Mapping[Any, Any]) -> dict[str, Any]:
    legacy = {
        "gpuType": "leafCellType",
        "gpuNumber": "leafCellNumber",
        "gpuIsolation": "leafCellIsolation",
        "physicalGpuIndices": "physicalLeafCellIndices",
    }
    return {legacy.get(str(key), str(key)): value for key, value in document.items()}


def _check_pod(vc: str, priority: int, size: int) -> None:
    if not vc:
        raise RequestError("VirtualCluster is empty", field="virtualCluster", remedy="specify one")
    GangRequest(group="-", vc=vc, priority=priority, members=(Member(count=1, leaf_count=1),))
    if size <= 0:
        raise RequestError(
            "LeafCellNumber is non-positive",
            field="leafCellNumber",
            value=size,
            remedy="request at least 1",
        )


def _group(spec: Mapping[str, Any], pod: str, size: int) -> tuple[str, dict[int, int]]:
    """Name of the gang and its pods by size."""
    body = spec.get("affinityGroup")
    if body is None:
        return f"{NAMESPACE}/{pod}", {size: 1}
    if not isinstance(body, Mapping):
        raise RequestError("AffinityGroup is not a mapping", field="affinityGroup", value=body)
    name = _str(body, "name")
    if not name:
        raise RequestError("AffinityGroup.Name is empty", field="affinityGroup.name")
    members: dict[int, int] = {}
    entries = body.get("members") or []
    if not isinstance(entries, list):
        raise RequestError("AffinityGroup.Members is not a list", field="affinityGroup.members")
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise RequestError("a member is not a mapping", field="affinityGroup.members")
        fields = _modern(entry)
        count, leaves = _int(fields, "podNumber", 0), _int(fields, "leafCellNumber", 0)
        if count <= 0:
            raise RequestError(
                "AffinityGroup.Members has non-positive PodNumber", field="podNumber", value=count
            )
        if leaves <= 0:
            raise RequestError(
                "AffinityGroup.Members has non-positive LeafCellNumber",
                field="leafCellNumber",
                value=leaves,
            )
        members[leaves] = members.get(leaves, 0) + count
    return name, members


def _int(body: Mapping[Any, Any], key: str, default: int) -> int:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{key} is not an integer", field=key, value=value)
    return value


def _str(body: Mapping[Any, Any], key: str) -> str:
    value = body.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestError(f"{key} is not a string", field=key, value=value)
    return value


def _bool(body: Mapping[Any, Any], key: str, *, default: bool) -> bool:
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RequestError(f"{key} is neither true nor false", field=key, value=value)
    return value
