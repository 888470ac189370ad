"""A cluster of two types and a model that says the same of every job."""

from dataclasses import replace

import numpy as np

from scheduling.core.policy_interface import LinearModel, TypeInfo
from tests.strategies.policy_views import make_view

TYPES = {
    "a": TypeInfo(nodes=4, node_devices=4, speed=1.0),
    "b": TypeInfo(nodes=2, node_devices=8, speed=3.0),
}


class Known(LinearModel):
    """A step takes a second on one device of type ``a``, a third of it on one of type ``b``."""

    def __init__(self, power=0.7, restart=30.0, seen=None, most=64):
        super().__init__(TYPES)
        self.power = power
        self.restart = restart
        self.seen = {"a": 16, "b": 16} if seen is None else seen
        self.most = most

    def goodputs(self, jobs, shapes, *, within_request=False):
        row = [
            shape.devices**self.power * TYPES[shape.type].speed
            if shape.type in self.seen
            else np.nan
            for shape in shapes
        ]
        return np.tile(np.array(row), (len(jobs), 1))

    def profiled(self, job):
        return self.seen

    def most_devices(self, job, device_type):
        return self.most

    def restart_seconds(self, job, device_type=None):
        return self.restart


def known_view(*jobs, model=None, capacity=None, nodes=None):
    """A view of the cluster, under the model that knows everything unless told otherwise."""
    found = make_view(jobs, capacity or {"a": 16}, model=model or Known())
    types = TYPES
    if nodes is not None:
        types = {name: replace(info, nodes=nodes) for name, info in TYPES.items()}
    return replace(found, pool=replace(found.pool, types=types))
