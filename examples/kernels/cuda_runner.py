"""Runs device code on every round of the inputs and times it by events.

Arguments: elements, rounds, the kernel's name, elements and threads of a block, bytes of shared memory. Without
arguments it prints the compute capability of the device, such as 90.

A guest program, by the driver's own interface. Of the candidate it contains device code only.
"""

import ctypes
import json
import sys

cuda = ctypes.CDLL("libcuda.so.1")
byref, size_t = ctypes.byref, ctypes.c_size_t
CAPABILITY = (75, 76)  # attributes of a device: major and minor
DYNAMIC_SHARED_MEMORY = 8  # an attribute of a function: how much a launch may ask for
NULL = ctypes.c_uint64(0)


def check(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result:
        sys.exit(f"{name} failed with error {result}")


def allocate(content):
    pointer = ctypes.c_uint64()
    check("cuMemAlloc_v2", byref(pointer), size_t(len(content)))
    check("cuMemcpyHtoD_v2", pointer, content, size_t(len(content)))
    return pointer


def launch(function, shape, *arguments):
    per_block, threads, shared = shape
    # Triton's kernels have two more arguments, for scratch memory of its own. Others never look at them.
    values = [ctypes.addressof(argument) for argument in (*arguments, NULL, NULL)]
    blocks = (arguments[-1].value + per_block - 1) // per_block
    pointers = (ctypes.c_void_p * len(values))(*values)
    check("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, shared, None, pointers, None)


def new_event():
    event = ctypes.c_void_p()
    check("cuEventCreate", byref(event), 0)
    return event


def open_device():
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check("cuInit", 0)
    check("cuDeviceGet", byref(device), 0)
    check("cuDevicePrimaryCtxRetain", byref(context), device)
    check("cuCtxSetCurrent", context)
    return device


def print_capability(device):
    numbers = [ctypes.c_int(), ctypes.c_int()]
    for number, attribute in zip(numbers, CAPABILITY, strict=True):
        check("cuDeviceGetAttribute", byref(number), attribute, device)
    print(numbers[0].value * 10 + numbers[1].value)


def load(name, shared):
    with open("kernel.cubin", "rb") as file:
        code = file.read()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check("cuModuleLoadData", byref(module), code)
    check("cuModuleGetFunction", byref(function), module, name.encode())
    check("cuFuncSetAttribute", function, DYNAMIC_SHARED_MEMORY, shared)
    return function


def main():
    device = open_device()
    if len(sys.argv) == 1:
        return print_capability(device)
    count, rounds, name, *numbers = sys.argv[1:]
    count, rounds, shape = int(count), int(rounds), tuple(map(int, numbers))
    function = load(name, shape[2])
    with open("inputs", "rb") as file:
        inputs = file.read()
    size, n = 4 * count, ctypes.c_int(count)
    vectors = [allocate(inputs[at : at + size]) for at in range(0, len(inputs), size)]
    poison = b"\xff" * size  # not a number
    outputs = [allocate(poison) for _ in range(rounds)]
    # Warm-up: zeros, and an output that is not compared. What it leaves behind helps no later round.
    launch(function, shape, allocate(bytes(size)), allocate(bytes(size)), allocate(poison), n)
    check("cuCtxSynchronize")
    start, end, took = new_event(), new_event(), ctypes.c_float()
    check("cuEventRecord", start, None)
    for at in range(rounds):
        launch(function, shape, vectors[2 * at], vectors[2 * at + 1], outputs[at], n)
    check("cuEventRecord", end, None)
    check("cuCtxSynchronize")
    check("cuEventElapsedTime", byref(took), start, end)
    with open("outputs", "wb") as file:
        for pointer in outputs:
            content = ctypes.create_string_buffer(size)
            check("cuMemcpyDtoH_v2", content, pointer, size_t(size))
            file.write(content.raw)
    with open("times", "w") as file:
        json.dump({"seconds": took.value / 1000}, file)


main()
