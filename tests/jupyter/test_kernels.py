"""Kernels in a cage, driven by Jupyter's own clients."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import cancel_at_every_await, until

if os.environ.get("WARMCELL_MUST_WORK") != "1":
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")

import nbformat
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from tests.jupyter.conftest import Install, is_on_host

from warmcell import BackendUnavailable, InvalidRequest
from warmcell.interfaces.jupyter import provisioner
from warmcell.interfaces.jupyter.provisioner import WarmcellProvisioner

SECONDS = 120
SLEEP = f"43{os.getpid()}"


@pytest.fixture
def kernel(install: Install) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager = KernelManager(kernel_name="warmcell")
    manager.start_kernel(transport_encryption="required")
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=SECONDS)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run_cell(client: BlockingKernelClient, code: str, **options: Any) -> tuple[str, str]:
    """What a cell printed, and the name of what it raised."""
    texts: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        texts.append(message["content"].get("text", ""))

    reply = client.execute_interactive(code, timeout=SECONDS, output_hook=hear, **options)
    return "".join(texts), reply["content"].get("ename", "")


def test_a_notebook_runs_in_a_cage(install: Install, tmp_path: Path) -> None:
    """Also what is closed: the host's files, variables and network; and what is open: files, the shell, memory."""
    secret = tmp_path / "secret.txt"
    secret.write_text("of-the-host")
    cells = [
        "import os, socket; x = 40; open('kept.txt', 'w').write('here')",
        f"print(os.getcwd() == {str(tmp_path)!r}, os.path.exists({str(secret)!r}), 'WARMCELL_TEST_SECRET' in os.environ)",
        "socket.socket().connect_ex(('192.0.2.1', 80))",
        "!cat kept.txt",
        "x + 2",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(
        notebook, kernel_name="warmcell", timeout=SECONDS, resources={"metadata": {"path": tmp_path}}
    ).execute()
    outputs = [cell.outputs[0] if cell.outputs else {} for cell in notebook.cells]
    assert outputs[0]["data"]["text/plain"] == "4"
    assert outputs[1]["text"] == "False False False\n"
    assert outputs[2]["data"]["text/plain"] == "101"
    assert outputs[3]["text"].strip() == "here"
    assert outputs[4]["data"]["text/plain"] == "42"
    assert not (tmp_path / "kept.txt").exists()


def test_a_notebooks_own_directory_where_the_operator_says_so(install: Install, tmp_path: Path) -> None:
    assert install("--name", "beside", "--beside-notebook", "--env", "COLOUR=green")[0] == 0
    cells = ["import os; open('made.txt', 'w').write(os.environ['COLOUR']);", "raise KeyError('mine')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(notebook, kernel_name="beside", timeout=SECONDS, resources={"metadata": {"path": tmp_path}})
    with pytest.raises(CellExecutionError, match="KeyError"):
        client.execute()
    assert (tmp_path / "made.txt").read_text() == "green"


def test_a_kernels_life(kernel: tuple[KernelManager, BlockingKernelClient]) -> None:
    """Interrupted it goes on, restarted it has forgotten all but its files, and shut down nothing of it is left."""
    manager, client = kernel
    assert run_cell(client, "x = 1; open('kept', 'w').close()") == ("", "")

    # With stop_on_error ipykernel also aborts what arrives soon after the error.
    start = f"import subprocess; sleeper = subprocess.Popen(['sleep', '{SLEEP}']); print('begun', flush=True)"
    client.execute(f"{start}\nwhile True: pass", stop_on_error=False)
    while client.get_iopub_msg(timeout=SECONDS)["content"].get("text") != "begun\n":
        pass
    assert is_on_host(SLEEP)
    manager.interrupt_kernel()
    assert client.get_shell_msg(timeout=SECONDS)["content"]["ename"] == "KeyboardInterrupt"
    assert run_cell(client, "print(x)") == ("1\n", "")

    manager.restart_kernel()
    client.wait_for_ready(timeout=SECONDS)
    assert run_cell(client, "import os; print(os.path.exists('kept'), 'x' in globals())") == ("True False\n", "")

    ports, file = [getattr(manager, f"{name}_port") for name in ("shell", "iopub", "hb")], manager.connection_file
    assert oct(os.stat(file).st_mode & 0o777) == "0o600"
    client.shutdown()
    manager.finish_shutdown()
    manager.cleanup_resources()
    assert not manager.is_alive() and not os.path.exists(file)
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert not is_on_host(SLEEP)


def test_why_a_kernel_died_is_in_the_log(
    kernel: tuple[KernelManager, BlockingKernelClient], caplog: pytest.LogCaptureFixture
) -> None:
    manager, client = kernel
    manager.provisioner.log.propagate = True
    client.execute("import os; os._exit(7)")
    with caplog.at_level("ERROR"):
        until(lambda: not manager.is_alive())
    assert "the caged kernel exited with status 7: no output on stderr" in caplog.text


@pytest.mark.parametrize("is_late", [False, True], ids=["early", "late"])
async def test_a_cancelled_start_leaves_no_cage(
    install: Install, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    cages: set[object] = set()

    class Cage:
        ports = dict.fromkeys(provisioner.CHANNELS, 1)

        def __init__(self, *_: object, **__: object) -> None:
            cages.add(self)

        async def open(self) -> None:
            await asyncio.sleep(0.01)

        async def close(self) -> None:
            cages.discard(self)

    monkeypatch.setattr(provisioner, "CagedKernel", Cage)
    manager = KernelManager(kernel_name="warmcell")

    async def prepare() -> WarmcellProvisioner:
        made = WarmcellProvisioner(parent=manager, kernel_id="a", kernel_spec=manager.kernel_spec)
        await made.pre_launch()
        return made

    async for run in cancel_at_every_await(prepare, is_late=is_late):
        if run.result is not None:
            assert len(cages) == 1
            await run.result.cleanup()
        assert not cages
    manager.cleanup_connection_file()


def test_a_kernel_that_is_not_there_is_named(install: Install) -> None:
    spec = _spec("warmcell")
    spec["argv"][2] = "no_such_kernel"
    _write("missing", spec)
    manager = KernelManager(kernel_name="missing")
    with pytest.raises(BackendUnavailable, match=r"has no module 'no_such_kernel'.*pip install ipykernel"):
        manager.start_kernel()
    assert not manager.has_kernel


def test_settings_that_nobody_knows_are_refused(install: Install) -> None:
    spec = _spec("warmcell")
    spec["metadata"]["kernel_provisioner"]["config"]["memory"] = 64
    _write("misspelt", spec)
    with pytest.raises(InvalidRequest, match="unknown settings: memory"):
        KernelManager(kernel_name="misspelt").start_kernel()


def test_a_program_that_is_no_python_can_be_a_kernel_too(
    install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By a kernel of the host, as `--kernel` takes it: here a shell script beside its kernelspec starts it."""
    spec = {**_spec("warmcell"), "metadata": {}, "display_name": "Script", "interrupt_mode": "message"}
    spec["argv"] = ["/bin/sh", "{resource_dir}/start.sh", "{connection_file}"]
    directory = _write("script", spec)
    (directory / "start.sh").write_text("echo $1 >/work/told; read line; printf '\\033[31mlast words' >&2; exit 3\n")
    assert install("--name", "caged-script", "--kernel", "script", "--work-dir", str(tmp_path)) == (0, "")
    assert _spec("caged-script")["display_name"] == "Script (Warmcell)"
    manager = KernelManager(kernel_name="caged-script")
    manager.start_kernel()
    try:
        assert isinstance(manager.provisioner, WarmcellProvisioner)
        manager.provisioner.log.propagate = True
        until(lambda: not manager.is_alive())
        assert (tmp_path / "told").read_text() == f"/tmp/{os.path.basename(manager.connection_file)}\n"
        assert "exited with status 3: \\x1b[31mlast words" in caplog.text
    finally:
        manager.shutdown_kernel(now=True)


def test_what_install_refuses(install: Install, tmp_path: Path) -> None:
    for options, words in (
        (("--python", "/bin/true"), "has no working ipykernel"),
        (("--kernel", "no-such"), "no kernel 'no-such'"),
        (("--kernel", "warmcell", "--python", sys.executable), "leave --python out"),
        (("--user",), "--user and --prefix cannot be combined"),
        (("--work-dir", str(tmp_path / "none")), "is not a directory"),
        (("--name", "no/name"), "name"),
    ):
        status, said = install(*options)
        assert status in (2, 125) and words in said, (options, said)


def _spec(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads((Path(os.environ["JUPYTER_PATH"]) / "kernels" / name / "kernel.json").read_text())
    return spec


def _write(name: str, spec: dict[str, Any]) -> Path:
    directory = Path(os.environ["JUPYTER_PATH"]) / "kernels" / name
    directory.mkdir(parents=True)
    (directory / "kernel.json").write_text(json.dumps(spec))
    return directory
