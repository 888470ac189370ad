"""Simulation of a process with empty caches, inside the test process."""

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
"""Packages with cached functions: pages and their queries."""


@contextmanager
def fresh_process() -> Iterator[None]:
    """Empty all caches inside the block, and restore them afterwards."""
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
    """Yield cached functions by module and name, with their uncached versions."""
    for module in [module for name, module in sys.modules.items() if name.startswith(KEEPERS)]:
        for name, value in list(vars(module).items()):
            if isinstance(value, functools._lru_cache_wrapper):
                yield module, name, value.__wrapped__
