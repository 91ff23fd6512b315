"""`sandbox.install`, from an index on loopback with wheels made by hand."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.sandbox.package_servers import Index, Registry, wheel

from warmcell import ExecResult, InvalidRequest, Limits, ProcessConfig, ProvisionFailed, Sandbox, SessionBusy
from warmcell.net.rules.package_index import PublicIndex, configured_index
from warmcell.policy.model import NetworkRule
from warmcell.sandbox.local import pip_packages
from warmcell.sandbox.local.npm_packages import check_npm_names

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]


USE = "import fruit; print(fruit.WORD)"


def test_packages_for_runs_commands_sessions_and_forks(index: Index) -> None:
    with Sandbox() as sandbox:
        assert not sandbox.run(USE).ok
        sandbox.install("fruit>=1,<2")
        assert sandbox.run(USE).stdout == "fruit with seeds\n"
        assert sandbox.exec("python3", ["-c", USE]).stdout == "fruit with seeds\n"
        assert not sandbox.sh("echo 'WORD = 1' > /packages/fruit.py").ok
        with sandbox.session("python") as session:
            assert session.run(USE).stdout == "fruit with seeds\n"
            with pytest.raises(SessionBusy):
                sandbox.install("seeds")
        with sandbox.fork() as fork:
            assert fork.run(USE).stdout == "fruit with seeds\n"
        assert sandbox.list_dir() == []


def test_packages_bring_their_commands(index: Index) -> None:
    code = "def main():\n    print('pressed')\n"
    index.files["press-1.0-py3-none-any.whl"] = wheel("press", "1.0", code, command="press")
    index.files["peel-1.0-py3-none-any.whl"] = wheel("peel", "1.0", code.replace("press", "peel"), command="peel")
    with Sandbox() as sandbox:
        sandbox.install("press")
        sandbox.install("peel")  # pip replaces the directory of commands
        assert sandbox.exec("press").stdout == "pressed\n" and sandbox.sh("peel").stdout == "peeled\n"
        assert {"press", "peel", "sh"} <= set(sandbox.available_tools())
        assert sandbox.spawn(["peel"]).wait(30).stdout == "peeled\n"
        with sandbox.fork() as fork:
            assert fork.sh("press").stdout == "pressed\n"


def test_a_python_outside_of_usr(index: Index) -> None:
    """As pyenv, uv and conda install it: the cage of pip shows it too."""
    if os.path.realpath(sys.prefix).startswith("/usr"):
        pytest.skip("the tests run with a Python below /usr")
    with Sandbox(config=ProcessConfig(python_path=sys.executable)) as sandbox:
        sandbox.install("fruit")
        assert sandbox.run(USE).stdout == "fruit with seeds\n"


@pytest.mark.attack("LK-05")
def test_downloads_are_cached_out_of_reach_of_guests(index: Index, tmp_path: Path) -> None:
    with Sandbox() as first:
        first.install("fruit")
        first.sh("rm -rf /packages/*")
        assert first.sh("ls -d /cache /wheels; find /packages /work /tmp /home -name 'fruit*.whl'").stdout == ""
    index.asked.clear()
    with Sandbox() as second:
        second.install("fruit")
        assert second.run(USE).stdout == "fruit with seeds\n"
    assert not any(path.startswith("/files/") for path in index.asked)
    for file in (tmp_path / "cache/warmcell/packages").rglob("*"):
        if file.is_file() and file.stat().st_size > 300:  # somebody with the rights of the user has been there
            file.write_bytes(file.read_bytes().replace(b"with seeds", b"with stone"))
    with Sandbox() as third:
        try:
            third.install("fruit")
        except ProvisionFailed:
            return
        assert third.run(USE).stdout == "fruit with seeds\n"


def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_packages, "MAX_CACHE_BYTES", 250)
    for number in range(5):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}" / "file").write_bytes(b"x" * 100)
        os.utime(tmp_path / f"d{number}" / "file", (number, number))
    pip_packages.prune_cache(str(tmp_path))
    assert sorted(path.parent.name for path in tmp_path.rglob("file")) == ["d3", "d4"]


def test_a_failed_install_leaves_the_cache_bounded(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.files["big-1.0-py3-none-any.whl"] = wheel("big", "1.0", "", "Requires-Dist: absent\n", bytes(300_000))
    monkeypatch.setattr(pip_packages, "MAX_CACHE_BYTES", 100_000)
    with Sandbox() as sandbox, pytest.raises(ProvisionFailed, match="absent"):
        sandbox.install("big")
    assert cached_bytes(tmp_path) <= 100_000


def test_a_failed_npm_install_leaves_the_cache_bounded(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.publish("big", "", extra=bytes(range(256)) * 4000)
    registry.publish("bad", "")
    del registry.tarballs["/files/bad-1.0.0.tgz"]
    registry.publish("both", "", {"big": "1.0.0", "bad": "1.0.0"})
    monkeypatch.setattr(pip_packages, "MAX_CACHE_BYTES", 1000)
    with Sandbox() as sandbox, pytest.raises(ProvisionFailed):
        sandbox.install("both", manager="npm")
    assert cached_bytes(tmp_path) <= 1000


def cached_bytes(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in (tmp_path / "cache/warmcell/packages").rglob("*") if path.is_file())


def test_packages_over_the_disk_limit_are_refused(index: Index) -> None:
    index.files["heavy-1.0-py3-none-any.whl"] = wheel("heavy", "1.0", "", extra=os.urandom(12 << 20))
    with Sandbox(limits=Limits(disk_mb=8)) as sandbox:
        with pytest.raises(ProvisionFailed, match="disk limit of 8 MB"):
            sandbox.install("heavy")
        assert sandbox.run("print(1)").stdout == "1\n"


@pytest.mark.attack("S3-06")
def test_words_of_a_package_move_no_cursor_and_forge_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_packages, "find_full_place", lambda: None)
    installer = pip_packages.Installer(ProcessConfig(), "auto", 100)
    for stderr, reasons in (("no\nhint: pipe it into a shell\a", []), ("", ["\x1b[2J" + "no" * 10_000])):
        failed = ExecResult(stderr=stderr, exit_code=1)
        error = installer.make_error(failed, "could not fetch fruit", reasons, "check the name")
        assert isinstance(error, ProvisionFailed) and error.message.isprintable() and "no" in error.message
        assert len(error.message) < 1000


@pytest.mark.attack("S2-24")
async def test_the_packages_of_several_calls_share_the_disk_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call had the whole limit for what it added, and there may be any number of calls."""

    async def do_nothing(*_: object) -> None:
        pass

    async def unpack(_: object, __: object, ___: object, packages: pip_packages.Packages) -> None:
        (Path(packages.path) / f"{len(os.listdir(packages.path))}.py").write_bytes(bytes(600_000))

    monkeypatch.setattr(pip_packages.Installer, "_index", lambda _: SimpleNamespace(urls=(), directories=()))
    monkeypatch.setattr(pip_packages.Installer, "_download", do_nothing)
    monkeypatch.setattr(pip_packages.Installer, "_unpack", unpack)
    monkeypatch.setattr(pip_packages, "cache_directory", lambda *_: str(tmp_path))
    installer = pip_packages.Installer(ProcessConfig(), "auto", 1)
    first = await installer.install(["fruit"], None)
    try:
        with pytest.raises(ProvisionFailed, match="disk limit of 1 MB"):
            await installer.install(["seeds"], first)
        assert os.listdir(first.path) == ["0.py"]
    finally:
        first.close()


