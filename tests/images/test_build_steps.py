"""Steps of builds, carried out in a cage: what a layer has, whose it is, and what becomes of failures."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest
from tests.image_roots import make_busybox

from warmcell import BuildFailed, ExecRequest, Limits, ProcessBackend, SandboxPolicy
from warmcell.images import Image, ImageStore
from warmcell.images.build.build import build_steps
from warmcell.images.build.builder import BuildOptions
from warmcell.images.build.copy import Copier
from warmcell.images.build.steps import Configure, Copy, Env, Run, Step, User, Workdir
from warmcell.images.layer_tar import LayerWriter
from warmcell.images.progress import BuildProgress


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    make_busybox(tmp_path)
    return ImageStore(tmp_path / "store")


@pytest.fixture
def context(tmp_path: Path) -> Path:
    directory = tmp_path / "context"
    (directory / "src/deep").mkdir(parents=True)
    (directory / "src/deep/file").write_text("content")
    (directory / "src/link").symlink_to("/etc/passwd")
    (directory / "tool").write_text("#!/bin/sh\necho tool\n")
    return directory


def build(store: ImageStore, *steps: Step, context: Path | None = None, **options: object) -> Image:
    given = BuildOptions(None if context is None else str(context), **options)  # type: ignore[arg-type]
    return build_steps(store, "busybox:1", steps, "built:1", given)


def layers_of(store: ImageStore, tmp_path: Path) -> list[dict[str, tarfile.TarInfo]]:
    """The members of each layer, as another tool would read them."""
    place = tmp_path / "exported"
    store.export("built:1", place)
    index = json.loads((place / "index.json").read_text())
    manifest = json.loads((place / "blobs/sha256" / index["manifests"][0]["digest"][7:]).read_text())
    found = []
    for layer in manifest["layers"]:
        with tarfile.open(place / "blobs/sha256" / layer["digest"][7:]) as archive:
            found.append({member.name: member for member in archive})
    return found


def run_in(image: Image, script: str, user: str | None = None) -> str:
    with ProcessBackend(image=image, user=user) as backend:
        return backend.execute_blocking(ExecRequest("command", script, 20)).stdout


def test_each_step_that_changes_files_is_a_layer(store: ImageStore, context: Path, tmp_path: Path) -> None:
    image = build(
        store,
        Env({"GREETING": "hello world"}),
        Workdir("/srv/app"),
        Copy(("src",), "."),
        Copy(("tool",), "/bin/", chmod=0o755, chown="5:6"),
        Run('tool > out; echo "$GREETING" >> out; echo $EXTRA >> out; pwd >> out', env={"EXTRA": "once"}),
        Run("rm -r deep && mkdir deep /tmp && rm /bin/ps && echo kept > /tmp/kept"),
        Run("true"),
        User("7:8"),
        Run("echo mine > /tmp/mine"),
        Configure({"Cmd": ["cat", "out"], "Labels": {"a": "b"}}),
        context=context,
    )
    assert (
        image.config.env["GREETING"] == "hello world"
        and "/bin" in image.config.env["PATH"]
        and image.config.user == "7:8"
    )
    assert image.config.cmd == ("cat", "out") and image.config.labels == {"a": "b"}
    assert run_in(image, "cat out; ls deep; ls /bin/ps /tool 2>/dev/null; [ -L link ] && echo link") == (
        "tool\nhello world\nonce\n/srv/app\nlink\n"
    )
    base, made, copied, tool, ran, removed, own = layers_of(store, tmp_path)
    assert "bin/busybox" in base and list(made) == ["srv", "srv/app"]
    assert copied["srv/app/link"].linkname == "/etc/passwd" and "srv/app/deep/file" in copied
    assert (tool["bin/tool"].mode, tool["bin/tool"].uid, tool["bin/tool"].gid) == (0o755, 5, 6)
    assert list(ran) == ["srv", "srv/app", "srv/app/out"]
    assert "bin/.wh.ps" in removed and "srv/app/deep/.wh..wh..opq" in removed and "tmp/kept" in removed
    assert not [name for name in removed if name.startswith(("etc", "dev", "proc"))]
    owners = {(member.uid, member.gid) for layer in (ran, removed) for member in layer.values()}
    assert owners == {(0, 0)}, "never those of the host's user"
    assert {name: member.uid for name, member in own.items()} == {"tmp": 0, "tmp/mine": 7}


def test_a_file_that_changes_while_it_is_copied_is_not_cached(
    store: ImageStore, context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, before, write = Copy(("tool",), "/tool"), (context / "tool").read_text(), Copier.write

    def change(copier: Copier, writer: LayerWriter) -> None:
        (context / "tool").write_text("changed")
        write(copier, writer)

    monkeypatch.setattr(Copier, "write", change)
    assert run_in(build(store, step, context=context), "cat /tool") == "changed"
    monkeypatch.undo()
    (context / "tool").write_text(before)
    assert run_in(build(store, step, context=context), "cat /tool") == before


def test_a_step_is_not_carried_out_twice(store: ImageStore, context: Path) -> None:
    seen: list[BuildProgress] = []
    steps = (Copy(("src",), "/src"), Run("cat /proc/sys/kernel/random/uuid > /id; cat /src/deep/file"))

    def states() -> list[str]:
        found = [event.state for event in seen if event.state in ("cached", "done")]
        seen.clear()
        return found

    first = build(store, *steps, context=context, on_progress=seen.append)
    assert b"content" in b"".join(event.data for event in seen) and states() == ["done", "done"]
    os.utime(context / "src/deep/file", (1, 1))
    again = build(store, *steps, context=context, on_progress=seen.append)
    assert again.digest == first.digest and states() == ["cached", "cached"]
    other = build(store, *steps, context=context, on_progress=seen.append, uses_cache=False)
    assert other.digest != first.digest and states() == ["done", "done"]
    (context / "src/deep/file").write_text("changed")
    build(store, *steps, context=context, on_progress=seen.append)
    assert states() == ["done", "done"]
    store.remove("built:1")
    build(store, *steps, context=context, on_progress=seen.append)
    assert states() == ["done", "done"], "what was removed is not found in the cache"


def test_a_step_depends_on_the_variables_of_the_policy(store: ImageStore) -> None:
    for where in ("here", "there"):
        image = build(store, Run("echo $WHERE > /out"), policy=SandboxPolicy(env={"WHERE": where}))
        assert run_in(image, "cat /out") == f"{where}\n"


def test_a_failed_step_has_its_output_and_leaves_nothing(store: ImageStore) -> None:
    with pytest.raises(BuildFailed) as failed:
        build(store, Run("echo out; echo err >&2; exit 3"))
    assert failed.value.step == "RUN echo out; echo err >&2; exit 3" and failed.value.result.exit_code == 3
    assert (failed.value.result.stdout, failed.value.result.stderr) == ("out\n", "err\n")
    with pytest.raises(BuildFailed, match=r"/nothing"):
        build(store, Run(("/nothing",)))
    with pytest.raises(BuildFailed, match="no user 'stranger'"):
        build(store, User("stranger"), Run("true"))
    assert [image.name for image in store.list()] == ["busybox:1"]
    assert not [name for name in os.listdir(f"{store.path}/layers") if name.startswith(".")]


def test_a_step_has_no_network_and_no_more_disk_than_it_may(store: ImageStore) -> None:
    image = build(store, Run("busybox ip -o link | busybox wc -l > /count"))
    assert run_in(image, "cat /count") == "1\n"
    policy = SandboxPolicy(limits=Limits(disk_mb=8, memory_mb=256))
    script = "i=0; while [ $i -lt 40 ]; do busybox dd if=/dev/zero of=/f$i bs=1M count=1 2>/dev/null; i=$((i+1)); done"
    with pytest.raises(BuildFailed, match="disk"):
        build(store, Run(f"{script}; sleep 20"), policy=policy)
    descriptors = 'for n in 3 4 5 6; do eval "exec $n>/f$n"; rm /f$n; busybox dd if=/dev/zero bs=1M count=4 >&$n; done'
    with pytest.raises(BuildFailed, match="disk"):
        build(store, Run(f"{descriptors}; sleep 20"), policy=policy)


def test_hostile_content_of_a_step_is_refused_or_tamed(store: ImageStore, tmp_path: Path) -> None:
    holes = "for n in 1 2 3; do busybox truncate -s 6M /hole$n; done"
    with pytest.raises(BuildFailed, match="more than 8388608 bytes"):
        build(store, Run(holes), policy=SandboxPolicy(limits=Limits(disk_mb=8)))
    with pytest.raises(BuildFailed, match=r"begin with '\.wh\.'"):
        build(store, Run("echo > /bin/.wh.sh"))
    build(
        store,
        Run("busybox mkfifo /pipe; mkdir /locked; echo secret > /locked/file; chmod 0 /locked/file /locked"),
        Run("echo > /a; busybox ln /a /b; busybox chmod 4755 /a"),
    )
    _, first, second = layers_of(store, tmp_path)
    assert "pipe" not in first and first["locked"].mode == 0 and first["locked/file"].size == 7
    assert second["b"].linkname == "a" and second["a"].mode == 0o4755


def test_changed_owners_are_not_recorded(store: ImageStore, context: Path, tmp_path: Path) -> None:
    """As root, `chown` succeeds and has no effect, in the step and in the layer; `COPY --chown` is recorded."""
    build(
        store,
        Run("echo > /made && busybox chown 5:6 /made /bin/busybox"),
        Copy(("tool",), "/given", chown="5:6"),
        context=context,
    )
    _, ran, copied = layers_of(store, tmp_path)
    assert (ran["made"].uid, ran["made"].gid) == (0, 0)
    assert "bin/busybox" not in ran, "a file of a lower layer is not copied"
    assert (copied["given"].uid, copied["given"].gid) == (5, 6)
    with pytest.raises(BuildFailed):
        build(store, User("5:6"), Run("echo > /own && busybox chown 7 /own"))
