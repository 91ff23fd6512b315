"""What one run leaves for another: compiled programs hold nothing of a policy, a path or an environment."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from warmcell.backends.process import building as module
from warmcell.backends.process.backend import ProcessBackend
from warmcell.backends.process.building import ArtefactCache, add_cache_key
from warmcell.backends.wasm import module_loader
from warmcell.core.errors import ExecutionFailed
from warmcell.core.records import replace
from warmcell.core.types import EffectiveLimits, ExecRequest, ExecResult
from warmcell.enforcers.contract import WrappedCommand
from warmcell.languages import go
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program_spec import Build, ProgramSpec
from warmcell.lifetime.held_directories import create_held_directory
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.toolbox.signed_directory import SignedDirectory, SignedFile

COLD = ProcessConfig(pool_size=0, pool_min=0)
CANARY = "canary-of-one-policy"

#: Reads what the compiler can see, at compile time, and prints it at run time, where it can be seen no more.
C_OF_A_PATH = """
#include <stdio.h>
__asm__(".section .rodata\\n.globl taken\\ntaken:\\n.incbin \\"%s\\"\\n.byte 0\\n.previous\\n");
extern const char taken[];
int main(void) { puts(taken); }
"""
C_OF_CODE = """
#include <stdio.h>
#if __has_include("%s")
#include "%s"
#else
const char *said = "not seen";
#endif
int main(void) { puts(said); }
"""
RUST = """
fn main() {
    println!("{} {}", option_env!("CANARY").unwrap_or("unset"), option_env!("POLICY_CANARY").unwrap_or("unset"));
    print!("{}", include_str!("/proc/self/environ").replace('\\0', "\\n"));
}
"""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "warmcell" / "builds"


def execute(
    code: str, language: str = "c", *, policy: object = None, enforcer: str = "auto", **more: object
) -> ExecResult:
    with ProcessBackend(COLD, enforcer, policy) as backend:  # type: ignore[arg-type]
        return backend.execute_blocking(ExecRequest(language, code, 60, **more))  # type: ignore[arg-type]


def allowing(path: Path, **env: str) -> object:
    builder = SandboxPolicyBuilder().allow_read(path).allow_process_spawn()
    for name, value in env.items():
        builder = builder.env(name, value)
    return builder.build()


@pytest.mark.attack("S2-01")
@pytest.mark.needs("user namespaces", "gcc")
def test_a_file_of_one_policy_is_in_no_program(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text(CANARY)
    code = C_OF_A_PATH % secret
    first = execute(code, policy=allowing(tmp_path))
    second = execute(code)
    assert CANARY not in first.stdout + second.stdout
    assert first.exit_code and second.exit_code and "secret.txt" in first.stderr, first.stderr


@pytest.mark.attack("S2-01")
@pytest.mark.needs("user namespaces", "gcc")
def test_code_of_one_policy_is_in_no_program(tmp_path: Path) -> None:
    (tmp_path / "said.h").write_text('const char *said = "the attacker\'s";\n')
    code = C_OF_CODE % (tmp_path / "said.h", tmp_path / "said.h")
    assert execute(code, policy=allowing(tmp_path)).stdout == "not seen\n"
    assert execute(code).stdout == "not seen\n"


@pytest.mark.attack("S2-01")
@pytest.mark.needs("rustc", "bwrap")
@pytest.mark.parametrize("enforcer", ["auto", "bubblewrap"])
def test_an_environment_is_in_no_program(enforcer: str, tmp_path: Path) -> None:
    policy = allowing(tmp_path, POLICY_CANARY=CANARY)
    first = execute(RUST, "rust", policy=policy, enforcer=enforcer, env={"CANARY": CANARY})
    assert first.exit_code == 0, first.stderr
    assert first.stdout.startswith("unset unset\n") and CANARY not in first.stdout


@pytest.mark.attack("S2-01")
@pytest.mark.needs("user namespaces", "bwrap")
def test_a_program_built_without_a_cage_runs_in_none(tmp_path: Path) -> None:
    """The bare class sees the host's files; the same text in a cage is compiled anew and finds none."""
    secret = tmp_path / "secret.txt"
    secret.write_text(CANARY)
    code = C_OF_A_PATH % secret
    with ProcessBackend(COLD, enforcer=None) as bare:
        assert CANARY in bare.execute_blocking(ExecRequest("c", code, 60)).stdout
    for enforcer in ("auto", "bubblewrap", "landlock"):
        assert CANARY not in execute(code, enforcer=enforcer).stdout


