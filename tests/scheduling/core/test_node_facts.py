"""Properties of the GPUs that a job may get on a node with several types."""

import pytest

from scheduling.core.jobspec import Requirements
from scheduling.core.values import NodeFacts

GIB = 1 << 30


def node(**facts) -> NodeFacts:
    return NodeFacts(
        name="n",
        placeable=True,
        healthy=True,
        has_docker=False,
        cpus_per_device=1.0,
        memory_per_device=1,
        gpus=Requirements(driver="550", device_memory=4 * GIB),
        **facts,
    )


MIXED = node(
    type_memory=(("A100", 80 * GIB), ("T4", 16 * GIB), ("T400-display", 4 * GIB)),
    nvlink=("A100",),
)


@pytest.mark.parametrize(
    ("types", "memory", "has_nvlink"),
    [
        ((), 16, False),
        (("A100",), 80, True),
        (("A100", "T4"), 16, False),
        (("T400-display",), 4, False),
        (("H100",), 0, False),
        (("A100", "H100"), 80, True),
    ],
)
def test_only_the_types_that_a_job_may_get_count(types, memory, has_nvlink) -> None:
    found = MIXED.gpus_for(types)

    assert (found.driver, found.device_memory) == ("550", memory * GIB)
    assert MIXED.has_nvlink(types) == has_nvlink


def test_a_node_of_one_type_has_the_facts_of_all_its_gpus() -> None:
    assert node().gpus_for(()).device_memory == 4 * GIB
    assert node(nvlink=("A100",)).has_nvlink(())
    assert not node().has_nvlink(())
