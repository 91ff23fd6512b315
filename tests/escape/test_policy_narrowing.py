"""S2-02: a read-only path inside a writable one stays read-only at its path, whatever is renamed around it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.escape.harness import Cage
from tests.escape.payloads import guest
from tests.helpers import require

from warmcell.core.errors import EnforcerUnavailable, PolicyViolation
from warmcell.enforcers.registry import get_enforcer
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.model import AllowedPath, SandboxPolicy

_ATTACK = """
    import shutil
    def plant():
        os.makedirs(project + '/.git/deep/hooks', exist_ok=True)
        with open(project + '/.git/deep/hooks/evil', 'w') as file:
            file.write('evil')
    attempt('write', lambda: open(project + '/.git/deep/hooks/evil', 'w'))
    attempt('rename the parent', lambda: os.rename(project + '/.git/deep', project + '/.git/aside'))
    attempt('rename the grandparent', lambda: os.rename(project + '/.git', project + '/aside'))
    attempt('rename it', lambda: os.rename(project + '/.git/deep/hooks', project + '/.git/deep/old'))
    attempt('exchange', lambda: os.replace(project + '/other', project + '/.git/deep'))
    attempt('remove', lambda: os.rmdir(project + '/.git/deep'))
    attempt('plant', plant)
    attempt('link', lambda: os.link(project + '/.git/deep/hooks/mine', project + '/linked'))
    """


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in (".git/deep/hooks", "other"):
        (tmp_path / "project" / name).mkdir(parents=True)
    (tmp_path / "project/.git/deep/hooks/mine").write_text("mine")
    return tmp_path / "project"


def narrowing(project: Path, at: str | None = None) -> SandboxPolicy:
    builder = SandboxPolicyBuilder().allow_read_write(project, at=at).allow_process_spawn()
    hooks = project / ".git/deep/hooks"
    return builder.allow_read(hooks, at=at and f"{at}/.git/deep/hooks").build()


@pytest.mark.attack("S2-02")
@pytest.mark.claim("WC-FS-3")
@pytest.mark.parametrize("enforcer", ["native", "bubblewrap"])
@pytest.mark.parametrize("at", [None, "/data"])
def test_the_narrower_rule_holds_for_its_path(cage: Cage, project: Path, enforcer: str, at: str | None) -> None:
    if enforcer == "bubblewrap":
        try:
            get_enforcer(enforcer).probe()
        except EnforcerUnavailable as reason:
            require(False, str(reason))
    backend = cage.backend(narrowing(project, at), enforcer=enforcer)
    cage.run(guest(_ATTACK, project=at or str(project)), backend=backend).check_refused()
    assert [path.name for path in project.rglob("hooks/*")] == ["mine"]
    assert (project / ".git/deep/hooks/mine").read_text() == "mine"


@pytest.mark.attack("S2-02")
def test_the_rest_of_the_wide_path_is_as_writable_as_before(cage: Cage, project: Path) -> None:
    code = f"""
import os
os.chdir({str(project)!r})
open('.git/config', 'w').write('x')
open('.git/deep/file', 'w').write('x')
os.rename('.git/config', '.git/config2')
os.rename('.git/config2', '.git/config')
os.rename('other', 'another')
print(open('.git/deep/hooks/mine').read())
"""
    assert cage.run(code, backend=cage.backend(narrowing(project))).stdout == "mine\n"
    assert (project / ".git/config").exists() and (project / "another").is_dir()


@pytest.mark.attack("S2-02")
def test_growth_below_is_counted_once(cage: Cage, project: Path) -> None:
    """The directories on the way are mounts too; what is in them is still one piece of the disk."""
    code = f"open({str(project / '.git/deep/big')!r}, 'wb').write(bytes(12 << 20)); import time; time.sleep(1.5)"
    outcome = cage.run(code, backend=cage.backend(narrowing(project)), disk_mb=16)
    assert outcome.result.ok, outcome.result


@pytest.mark.attack("S2-02")
@pytest.mark.claim("WC-FS-3")
def test_landlock_alone_refuses_what_it_cannot_keep(cage: Cage, project: Path) -> None:
    with pytest.raises(EnforcerUnavailable, match="read-only inside"):
        cage.run("print(1)", backend=cage.backend(narrowing(project), enforcer="landlock"))


@pytest.mark.attack("S2-08")
@pytest.mark.claim("WC-FS-3")
@pytest.mark.parametrize("target", ["/code", "/code/x", "/out", "/tmp", "/home", "/home/sandbox"])
@pytest.mark.parametrize("enforcer", ["native", "landlock"])
def test_a_policy_made_by_hand_cannot_take_the_cages_places(
    cage: Cage, tmp_path: Path, target: str, enforcer: str
) -> None:
    (tmp_path / "data").mkdir()
    policy = SandboxPolicy((AllowedPath(str(tmp_path / "data"), guest_path=target),), allow_process_spawn=True)
    with pytest.raises(PolicyViolation, match=r"cage|for the guest"):
        cage.run("print(1)", backend=cage.backend(policy, enforcer=enforcer))


@pytest.mark.attack("S2-08")
def test_the_systems_own_files_are_not_written_into_a_path_that_is_shown_there(cage: Cage, tmp_path: Path) -> None:
    """Naming /etc or /var shows the host's directory instead of ours: nothing of ours may appear in it."""
    for name in ("etc", "var"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text(name)
    builder = SandboxPolicyBuilder().allow_process_spawn()
    for name in ("etc", "var"):
        builder = builder.allow_read_write(tmp_path / name, at=f"/{name}")
    code = "import os; print(os.listdir('/etc'), os.listdir('/var'))"
    assert cage.run(code, backend=cage.backend(builder.build())).stdout == "['mine'] ['mine']\n"
    assert [path.name for path in tmp_path.glob("*/*") if "canary" not in str(path)] == ["mine", "mine"]
