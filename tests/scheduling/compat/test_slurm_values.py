"""Texts of Slurm's options as numbers."""

import pytest

from scheduling.compat.slurm.values import read_gres


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:4", {"": 4}),
        ("gpu:2k", {"": 2048}),
        ("gpu:2080ti:2", {"2080ti": 2}),
        ("gpu:3090", {"": 3090}),
        ("gpu:1g.10gb:2(S:0)", {"1g.10gb": 2}),
        ("gpu:a100:1,gpu:a100:2", {"a100": 3}),
    ],
)
def test_devices_are_counted_by_type(text: str, gpus: dict[str, int]) -> None:
    assert read_gres(text) == (gpus, [])