@pytest.mark.attack("S2-01")
def test_programs_built_under_enforcers_of_others_are_not_shared(own_cache: Path) -> None:
    """Two of them may have one name and show a compiler different things."""

    class Theirs:
        name = "theirs"

        def probe(self) -> None: ...

        def wrap_command(self, program: str, args: list[str], policy: object) -> WrappedCommand:
            return WrappedCommand("/usr/bin/env", ("true",))

        def configure_command(self, command: WrappedCommand, policy: object) -> dict[str, object]:
            return {"env": {}}

    with ProcessBackend(COLD, Theirs()) as first, ProcessBackend(COLD, Theirs()) as second:  # type: ignore[arg-type]
        scopes = {backend._launcher.resolver.build_scope for backend in (first, second)}
    with ProcessBackend(COLD) as first, ProcessBackend(COLD) as second:
        ours = {backend._launcher.resolver.build_scope for backend in (first, second)}
    assert len(scopes) == 2 and len(ours) == 1


@pytest.mark.attack("S2-01")
def test_the_key_covers_all_that_a_compiler_sees() -> None:
    """Limits too: `include_str!("/proc/self/limits")` would tell one policy's to another."""
    build = Build(("cc", "-O2"), "main", "the language's own key")
    program = ProgramSpec(("{out}/main",), {"main.c": b"text"}, "main.c", ("/opt/cc",), build=build)
    others = (
        (replace(program, files={"main.c": b"other"}), "native", EffectiveLimits()),
        (replace(program, files={"main.c": b"text", "more.h": b""}), "native", EffectiveLimits()),
        (replace(program, build=replace(build, argv=("cc", "-O3"))), "native", EffectiveLimits()),
        (replace(program, build=replace(build, cache_key="another")), "native", EffectiveLimits()),
        (replace(program, runtime_paths=("/opt/other",)), "native", EffectiveLimits()),
        (program, "bubblewrap", EffectiveLimits()),
        (program, None, EffectiveLimits()),
        (program, "native", EffectiveLimits(open_files=111)),
        (program, "native", EffectiveLimits(memory_mb=111)),
    )
    keys = {add_cache_key(*case).cache_key for case in ((program, "native", EffectiveLimits()), *others)}
    assert len(keys) == 1 + len(others)
    assert add_cache_key(program, "native", EffectiveLimits()) == add_cache_key(program, "native", EffectiveLimits())


def _compile(artefacts: ArtefactCache, name: str, size: int, cleanup: ExitStack) -> str:
    """As a build does it, without a compiler."""
    with artefacts.workshop() as workshop:
        Path(workshop, "main").write_bytes(os.urandom(size))
        return artefacts.store(Build(("cc",), "main", name), workshop, cleanup)


@pytest.mark.attack("S2-20")
def test_the_cache_of_programs_is_bounded_and_forgets_the_oldest(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1_000_000)
    artefacts = ArtefactCache()
    for number in range(8):
        with ExitStack() as cleanup:
            path = _compile(artefacts, f"text-{number}", 250_000, cleanup)
        os.utime(path, (number, number))
    assert sorted(os.listdir(own_cache)) == ["text-5", "text-6", "text-7"]
    with ExitStack() as cleanup:
        assert artefacts.find(Build(("cc",), "main", "text-5"), cleanup)  # used again: now the youngest
        _compile(artefacts, "text-8", 250_000, cleanup)
    assert sorted(os.listdir(own_cache)) == ["text-5", "text-7", "text-8"]


@pytest.mark.attack("S2-20")
def test_a_program_that_somebody_runs_is_not_forgotten(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 1)
    artefacts = ArtefactCache()
    with ExitStack() as running:
        path = _compile(artefacts, "old", 10, running)
        os.utime(path, (1, 1))
        with ExitStack() as cleanup:
            _compile(artefacts, "new", 10, cleanup)
        assert sorted(os.listdir(own_cache)) == ["new", "old"]
    with ExitStack() as cleanup:
        _compile(artefacts, "newer", 10, cleanup)
    assert os.listdir(own_cache) == ["newer"]


