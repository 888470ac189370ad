"""Prints the UUIDs of the GPUs that CUDA offers, by the driver API; ``hold`` keeps memory."""

import ctypes
import json
import sys
import time
import uuid

NO_CUDA = 77


def uuids(cuda):
    count = ctypes.c_int()
    if cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = []
    for index in range(count.value):
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if cuda.cuDeviceGet(ctypes.byref(device), index) == 0:
            get = getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)
            get(raw, device)
            found.append(f"GPU-{uuid.UUID(bytes=bytes(raw))}")
    return found


def main():
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(f"libcuda: {error}", file=sys.stderr)
        return NO_CUDA
    if cuda.cuInit(0):
        print("[]")
        return 0
    print(json.dumps(uuids(cuda)), flush=True)
    if sys.argv[1:] == ["hold"]:
        context, memory = ctypes.c_void_p(), ctypes.c_uint64()
        cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
        cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64 << 20))
        time.sleep(600)
    return 0


sys.exit(main())
