"""Guest programs that use an NVIDIA GPU by the driver's own interface, which every host with a driver has."""

from __future__ import annotations

#: A product of two vectors, and a kernel that never ends. The driver compiles it for the device.
_PTX = """
.version 6.4
.target {target}
.address_size 64
.visible .entry multiply(.param .u64 left, .param .u64 right, .param .u64 out)
{{
    .reg .b32 %r<5>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [left];
    ld.param.u64 %d2, [right];
    ld.param.u64 %d3, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d4, %r1, 4;
    add.s64 %d5, %d1, %d4;
    add.s64 %d6, %d2, %d4;
    add.s64 %d7, %d3, %d4;
    ld.global.u32 %r2, [%d5];
    ld.global.u32 %r3, [%d6];
    mul.lo.u32 %r4, %r2, %r3;
    st.global.u32 [%d7], %r4;
    ret;
}}
.visible .entry spin(.param .u64 flag)
{{
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    .reg .pred %p<2>;
    ld.param.u64 %d1, [flag];
AGAIN:
    ld.volatile.global.u32 %r1, [%d1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ret;
}}
"""

#: Opens the first device, and defines what the programs below use. Errors end it with the name of the call.
_START = f"""
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
byref, PTX = ctypes.byref, {_PTX!r}

def check(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result:
        sys.exit(f"{{name}} failed with error {{result}}")

def allocate(size, content=b""):
    pointer = ctypes.c_uint64()
    check("cuMemAlloc_v2", byref(pointer), ctypes.c_size_t(size))
    if content:
        check("cuMemcpyHtoD_v2", pointer, content, ctypes.c_size_t(len(content)))
    return pointer

def launch(name, threads, *pointers):
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    for target in ("sm_75", "sm_52"):
        result = cuda.cuModuleLoadData(byref(module), PTX.format(target=target).encode())
        if not result:
            break
    else:
        sys.exit(f"cuModuleLoadData failed with error {{result}}")
    check("cuModuleGetFunction", byref(function), module, name.encode())
    values = (ctypes.c_void_p * len(pointers))(*(ctypes.addressof(pointer) for pointer in pointers))
    check("cuLaunchKernel", function, 1, 1, 1, threads, 1, 1, 0, None, values, None)

check("cuInit", 0)
count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
check("cuDeviceGetCount", byref(count))
check("cuDeviceGet", byref(device), 0)
check("cuDevicePrimaryCtxRetain", byref(context), device)
check("cuCtxSetCurrent", context)
"""

#: Prints how many devices there are, and "right" if the device multiplies as the processor does.
PRODUCT = f"""{_START}
import array
left, right = array.array("I", range(256)), array.array("I", range(1000, 1256))
pointers = [allocate(1024, left.tobytes()), allocate(1024, right.tobytes()), allocate(1024)]
launch("multiply", 256, *pointers)
check("cuCtxSynchronize")
out = ctypes.create_string_buffer(1024)
check("cuMemcpyDtoH_v2", out, pointers[2], ctypes.c_size_t(1024))
is_right = array.array("I", out.raw).tolist() == [a * b for a, b in zip(left, right)]
print(count.value, "right" if is_right else "wrong")
"""

#: Waits for a kernel that never ends. This and TAKE_ALL are for scripts/test-gpu.
ENDLESS = f"""{_START}
flag = allocate(4, bytes(4))
launch("spin", 1, flag)
print("started", flush=True)
check("cuCtxSynchronize")
"""


def hold_memory(megabytes: int, seconds: float = 60) -> str:
    """Takes so much memory of the device and keeps it."""
    return f"{_START}\nallocate({megabytes} << 20)\nprint('taken', flush=True)\ntime.sleep({seconds})\nprint('kept')\n"


#: Takes all memory.
TAKE_ALL = f"""{_START}
taken = 0
while not cuda.cuMemAlloc_v2(byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 30)):
    taken += 1
    time.sleep(0.005)
print("taken", taken, flush=True)
time.sleep(60)
"""
