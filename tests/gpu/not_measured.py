"""What no test measures on real GPUs; ``docs/gpu-machine.md`` has the same list."""

from typing import Final

NOT_MEASURED: Final = (
    "Device sharing: memory limits of MPS, slowdown of a holder by a guest, and the time in which "
    "a guest frees its memory.",
    "Containers: device requests and CDI of a real NVIDIA Container Toolkit, the nvidia runtime, "
    "and the loss of devices after `systemctl daemon-reload`.",
    "RDMA in containers, and NCCL over several nodes.",
    "MIG: files and UUIDs of instances on a real GPU.",
    "Faults: a lost GPU, Xid messages, pending row remaps, a driver that hangs, and faults of the "
    "fabric manager on machines with NVSwitch.",
    "GPUs of AMD and Ascend.",
)
