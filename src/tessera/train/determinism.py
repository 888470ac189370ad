"""Settings for bitwise reproducible training, and a check for operations that prevent it.

Levels as in EasyScale (SC'23, section 3.3): D0, the same bits on the same devices; D1, on any
number of devices of one type; D2, on devices of several types.

D2 is checked twice: on the model's modules before the first step, and on the
operations that its first step calls, so that a convolution in a function is found.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Dict, Iterator, List

from tessera.train.reports import report_event

LEVELS = ("D0", "D1", "D2")
PORTABLE_CPU = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
"""Variables that processors of several kinds need before PyTorch is imported."""
_VENDOR_TUNED = ("Conv", "LazyConv", "RNN", "LSTM", "GRU", "BatchNorm", "SyncBatchNorm", "CTCLoss")
_MATRIX_PRODUCTS = (
    "Linear",
    "LazyLinear",
    "Bilinear",
    "MultiheadAttention",
    "LSTMCell",
    "GRUCell",
)
_TUNED_OPERATIONS = ("conv", "cudnn", "mkldnn", "miopen", "batch_norm", "_ctc_loss", "lstm", "gru")
_PRODUCT_OPERATIONS = ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "_scaled_dot")


class NotDeterministicError(RuntimeError):
    """The requested level is not possible; the message names every obstacle."""


def settle(
    level: str, *, threads: int, model: Any, reports_result: bool = False
) -> Dict[str, Any]:
    """Make PyTorch deterministic in this process.

    Args:
        level: one of `LEVELS`.
        threads: threads of each operation, by which kernels split their sums.
        model: the ``torch.nn.Module``, checked for D2.
        reports_result: whether this process reports the result, as an event ``determinism``.

    Returns:
        The settings for a receipt.

    Raises:
        NotDeterministicError: D2 is requested and not possible.
        ValueError: the level is unknown.
    """
    import torch  # noqa: PLC0415 - jobs without PyTorch use the rest of the package

    if level not in LEVELS:
        raise ValueError(f"determinism is {level!r}: one of {', '.join(LEVELS)}")
    found = obstacles(model)
    is_refused = level == "D2" and bool(found)
    if reports_result:
        report_event("determinism", level=level, refused=is_refused, obstacles=found[:20])
    if is_refused:
        raise NotDeterministicError(_refusal(found))
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # Unwritten memory may not be read; filling it first costs a pass over memory each time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.enable_mem_efficient_sdp(False)  # its backward pass is not deterministic
    if level == "D2":
        torch.backends.cudnn.enabled = False
        torch.backends.mkldnn.enabled = False
    return {"level": level, "threads": threads, "torch": str(torch.__version__)}


def _refusal(found: List[str]) -> str:
    return (
        "D2 (the same bits on devices of several types) cannot be guaranteed: "
        + "; ".join(found)
        + ". Use D1, or restrict the job to one device type."
    )


def obstacles(model: Any) -> List[str]:
    """Return the reasons why results may differ between device types; empty if they are equal.

    Kernels that vendors tune for each device (convolutions, recurrent layers, batch
    normalisation, on GPUs also matrix products) depend on the device. Processors differ by their
    vector units, unless their libraries are limited to common ones.
    """
    found = []
    is_cuda = any(parameter.is_cuda for parameter in model.parameters())
    for name, module in model.named_modules():
        kind, where = type(module).__name__, name or "the model"
        if kind.rstrip("123d") in _VENDOR_TUNED:
            found.append(f"{where} is a {kind}, whose kernels depend on the device")
        elif is_cuda and kind in _MATRIX_PRODUCTS:
            found.append(f"{where} is a {kind}, whose matrix products are tuned for each GPU type")
    return found if is_cuda else found + _obstacles_of_processors()


def _obstacles_of_processors() -> List[str]:
    import torch  # noqa: PLC0415 - as above

    is_portable = torch.backends.cpu.get_cpu_capability() == "DEFAULT"
    if torch.backends.mkl.is_available():
        is_portable = is_portable and os.environ.get("MKL_CBWR") == PORTABLE_CPU["MKL_CBWR"]
    if is_portable:
        return []
    return [
        "PyTorch uses vector instructions specific to this processor; set "
        + " ".join(f"{name}={value}" for name, value in PORTABLE_CPU.items())
        + " before it is imported"
    ]


def watch(level: str, *, reports_result: bool = False) -> Callable[[], ContextManager[None]]:
    """Return a context for each step; under D2 the first one refuses tuned operations.

    Args:
        level: level of determinism.
        reports_result: whether this process reports a refusal.
    """
    steps = 0

    @contextmanager
    def watching() -> Iterator[None]:
        nonlocal steps
        steps += 1
        if level != "D2" or steps > 1:
            yield
            return
        called: Dict[str, bool] = {}
        with _noting(called):
            yield
        found = [f"the operation {name} depends on the device" for name in _tuned(called)]
        if found:
            if reports_result:
                report_event("determinism", level=level, refused=True, obstacles=found)
            raise NotDeterministicError(_refusal(found))

    return watching


def _tuned(called: Dict[str, bool]) -> List[str]:
    """Return the operations, by name and whether on a GPU, with kernels tuned for the device."""
    return sorted(
        name
        for name, is_cuda in called.items()
        if any(word in name for word in _TUNED_OPERATIONS)
        or (is_cuda and name.startswith(_PRODUCT_OPERATIONS))
    )


def _noting(called: Dict[str, bool]) -> Any:
    """Create a context that records the called operations, and whether on a GPU."""
    from torch.utils._python_dispatch import (  # noqa: PLC0415 - as above
        TorchDispatchMode,
    )

    class Noting(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, call: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = call(*args, **(kwargs or {}))
            name = call.overloadpacket.__name__
            on_gpu = bool(getattr(result, "is_cuda", False))
            called[name] = called.get(name, False) or on_gpu
            return result

    return Noting()
