"""The replayed actions are those that PyTorch's pipeline schedules run."""

from types import SimpleNamespace

import pytest

from scheduling.core.grids.model import Schedule
from scheduling.core.grids.pipeline import stage_actions

pytestmark = pytest.mark.torch


class _Recorder:
    """A pipeline stage that records its passes and does nothing."""

    is_first = is_last = False

    def __init__(self, stage_index):
        self.stage_index = stage_index
        self.actions = []

    def forward_one_chunk(self, index, *args, **kwargs):
        self.actions.append((self.stage_index, False, index))
        return index

    def backward_one_chunk(self, index, *args, **kwargs):
        self.actions.append((self.stage_index, True, index))

    def __getattr__(self, name):
        return lambda *args, **kwargs: []


def _actions_of_pytorch(schedules, schedule, stage, stages, micro_batches):
    recorder = _Recorder(stage)
    methods = ("_initialize_stage", "_maybe_compute_loss", "_maybe_get_loss", "_update_losses")
    self = SimpleNamespace(
        _stage=recorder,
        _stages_forward_initialized=True,
        _num_stages=stages,
        _n_microbatches=micro_batches,
        _has_backward=True,
        scale_grads=True,
        _check_inputs=lambda args, kwargs, *rest: (args, kwargs),
        **{name: lambda *args, **kwargs: None for name in methods},
    )
    chunks: list[list[object]] = [[()] * micro_batches, [{}] * micro_batches]
    classes = {Schedule.GPIPE: "ScheduleGPipe", Schedule.ONE_F_ONE_B: "Schedule1F1B"}
    getattr(schedules, classes[schedule])._step_microbatches(self, *chunks)
    return recorder.actions


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("stages", range(1, 9))
def test_actions_are_those_of_pytorch(schedule, stages):
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

    for micro_batches in range(stages, 33):  # PyTorch needs at least as many as stages
        for stage in range(stages):
            found = stage_actions(schedule, stage, stages, micro_batches)

            assert found == _actions_of_pytorch(schedules, schedule, stage, stages, micro_batches)
