"""A process that has kept nothing of what was asked before, within the one that runs the tests."""

import functools
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

import pytest

from portal.web import viewing
from scheduling.clusters.queries import cluster, cluster_facts
from scheduling.usage.queries import usage

SUBJECTS: Final = ("clusters", "jobs", "runs", "rounds", "usage", "estimates", "what_if", "sweeps")
KEEPERS: Final = (
    "portal.api",
    "portal.templatetags",
    "portal.web",
    "scheduling.topology",
    *(f"scheduling.{subject}.queries" for subject in SUBJECTS),
)
"""Rooms whose functions remember what they gave: pages, and what pages read."""


@contextmanager
def fresh_process() -> Iterator[None]:
    """Answer everything inside the block from the rows alone; what is kept waits untouched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "_GIVEN", {})
        patch.setattr(cluster_facts, "_NEWEST", cluster_facts._Newest())
        patch.setattr(cluster_facts, "_DEVICES", cluster_facts._Devices())
        patch.setattr(viewing, "_KNOWN", OrderedDict())
        patch.setattr(usage, "_KEPT", usage._Kept())
        for module, name, made in _remembering():
            patch.setattr(module, name, made)
        yield


def _remembering() -> Iterator[tuple[ModuleType, str, Any]]:
    """Functions that remember, by where they are named, and as they are without their memory."""
    for module in [module for name, module in sys.modules.items() if name.startswith(KEEPERS)]:
        for name, value in list(vars(module).items()):
            if isinstance(value, functools._lru_cache_wrapper):
                yield module, name, value.__wrapped__
