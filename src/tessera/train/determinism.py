"""Settings under which the same work gives the same bits, and what stands against it.

Levels as in EasyScale (SC'23, section 3.3): D0, the same bits on the same devices; D1, on any
number of devices of one type; D2, on devices of several types.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List

LEVELS = ("D0", "D1", "D2")
PORTABLE_CPU = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
"""What processors of several kinds need before PyTorch is imported."""
_VENDOR_TUNED = ("Conv", "LazyConv", "RNN", "LSTM", "GRU", "BatchNorm", "SyncBatchNorm", "CTCLoss")


class NotDeterministicError(RuntimeError):
    """The wanted level cannot be kept; the message names every obstacle."""


def settle(level: str, *, threads: int, model: Any) -> Dict[str, Any]:
    """Make PyTorch deterministic in this process.

    Args:
        level: one of `LEVELS`.
        threads: of each operation; sums inside of kernels are split by them.
        model: the ``torch.nn.Module``, looked through for D2.

    Returns:
        The settings that a receipt names.

    Raises:
        NotDeterministicError: D2 is wanted and cannot be kept.
        ValueError: there is no such level.
    """
    import torch  # noqa: PLC0415 - jobs without PyTorch use the rest of the package

    if level not in LEVELS:
        raise ValueError(f"determinism is {level!r}: one of {', '.join(LEVELS)}")
    if level == "D2":
        found = obstacles(model)
        if found:
            raise NotDeterministicError(
                "D2 (the same bits on devices of several types) cannot be kept: "
                + "; ".join(found)
                + ". Use D1, or restrict the job to one device type."
            )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    if level == "D2":
        torch.backends.cudnn.enabled = False
        torch.backends.mkldnn.enabled = False
    return {"level": level, "threads": threads, "torch": str(torch.__version__)}


def obstacles(model: Any) -> List[str]:
    """Why the model's bits may differ between types of devices; empty when they do not.

    Kernels that vendors tune for each device (convolutions, recurrent layers, batch
    normalisation) choose their algorithm by it. Processors differ by their vector units unless
    PyTorch was told before its import to use none that not all have.
    """
    import torch  # noqa: PLC0415 - as above

    found = []
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind.rstrip("123d") in _VENDOR_TUNED:
            found.append(f"{name or 'the model'} is a {kind}, whose kernels depend on the device")
    if torch.backends.cpu.get_cpu_capability() != "DEFAULT":
        found.append(
            "PyTorch uses this processor's own vector units; set "
            + " ".join(f"{name}={value}" for name, value in PORTABLE_CPU.items())
            + " before it is imported"
        )
    return found