def test_packages_without_a_wheel_are_not_built(index: Index) -> None:
    index.files["source-1.0.tar.gz"] = b"not built here"
    with Sandbox() as sandbox, pytest.raises(ProvisionFailed, match=r"could not fetch source.*only wheels"):
        sandbox.install("source")


@pytest.mark.attack("PT-02")
@pytest.mark.parametrize(
    "requirement",
    [
        "",
        "-r x",
        "--index-url=http://a",
        "fruit @ http://a/b.whl",
        "http://a/b.whl",
        "./x",
        "/etc",
        "a; b",
        "a b",
        "git+ssh://x",
    ],
)
def test_a_model_names_packages_and_nothing_else(requirement: str) -> None:
    with pytest.raises(InvalidRequest):
        pip_packages.check_requirements([requirement])


def test_names_with_versions() -> None:
    names = ["pandas", "pandas==2.2.0", "fastapi[standard]>=0.110", "numpy >= 2, < 3", "a.b-c_d~=1.0"]
    assert pip_packages.check_requirements(names) == tuple(names)


@pytest.mark.attack("S2-32")
def test_names_are_short() -> None:
    """Matching a name that ends in many spaces takes quadratic time."""
    assert pip_packages.check_requirements(["a" * 1000]) == ("a" * 1000,)
    for check in (pip_packages.check_requirements, check_npm_names):
        with pytest.raises(InvalidRequest, match="is not a name with a version"):
            check(["a" * 1001])


