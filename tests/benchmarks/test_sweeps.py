"""Early stops on the recorded runs of an example."""

import pytest

from benchmarks.sweeps import DEVICES, RULES, RUNS, measure, read_table, replay
from scheduling.core.early_stopping import EarlyStop, StopRule


def test_halving_finds_a_good_run_in_less_than_half_of_the_device_time() -> None:
    found = {one["name"]: one["value"] for one in measure(read_table())}

    assert len(read_table()) == RUNS
    for devices in DEVICES:
        assert found[f"sweep_asha_{devices}_device_time"] <= 40
        assert found[f"sweep_asha_{devices}_below_best"] <= 2


@pytest.mark.parametrize("devices", DEVICES)
def test_without_a_rung_all_runs_go_to_their_end(devices: int) -> None:
    runs = read_table()
    never = EarlyStop(rule=StopRule.ASHA, first_step=10**6)

    found = replay(runs, never, devices=devices)

    assert found.ended_early == 0
    assert found.accuracy == max(max(run.accuracies) for run in runs)
    assert found.steps == sum(run.steps[-1] for run in runs)
    assert set(RULES) == {"asha", "median"}
