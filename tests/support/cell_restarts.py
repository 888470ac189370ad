"""A restart of the cell engine."""

from scheduling.core.cells import CellEngine, ClusterSpec, GroupState


def restarted_engine(before: CellEngine, spec: ClusterSpec) -> CellEngine:
    """Return a new engine with the running gangs of another one, as after a restart."""
    after = CellEngine(spec)
    for node in before.bad_nodes:
        after.set_node_health(node, healthy=False)
    for node, device in before.bad_devices:
        after.set_device_health(node, device, healthy=False)
    for name, gang in before.gangs.items():
        if gang.state is not GroupState.PREEMPTING:
            view = before.group(name)
            assert view is not None
            after.restore(gang.request, view.placements)
    return after