def test_other_backends_refuse_install() -> None:
    with Sandbox(backend="wasm") as sandbox, pytest.raises(InvalidRequest, match="process backend"):
        sandbox.install("fruit")


def test_the_install_cage_reaches_only_the_index(tmp_path: Path) -> None:
    public = PublicIndex("https://index.example/simple", "files.example")
    plain = configured_index(public, {"PIP_CONFIG_FILE": os.devnull})
    assert plain.rules() == (NetworkRule("index.example", (443,)), NetworkRule("files.example", (443,)))
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://user:word@pip.example:8443/simple\nextra-index-url = http://more.example/\n"
    )
    env = {
        "PIP_CONFIG_FILE": str(file),
        "HOME": str(tmp_path),
        "PIP_FIND_LINKS": f"{tmp_path} /absent",
        "PIP_CERT": "/c",
    }
    found = configured_index(public, env)
    assert found.rules() == (NetworkRule("pip.example", (8443,)), NetworkRule("more.example", (80,)))
    assert (found.directories, found.certificate) == ((str(tmp_path),), "/c")
    assert configured_index(public, {**env, "PIP_NO_INDEX": "1"}).rules() == ()
    with pytest.raises(InvalidRequest):
        configured_index(public, {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "file:///etc"}).rules()


def test_the_configuration_means_what_it_means_to_pip(tmp_path: Path) -> None:
    """With another reading of it, names are looked up in the public index, where anybody can register them."""
    prefix, user, named = tmp_path / "venv/pip.conf", tmp_path / ".config/pip/pip.conf", tmp_path / "named.conf"
    public = PublicIndex("https://index.example/simple", "files.example", str(prefix.parent))
    env = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none")}
    for file in (prefix, user):
        file.parent.mkdir(parents=True)
    user.write_text("[global]\nindex_url = https://user.example/\nextra_index_url = https://more.example/\n")
    assert configured_index(public, env).urls == ("https://user.example/", "https://more.example/")
    assert configured_index(public, {**env, "PIP_INDEX_URL": ""}).url == "https://user.example/"
    named.write_text("[global]\nno_index = y\n")
    assert configured_index(public, {**env, "PIP_CONFIG_FILE": str(named)}).urls == ()
    named.write_text("[global]\ntimeout = 5\n")
    assert "https://user.example/" not in configured_index(public, {**env, "PIP_CONFIG_FILE": str(named)}).urls
    prefix.write_text("[global]\nindex-url = https://venv.example/\n")
    assert configured_index(public, env).url == "https://venv.example/"
    user.write_text("[install]\nindex-url = https://user.example/\n")
    assert configured_index(public, env).url == "https://user.example/"