@pytest.mark.attack("S2-20")
def test_programs_of_a_cache_that_became_read_only_are_found(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a read-only root, whose image has a filled cache."""
    artefacts = ArtefactCache()
    with ExitStack() as cleanup:
        path = _compile(artefacts, "text", 10, cleanup)

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)
    with ExitStack() as cleanup:
        assert artefacts.find(Build(("cc",), "main", "text"), cleanup) == path


@pytest.mark.attack("S2-20")
def test_what_is_not_a_plain_program_of_its_own_is_not_kept(own_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("a file of the host")
    artefacts = ArtefactCache()

    def link(made: Path) -> None:
        made.symlink_to(tmp_path / "theirs")

    def second_name(made: Path) -> None:
        made.write_text("x")
        os.link(made, made.with_name("other"))

    for put in (link, second_name, os.mkdir, os.mkfifo):
        with ExitStack() as cleanup, artefacts.workshop() as workshop:
            put(Path(workshop, "main"))
            with pytest.raises(ExecutionFailed):
                artefacts.store(Build(("cc",), "main", "odd"), workshop, cleanup)
    assert os.listdir(own_cache) == []


@pytest.mark.attack("S2-20")
def test_libraries_of_other_versions_of_go_are_bounded(tmp_path: Path) -> None:
    for age, name in enumerate(("oldest", "older", "last", ".go-unfinished")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (age, age))
    held = create_held_directory(".go-", str(tmp_path))
    go._forget_others(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted(["last", os.path.basename(held.path)])
    held.release()


@pytest.mark.attack("S2-20")
def test_a_library_of_go_that_a_process_uses_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that loses it on the way fails, as if its program did not compile."""
    monkeypatch.setattr(go, "_in_use", {}, raising=False)
    toolchain = go.GoToolchain("/opt/go/bin/go", "/opt/go", "go version go1.0 of this test")
    place = Path(go._library_place(toolchain))
    for age, path in enumerate((place, place.with_name("older"), place.with_name("last"))):
        path.mkdir(parents=True)
        path.chmod(0o755)
        os.utime(path, (age, age))
    assert go.standard_library(toolchain) == str(place)
    go._forget_others(str(place.parent))
    assert sorted(os.listdir(place.parent)) == sorted([place.name, "last"])
    go._in_use[toolchain].release()
    go._forget_others(str(place.parent))
    assert os.listdir(place.parent) == ["last"]


@pytest.mark.claim("WC-LK-3")
def test_whatever_the_umask_nobody_else_can_write_to_a_cache(own_cache: Path) -> None:
    before = os.umask(0o002)
    try:
        artefacts = ArtefactCache()
        with artefacts.workshop() as workshop:
            assert Path(workshop).parent == own_cache
        assert os.path.exists(SignedDirectory(own_cache.parent / "wasm").path)  # it looks at what lies above it, too
    finally:
        os.umask(before)
    own_cache.parent.chmod(0o777)
    artefacts = ArtefactCache()
    with artefacts.workshop() as workshop:
        place = Path(workshop).parent
        assert place != own_cache, "others could have put something there"
    artefacts.close()
    assert not place.exists()


@pytest.mark.attack("S2-20")
def test_without_a_usable_cache_all_builds_share_one_temporary_directory(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory such as /tmp, to which others may write as well."""
    shared = tmp_path / "tmp"
    for place in (shared, own_cache.parent):
        place.mkdir(parents=True)
        place.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    artefacts = ArtefactCache()
    for name in ("first", "second"):
        with ExitStack() as cleanup:
            _compile(artefacts, name, 10, cleanup)
    assert len(os.listdir(shared)) == 1
    with ExitStack() as cleanup:
        assert artefacts.find(Build(("cc",), "main", "first"), cleanup)
    artefacts.close()
    assert os.listdir(shared) == []


@pytest.mark.attack("S2-20")
def test_compiled_modules_in_memory_are_bounded_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_loader, "_MOST_OPEN_BYTES", 100_000)
    cache = module_loader.ModuleCache(None)

    def module(size: int) -> SignedFile:
        descriptor = os.memfd_create("module")
        os.ftruncate(descriptor, size)
        return SignedFile(descriptor, {})

    for name in "abc":
        cache._remember(name, module(40_000))
    cache._remember("large", module(200_000))  # one is kept whatever its size: somebody is about to use it
    found = {name: cache.find(name) for name in ("a", "b", "c", "large")}
    assert [name for name, compiled in found.items() if compiled] == ["large"]
    cache._remember("small", module(10))
    assert cache.find("large") is None
    for compiled in found.values():
        if compiled:
            compiled.close()
    cache.close()
