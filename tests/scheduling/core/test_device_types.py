"""Names of device types: aliases that follow from the name, and those that admins set."""

import pytest

from scheduling.core.device_types import automatic_aliases, types_named, usable

A100, SMALL, MIG = (
    "NVIDIA-A100-SXM4-80GB",
    "NVIDIA-A100-SXM4-40GB",
    "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
)
TYPES = (A100, SMALL, MIG, "Tesla-T4", "NVIDIA-GeForce-RTX-3090", "cpu-a", "T400-display")


@pytest.mark.parametrize(
    ("device_type", "aliases"),
    [
        (A100, {"a100", "a100-80g", "a100-80gb", "a100-sxm4", "a100-sxm4-80gb"}),
        (
            "NVIDIA-H100-80GB-HBM3",
            {"h100", "h100-80g", "h100-80gb", "h100-hbm3", "h100-80gb-hbm3"},
        ),
        (MIG, {"a100-1g.10gb", "a100-sxm4-80gb-mig-1g.10gb"}),
        ("NVIDIA-GeForce-RTX-3090", {"rtx-3090"}),
        ("Tesla-T4", {"t4"}),
        ("T400-display", set()),
        ("NVIDIA", set()),
    ],
)
def test_short_names_follow_from_the_usual_form(device_type: str, aliases: set[str]) -> None:
    assert automatic_aliases(device_type) == aliases


ALIASES = {"fast": ["H200", A100], "lost": ["H100", "H200"]}


@pytest.mark.parametrize(
    ("name", "types"),
    [
        (A100, (A100,)),
        (A100.lower(), (A100,)),
        ("A100", (SMALL, A100)),
        ("a100-80g", (A100,)),
        ("A100-1g.10gb", (MIG,)),
        ("T4", ("Tesla-T4",)),
        ("fast", (A100,)),
        ("lost", ("H100", "H200")),
        ("T400", ()),
        ("V100", ()),
    ],
)
def test_a_name_means_the_types_of_its_alias(name: str, types: tuple[str, ...]) -> None:
    assert types_named(name, TYPES, ALIASES) == types


def test_an_alias_of_an_admin_comes_before_an_automatic_one_and_after_a_type() -> None:
    aliases = {"a100": [A100], "cpu-a": ["Tesla-T4"]}

    assert types_named("A100", TYPES, aliases) == (A100,)
    assert types_named("CPU-A", TYPES, aliases) == ("cpu-a",)


def test_a_job_without_types_gets_display_gpus_only_where_nothing_else_is() -> None:
    assert usable(["A", "B-display"]) == ("A",)
    assert usable(["B-display"]) == ("B-display",)
