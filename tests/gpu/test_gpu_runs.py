"""Runs with a made-up device: what guests see, what they are refused, and what results say."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gpu.made_up import driver
from tests.helpers import until
from tests.image_roots import shared_debian_like, shared_place

from warmcell import (
    EnforcerUnavailable,
    ExecRequest,
    InvalidRequest,
    Limits,
    PolicyViolation,
    ProcessBackend,
    ProcessConfig,
    Sandbox,
    SandboxPolicyBuilder,
)
from warmcell.core.errors import BackendBusy
from warmcell.enforcers import gpus
from warmcell.policy.gpu import GpuDriver

pytestmark = pytest.mark.needs("user namespaces")

LIST = "import os; print(*sorted(name for name in os.listdir('/dev') if 'nvidia' in name))"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[GpuDriver | None]]:
    """The driver that is found: the last item. Slots are files in a cache of the test's own."""
    found: list[GpuDriver | None] = [driver()]
    monkeypatch.setattr(gpus, "find_driver", lambda: found[-1])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield found


def backend(*devices: int, **config: object) -> ProcessBackend:
    policy = SandboxPolicyBuilder().allow_process_spawn().allow_gpu(devices or None).build()
    return ProcessBackend(ProcessConfig(pool_size=0, **config), policy=policy)  # type: ignore[arg-type]


def run(made: ProcessBackend, code: str, **options: object) -> str:
    with made:
        return made.execute_blocking(ExecRequest("python", code, 30, **options)).stdout  # type: ignore[arg-type]


@pytest.mark.claim("WC-GP-1")
def test_a_guest_without_gpus_sees_no_device(host: list[GpuDriver | None]) -> None:
    assert run(ProcessBackend(ProcessConfig(pool_size=0)), LIST) == "\n"


def test_all_devices(host: list[GpuDriver | None]) -> None:
    assert run(backend(), LIST) == "nvidia-uvm nvidia0 nvidia1 nvidiactl\n"


@pytest.mark.claim("WC-GP-1")
def test_only_the_named_device(host: list[GpuDriver | None]) -> None:
    assert run(backend(1), LIST) == "nvidia-uvm nvidia1 nvidiactl\n"


NAME_THREAD = """
import threading
def attempt(path, text):
    try:
        with open(path, "w") as file: file.write(text)
    except OSError as error: return type(error).__name__
    return open(path).read().strip() or "done"
print(attempt(f"/proc/self/task/{threading.get_native_id()}/comm", "named"), attempt("/proc/sys/kernel/domainname", "x"))
"""


def test_guests_with_a_gpu_name_their_threads(host: list[GpuDriver | None]) -> None:
    """CUDA does, and gives up where it cannot. Nothing else below /proc becomes writable."""
    assert run(backend(), NAME_THREAD).split()[0] == "named"
    assert run(backend(), NAME_THREAD).split()[1] in ("OSError", "PermissionError")


