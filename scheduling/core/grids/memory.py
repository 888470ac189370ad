"""Memory of one device of a stage."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.core.grids.profiles import LayerRun


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRules:
    """Memory use of a training.

    Attributes:
        state_factor: bytes of parameters, gradients and optimizer state together, per byte of
            parameters. 4 is Adam in fp32: the parameters, their gradients and two moments.
        sharded: whether the replicas of a stage divide parameters, gradients and optimizer state
            among them (FSDP) instead of storing them each.
        checkpointing: whether layers store only their input, and compute their activations again
            in the backward pass.
        margin: factor for fragmentation and memory outside the formula.
    """

    state_factor: float = 4.0
    sharded: bool = False
    checkpointing: bool = False
    margin: float = 1.1

    def stage_bytes(self, runs: Sequence[LayerRun], *, data: int, in_flight: int) -> float:
        """Return the maximum memory of one device of a stage, in bytes.

        The sizes of the runs are those of one device, so they are already divided by the tensor
        width and by the replicas. With checkpointing, each micro-batch in flight stores the
        outputs of the layers, and one layer at a time has its activations.

        Args:
            runs: layers of the stage, for the part of one replica.
            data: number of replicas.
            in_flight: maximum number of micro-batches whose activations are stored at once.
        """
        states = self.state_factor * sum(run.parameter_bytes for run in runs)
        if self.sharded:
            states /= data
        if self.checkpointing:
            stored = in_flight * sum(run.boundary_bytes for run in runs)
            stored += max(run.activation_bytes for run in runs)
        else:
            stored = in_flight * sum(run.activation_bytes for run in runs)
        temporary = max(run.temporary_bytes for run in runs)
        return self.margin * (states + stored + temporary)
