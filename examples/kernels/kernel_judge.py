"""Judge kernels that a model wrote, without trusting them: are the answers right, and how fast are they?

    python examples/kernels/kernel_judge.py REFERENCE CANDIDATE [--cuda | --triton] [--python PATH]

A kernel is C with `void kernel(const float *a, const float *b, float *out, int n)`; with --cuda the same in CUDA C++
with `extern "C" __global__` before it, for which nvcc must be installed; or with --triton a Python file with a
`@triton.jit` function `kernel(a, b, out, n, BLOCK: tl.constexpr)` and a number `BLOCK`, for a Python that has Triton.

Why a candidate cannot cheat:

- Reference and candidate run in cages of their own. The right answers exist in this program only, which compares them.
- Every round has inputs of its own, random and made after the candidate was fixed, and an output that is poisoned with
  NaN first. All outputs are compared, those of timed rounds too, so that a cached answer, an early return or work that
  is never waited for is a wrong answer.
- The clock is out of reach. In C it is the operating system's count of processor time, read from outside of the cage.
  On a GPU, the candidate is compiled to device code in one cage, and a program of ours runs that in another one and
  times it by events: no host code of the candidate runs there, so that nothing can patch the timer or start a stream.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from warmcell import (
    ExecRequest,
    ExecResult,
    ExecutionTimeout,
    Limits,
    MemoryExceeded,
    ProcessBackend,
    ProcessConfig,
    SandboxPolicyBuilder,
)

HERE = Path(__file__).resolve().parent
NVCC = "/usr/local/cuda/bin/nvcc"
ROUNDS = 16
THREADS = 256


class NotRun(Exception):
    """The kernel gave no outputs: it does not compile, crashed, or took too long."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True)
class Measured:
    """The outputs of all rounds, one after another, and the seconds that they took together."""

    outputs: array[float]
    seconds: float


@dataclass(frozen=True)
class Verdict:
    """`status` is accepted, wrong_answer, build_error, runtime_error, time_limit or memory_limit."""

    status: str
    detail: str = ""
    seconds: float = 0.0
    reference_seconds: float = 0.0


class Device(Protocol):
    def measure(self, kernel: str, inputs: bytes, count: int) -> Measured:
        """Runs the kernel on every round of the inputs, in a cage. Raises `NotRun`."""
        ...


def judge_kernel(
    reference: str, candidate: str, device: Device, *, count: int = 4096, tolerance: float = 1e-4
) -> Verdict:
    """Compares the candidate with the reference, on vectors of `count` random numbers."""
    inputs = _random_inputs(count)
    expected = device.measure(reference, inputs, count)
    try:
        found = device.measure(candidate, inputs, count)
    except NotRun as failure:
        return Verdict(failure.status, str(failure))
    wrong = _find_difference(found.outputs, expected.outputs, tolerance)
    if wrong is not None:
        return Verdict("wrong_answer", f"round {wrong // count}, element {wrong % count}")
    return Verdict("accepted", "", found.seconds, expected.seconds)


def _random_inputs(count: int) -> bytes:
    """Both vectors of every round."""
    source = random.Random(os.urandom(16))
    return array("f", (source.uniform(-1, 1) for _ in range(2 * count * ROUNDS))).tobytes()


def _find_difference(found: Sequence[float], expected: Sequence[float], tolerance: float) -> int | None:
    if len(found) != len(expected):
        return 0
    pairs = enumerate(zip(found, expected, strict=True))
    return next((at for at, (x, y) in pairs if not abs(x - y) <= tolerance * max(1.0, abs(y))), None)


class Cpu:
    """Kernels in C. A program of ours around the kernel reads the inputs and writes the outputs."""

    def __init__(self, timeout: float = 10.0) -> None:
        self._timeout = timeout
        self._backend = ProcessBackend()

    def measure(self, kernel: str, inputs: bytes, count: int) -> Measured:
        code = f"{kernel}\n{(HERE / 'cpu_main.c').read_text()}"
        request = ExecRequest(
            "c",
            code,
            self._timeout,
            files={"inputs": inputs},
            fetch_files=["outputs"],
            args=[str(count), str(ROUNDS)],
        )
        result = _execute(self._backend, request)
        # Processor time as the host counted it.
        return Measured(_floats(result.files["outputs"]), result.usage.cpu_time)

    def close(self) -> None:
        self._backend.close()


@dataclass(frozen=True)
class DeviceCode:
    code: bytes
    name: str
    elements_per_block: int
    threads: int
    shared_bytes: int


