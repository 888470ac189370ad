"""Hybrid jobs, their profiles and plans."""

from typing import Any

from scheduling.core.round.parallel_plans import GridRow, rows_to_json
from scheduling.jobs.models import Job
from scheduling.parallelism.models import ModelProfile
from tenants.models import Tenant
from tessera.train.hybrid.plans import ParallelPlan, Stage
from tests.factories.cluster import NOW, make_job

STAGES = [{"first": 0, "last": 3, "data": 2}, {"first": 3, "last": 6, "tensor": 2}]

BATCH: dict[str, Any] = {"batch": 32, "micro_batches": 4}


def layer_run(tensor: int, samples: int, scale: float = 1.0) -> dict[str, Any]:
    seconds = scale * samples / tensor
    return {
        "tensor": tensor,
        "samples": samples,
        "forward_s": 1e-3 * seconds,
        "backward_s": 2e-3 * seconds,
        "update_s": 1e-4,
        "parameter_bytes": 1 << 20,
        "activation_bytes": 1 << 20,
        "temporary_bytes": 1 << 16,
        "boundary_bytes": 1 << 12,
        "flops": 1e9 * seconds,
        "exchanges": [["all_reduce", 4096, 2], ["all_reduce_backward", 4096, 2]] * (tensor > 1),
    }


def profile_document(layers: int = 8) -> dict[str, Any]:
    runs = [layer_run(tensor, samples) for tensor in (1, 2, 4) for samples in (8, 4, 2, 1)]
    return {
        "version": 1,
        "software": {"torch": "2.13.0"},
        "device_memory": 1 << 34,
        "layers": ["Block"] * layers,
        "classes": [{"name": "Block", "runs": runs}],
        "links": [
            [name, 2, size, 1e-4 + size / 1e9]
            for name in ("send", "all_reduce")
            for size in (4096, 1 << 20)
        ],
        "state_factor": 4.0,
        "recompute": False,
        "seconds": 6.0,
    }


def hybrid_job(name: str = "gpt", worker: dict[str, Any] | None = None, **parallel: Any) -> Job:
    return make_job(
        name=name,
        parallel={**BATCH, **parallel},
        elastic={"mode": "hybrid", "min": 1, "max": 8},
        worker={"devices": 4, **(worker or {})},
    )


def plan_with(stages: int) -> ParallelPlan:
    cut = [6 * k // stages for k in range(stages + 1)]
    parts = tuple(Stage(cut[k], cut[k + 1], data=4 // stages) for k in range(stages))
    return ParallelPlan(parts, micro_batches=4, batch=32)


def profiled(job: Job, seconds: dict[int, float], *, tenant: Tenant | None = None) -> None:
    rows = [
        GridRow(
            type="a",
            devices=4,
            stages=stages,
            state="possible",
            step_seconds=step,
            plan=plan_with(stages).document(),
        )
        for stages, step in seconds.items()
    ]
    ModelProfile.objects.create(
        tenant=tenant or job.tenant,
        fingerprint=job.model_fingerprint,
        device_type="a",
        requested_at=NOW,
        measured_at=NOW,
        grids=rows_to_json(rows),
    )
