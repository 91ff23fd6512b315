"""Compiles the Triton kernel of kernel.py to device code, for the compute capability in the argument.

A guest program, in a cage without a GPU: the candidate's own code runs here, far from the device and the clock.
"""

import importlib
import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, ".")
candidate = importlib.import_module("kernel")
signature = {"a": "*fp32", "b": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
source = ASTSource(fn=candidate.kernel, signature=signature, constexprs={"BLOCK": candidate.BLOCK})
built = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32))
with open("outputs", "wb") as file:
    file.write(built.asm["cubin"])
with open("shape", "w") as file:
    threads = 32 * built.metadata.num_warps
    json.dump([built.metadata.name, int(candidate.BLOCK), threads, built.metadata.shared], file)