class Gpu(ABC):
    """Kernels that are compiled in a cage without a GPU and run by our own program in another one, with a GPU."""

    def __init__(self, timeout: float = 60.0, python: str | None = None) -> None:
        limits = Limits(memory_mb=8192, disk_mb=1024, gpu_memory_mb=8192, processes=256)
        policy = SandboxPolicyBuilder().allow_process_spawn().limits(limits)
        self._timeout = timeout
        self._builder = ProcessBackend(ProcessConfig(python_path=python), policy=policy.build())
        self._runner = ProcessBackend(policy=policy.allow_gpu([0]).build())
        self._capability = ""

    def measure(self, kernel: str, inputs: bytes, count: int) -> Measured:
        self._capability = self._capability or self._run_on_gpu().stdout.strip()
        built = self._build(kernel)
        shape = [built.name, built.elements_per_block, built.threads, built.shared_bytes]
        files = {"inputs": inputs, "kernel.cubin": built.code}
        result = self._run_on_gpu(files, [str(part) for part in (count, ROUNDS, *shape)])
        return Measured(_floats(result.files["outputs"]), float(json.loads(result.files["times"])["seconds"]))

    @abstractmethod
    def _build(self, kernel: str) -> DeviceCode:
        """Compiles the kernel, in the cage without a GPU. Raises `NotRun`."""

    def _run_on_gpu(self, files: Mapping[str, bytes] | None = None, args: Sequence[str] = ()) -> ExecResult:
        code = (HERE / "cuda_runner.py").read_text()
        fetched = ["outputs", "times"] if args else []
        request = ExecRequest("python", code, self._timeout, files=files or {}, fetch_files=fetched, args=args)
        return _execute(self._runner, request)

    def close(self) -> None:
        self._builder.close()
        self._runner.close()


class Cuda(Gpu):
    """Kernels in CUDA C++."""

    def _build(self, kernel: str) -> DeviceCode:
        script = f"{NVCC} -cubin -arch=sm_{self._capability} -o outputs kernel.cu"
        build = ExecRequest("command", script, self._timeout, files={"kernel.cu": kernel}, fetch_files=["outputs"])
        code = _execute(self._builder, build, "build_error").files["outputs"]
        return DeviceCode(code, "kernel", THREADS, THREADS, 0)


class Triton(Gpu):
    """Kernels in Triton. Its compiler runs the candidate's Python, so the candidate chooses the shape of a launch."""

    def _build(self, kernel: str) -> DeviceCode:
        build = ExecRequest(
            "python",
            (HERE / "triton_builder.py").read_text(),
            self._timeout,
            files={"kernel.py": kernel},
            fetch_files=["outputs", "shape"],
            args=[self._capability],
        )
        files = _execute(self._builder, build, "build_error").files
        try:
            name, *numbers = json.loads(files["shape"])
            block, threads, shared = (int(number) for number in numbers)
        except (KeyError, TypeError, ValueError):
            raise NotRun("build_error", "the file with the shape of the launch is malformed") from None
        if not isinstance(name, str) or min(block, threads) < 1 or shared < 0:
            raise NotRun("build_error", "the shape of the launch is not one")
        return DeviceCode(files["outputs"], name, block, threads, shared)


def _execute(backend: ProcessBackend, request: ExecRequest, failure: str = "runtime_error") -> ExecResult:
    try:
        result = backend.execute_blocking(request)
    except ExecutionTimeout:
        raise NotRun("time_limit", f"more than {request.timeout:g} s") from None
    except MemoryExceeded as error:
        raise NotRun("memory_limit", error.message) from None
    if result.exit_code or any(name not in result.files for name in request.fetch_files):
        raise NotRun(failure, result.stderr[-500:] or f"exit status {result.exit_code}")
    return result


def _floats(data: bytes) -> array[float]:
    """A guest chose the length. Missing numbers are not numbers, and so are wrong."""
    numbers = array("f")
    numbers.frombytes(data[: len(data) - len(data) % 4])
    return numbers if numbers else array("f", [math.nan])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", type=Path)
    parser.add_argument("candidate", type=Path)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--cuda", action="store_const", dest="device", const=Cuda, help="kernels are CUDA C++")
    kind.add_argument("--triton", action="store_const", dest="device", const=Triton, help="kernels are Triton")
    parser.add_argument("--python", help="a Python that has Triton (default: the one that is found)")
    arguments = parser.parse_args()
    device = arguments.device(python=arguments.python) if arguments.device else Cpu()
    try:
        verdict = judge_kernel(arguments.reference.read_text(), arguments.candidate.read_text(), device)
    finally:
        device.close()
    print(verdict.status, verdict.detail)
    if verdict.status == "accepted":
        print(f"{verdict.seconds * 1e3:.3f} ms, the reference {verdict.reference_seconds * 1e3:.3f} ms")
    return 0 if verdict.status == "accepted" else 1


if __name__ == "__main__":
    sys.exit(main())