def test_guests_with_a_gpu_in_an_image_name_their_threads(
    host: list[GpuDriver | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    image = shared_debian_like(shared_place(tmp_path_factory))
    with Sandbox(image=image, gpus="all") as sandbox:
        named, setting = sandbox.run(NAME_THREAD).stdout.split()
    assert (named, setting in ("OSError", "PermissionError")) == ("named", True)


@pytest.mark.parametrize("image", [False, True])
def test_guests_with_a_gpu_cannot_change_the_agent(
    host: list[GpuDriver | None], tmp_path_factory: pytest.TempPathFactory, image: bool
) -> None:
    """What they may write below /proc is their own."""
    code = """
for name in ("mem", "oom_score_adj", "task/2/mem", "comm"):
    try:
        open(f"/proc/2/{name}", "r+b").close()
        print("opened", name)
    except OSError as error:
        print(type(error).__name__, error.errno)
"""
    root = shared_debian_like(shared_place(tmp_path_factory)) if image else None
    with Sandbox(image=root, gpus="all", live=True) as sandbox:
        assert sandbox.exec("python3", ["-c", code]).stdout == "OSError 30\n" * 4  # EROFS
        assert sandbox.exec("cat", ["/proc/sys/kernel/random/boot_id"]).ok


def test_devices_can_be_opened_and_not_replaced(host: list[GpuDriver | None]) -> None:
    code = (
        "import os, stat\n"
        "node = os.open('/dev/nvidia0', os.O_RDWR)\n"
        "print(stat.S_ISCHR(os.fstat(node).st_mode), os.write(node, b'x'))\n"
        "try: os.unlink('/dev/nvidia0')\n"
        "except OSError as error: print('held')\n"
    )
    assert run(backend(0), code) == "True 1\nheld\n"


def test_the_variable_counts_what_the_guest_has(host: list[GpuDriver | None]) -> None:
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    assert run(backend(), code) == "0,1\n"
    assert run(backend(1), code) == "0\n"


def test_files_of_the_driver_are_shown_read_only(host: list[GpuDriver | None], tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    library.write_text("driver")
    host.append(driver(files=((str(library), "/opt/driver/libcuda.so.1"),), library_dirs=("/opt/driver",)))
    code = (
        "import os\n"
        "print(open('/opt/driver/libcuda.so.1').read(), os.environ['LD_LIBRARY_PATH'])\n"
        "try: open('/opt/driver/libcuda.so.1', 'w')\n"
        "except OSError as error: print(error.errno)\n"
    )
    assert run(backend(), code) == "driver /opt/driver\n30\n"


@pytest.mark.parametrize("directory", ["/lib", "/usr/lib"])
def test_a_library_in_a_linked_directory(host: list[GpuDriver | None], directory: str) -> None:
    """Where /lib leads to /usr/lib, which every guest sees, nothing is mounted for it."""
    if os.path.realpath("/lib") != "/usr/lib":
        pytest.skip("this host has a /lib of its own")
    library = next(Path("/usr/lib").glob("*/libc.so.6"))
    target = str(library).replace("/usr/lib", directory, 1)
    host.append(driver(files=((str(library), target), (str(library), str(library)))))
    assert run(backend(), f"import os; print(os.path.getsize({target!r}))") == f"{library.stat().st_size}\n"


def test_the_loader_of_warm_guests_searches_the_drivers_directory(
    host: list[GpuDriver | None], tmp_path: Path, a_library: Path
) -> None:
    """A forked guest's loader has the path that its zygote was started with."""
    host.append(driver(files=((str(a_library), str(a_library)),), library_dirs=(str(a_library.parent),)))
    code = f"import ctypes; print(ctypes.CDLL({a_library.name!r}).answer())"
    assert run(backend(), code) == "42\n"


@pytest.fixture
def a_library(tmp_path: Path) -> Path:
    import shutil
    import subprocess

    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "answer.c", tmp_path / "lib" / "libanswer.so.1"
    source.write_text("int answer(void) { return 42; }\n")
    library.parent.mkdir()
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def test_results_say_which_devices_and_which_class(host: list[GpuDriver | None]) -> None:
    with backend(0) as made:
        enforced = made.execute_blocking(ExecRequest("python", "pass", 30)).enforced
    assert enforced.isolation_class == "process+sandbox+gpu"
    assert enforced.gpus == "/dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia0"
    assert enforced.gpu_memory is None


def test_a_refused_device_is_a_denial_with_the_remedy(host: list[GpuDriver | None]) -> None:
    with ProcessBackend(ProcessConfig(pool_size=0)) as made:
        result = made.execute_blocking(ExecRequest("python", "open('/dev/nvidia0')", 30))
    (denial,) = result.denials
    assert (denial.kind, denial.what, denial.rule) == ("gpu", "/dev/nvidia0", "gpus")
    assert "allow_gpu()" in denial.hint


def test_a_host_without_a_gpu_is_an_error_with_the_remedy(host: list[GpuDriver | None]) -> None:
    host.append(None)
    with pytest.raises(EnforcerUnavailable, match="this host has no GPU") as raised:
        run(backend(), "pass")
    assert raised.value.hint


def test_a_missing_device_is_named(host: list[GpuDriver | None]) -> None:
    with pytest.raises(PolicyViolation, match="/dev/nvidia7 is missing") as raised:
        run(backend(7), "pass")
    assert "0, 1" in (raised.value.hint or "")


def test_a_node_that_guests_cannot_open_is_named(host: list[GpuDriver | None]) -> None:
    host.append(driver(closed_nodes=("/dev/null",)))
    with pytest.raises(EnforcerUnavailable, match="permission denied"):
        run(backend(0), "pass")


def test_a_memory_limit_needs_the_management_library(host: list[GpuDriver | None]) -> None:
    with pytest.raises(EnforcerUnavailable, match="NVML"):
        run(backend(0), "pass", limits=Limits(gpu_memory_mb=100))


def test_an_unreadable_driver_ends_a_run_whose_memory_is_limited(host: list[GpuDriver | None]) -> None:
    """The library was found, and does not work: the limit must not be ignored."""
    host.append(driver(counts_memory=True))
    with pytest.raises(Exception, match="gpu_memory_mb cannot be enforced"):
        run(backend(0), "import time; time.sleep(60)", limits=Limits(gpu_memory_mb=100))


def test_an_unreadable_driver_without_a_limit_is_no_usage(host: list[GpuDriver | None]) -> None:
    host.append(driver(counts_memory=True))
    with backend(0) as made:
        usage = made.execute_blocking(ExecRequest("python", "import time; time.sleep(0.3)", 30)).usage
    assert usage.gpu_time is None
    assert usage.gpu_peak_memory_bytes is None


@pytest.mark.parametrize("enforcer", ["landlock", None])
def test_weaker_classes_refuse_gpus(host: list[GpuDriver | None], enforcer: str | None) -> None:
    policy = SandboxPolicyBuilder().allow_process_spawn().allow_gpu().build()
    made = ProcessBackend(ProcessConfig(pool_size=0), enforcer=enforcer, policy=policy)
    with pytest.raises(EnforcerUnavailable, match="cannot allow single devices"):
        run(made, "pass")


def test_runs_on_one_device_follow_each_other(host: list[GpuDriver | None], tmp_path: Path) -> None:
    """Two backends, as two processes would have; the second run starts when the first has ended."""
    started, ends = tmp_path / "started", tmp_path / "end"
    policy = (
        SandboxPolicyBuilder().allow_process_spawn().allow_gpu([0]).allow_read_write(tmp_path, at="/out-dir").build()
    )
    code = (
        "import os, time\nopen('/out-dir/started', 'w')\nwhile not os.path.exists('/out-dir/end'): time.sleep(0.01)\n"
    )
    with ProcessBackend(ProcessConfig(pool_size=0), policy=policy) as first, backend(0) as second:
        holder = threading.Thread(target=first.execute_blocking, args=(ExecRequest("python", code, 60),))
        holder.start()
        try:
            until(started.exists)
            with backend(0, queue_timeout=0.2) as impatient, pytest.raises(BackendBusy) as busy:
                impatient.execute_blocking(ExecRequest("python", "pass", 30))
            with backend(1) as other:
                assert other.execute_blocking(ExecRequest("python", "print(1)", 30)).stdout == "1\n"
        finally:
            ends.touch()
            holder.join()
        assert second.execute_blocking(ExecRequest("python", "print(2)", 30)).stdout == "2\n"
    assert "gpu_concurrency" in (busy.value.hint or "")


def test_gpu_concurrency_is_the_number_of_runs_at_a_time(host: list[GpuDriver | None]) -> None:
    """With two slots, two runs go on at once: each waits until it has seen the other's line."""
    with backend(0, gpu_concurrency=2) as made:
        both = threading.Barrier(2, timeout=60)
        outputs: list[str] = []

        def one() -> None:
            stream = made.stream_blocking(
                ExecRequest("python", "import time; print(1, flush=True); time.sleep(0.2)", 60)
            )
            next(stream)
            both.wait()
            outputs.append("seen")
            for _ in stream:
                pass

        threads = [threading.Thread(target=one) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert outputs == ["seen", "seen"]


def test_sandbox_with_gpus(host: list[GpuDriver | None]) -> None:
    with Sandbox(gpus=[0]) as box:
        assert box.run(LIST).stdout == "nvidia-uvm nvidia0 nvidiactl\n"
        assert box.sh("ls /dev/nvidia?").stdout.split() == ["/dev/nvidia0"]
    with Sandbox(gpus="all", live=True) as box:
        assert box.sh("ls /dev/nvidia?").stdout.split() == ["/dev/nvidia0", "/dev/nvidia1"]
    with Sandbox() as box:
        assert box.run(LIST).stdout == "\n"


def test_sandbox_refuses_what_is_not_a_device() -> None:
    with pytest.raises(InvalidRequest, match="gpus"):
        Sandbox(gpus="0")
