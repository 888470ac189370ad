"""A made-up application with exact times, so that simulations can be checked by hand."""

from collections.abc import Callable
from itertools import product


def profiles(*types: str, seconds_per_sample: float = 0.01) -> Callable[[str], str | None]:
    """Files of ``cifar10``: a step takes its samples' time alone, whatever the size."""
    shapes = ["".join(shape) for n in (1, 2) for shape in product("1234", repeat=n)]
    placements = ["placement,local_bsz,step_time,sync_time"]
    placements += [
        f"{placement},{batch},{batch * seconds_per_sample},0"
        for placement in (*shapes, "444")
        for batch in (1, 32, 64, 128, 256, 1024)
    ]
    scalability = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n"
    validation = ["progress,iteration,metric,grad_sqr,grad_var"]
    validation += [f"{(epoch + 1) * 100},{(epoch + 1) * 100},0,1,0" for epoch in range(100)]
    files = {f"cifar10/placements-{name}.csv": "\n".join(placements) for name in types}
    files |= {f"cifar10/scalability-{name}.csv": scalability for name in types}
    files |= {
        f"cifar10/validation-{batch}.csv": "\n".join(validation) for batch in (128, 256, 512, 1024)
    }
    return files.get
