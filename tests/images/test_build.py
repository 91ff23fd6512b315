"""Builds from Dockerfiles: stages, arguments, contexts, hostile ones included, and the command."""

from __future__ import annotations

import io
import lzma
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.helpers import require
from tests.image_roots import make_busybox
from tests.images.image_files import entry, hardlink, layer, symlink

from warmcell import BuildFailed, ExecRequest, InvalidRequest, ProcessBackend
from warmcell.images import Image, ImageLimits, ImageStore
from warmcell.images.build.trees import Node, Tree
from warmcell.interfaces.cli import main


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    make_busybox(tmp_path)
    return ImageStore(tmp_path / "store")


@pytest.fixture
def context(tmp_path: Path) -> Path:
    directory = tmp_path / "context"
    directory.mkdir()
    return directory


def build(store: ImageStore, context: Path, dockerfile: str, **options: object) -> Image:
    (context / "Dockerfile").write_text(dockerfile)
    return store.build(context, name="built:1", **options)  # type: ignore[arg-type]


def files_of(image: Image) -> dict[str, bytes]:
    """The files of all layers but the base's, by path."""
    found: dict[str, bytes] = {}
    for tree in image.layer_paths:
        for path in Path(tree).rglob("*"):
            if path.is_file() and not path.is_symlink() and not path.is_relative_to(Path(tree) / "bin"):
                found[str(path.relative_to(tree))] = path.read_bytes()
    return found


_STAGES = """\
ARG BASE=busybox
FROM ${BASE}:1 AS build
ARG GREETING=hello
WORKDIR /src
COPY *.txt ./
RUN echo $GREETING \\
    # a comment
    && cat a.txt b.txt > all
SHELL ["/bin/sh", "-e", "-c"]
RUN <<END
echo $GREETING >> all
END

FROM ${BASE}:1 AS unused
RUN exit 1

FROM ${BASE}:1
CMD ["inherited"]
COPY --from=build --chown=5:6 /src/all /app/
COPY <<"END" /app/start
#!/bin/sh
cat /app/all; echo $MODE
END
RUN <<END
#!/bin/sh
busybox chmod 755 /app/start
END
ENV MODE=fast
USER 5:6
WORKDIR /app
EXPOSE 80
VOLUME /data
STOPSIGNAL SIGINT
ENTRYPOINT ["/app/start"]
"""


def test_a_dockerfile_with_stages(store: ImageStore, context: Path) -> None:
    (context / "a.txt").write_text("a\n")
    (context / "b.txt").write_text("b\n")
    (context / "c.md").write_text("c\n")
    image = build(store, context, _STAGES, build_args={"GREETING": "bye"})
    with ProcessBackend(image=image) as backend:
        result = backend.execute_entrypoint_blocking(ExecRequest("command", "start", 20))
    assert result.stdout == "a\nb\nbye\nfast\n"
    config = image.config
    assert (config.user, config.workdir, config.exposed_ports, config.stop_signal) == (
        "5:6",
        "/app",
        ("80/tcp",),
        "SIGINT",
    )
    assert store.owners(image)[1]["app/all"] == (5, 6, 0o644)
    assert build(store, context, _STAGES, target="BUILD").config.workdir == "/src"
    with pytest.raises(BuildFailed, match="exit 1"):
        build(store, context, _STAGES, target="unused")


def test_what_is_copied(store: ImageStore, context: Path) -> None:
    for name in ("src/keep", "src/skip.log", "src/deep/skip.log", "src/deep/kept.log", "src/.env", "other"):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text(name)
    (context / "named").symlink_to("other")
    (context / ".dockerignore").write_text("**/*.log\n!src/deep/kept.log\n**/.env\nDockerfile\n")
    os.mkfifo(context / "src/pipe")
    os.link(context / "src/keep", context / "src/again")
    image = build(
        store,
        context,
        "FROM busybox:1\nRUN mkdir /real && busybox ln -s real /link && busybox chmod 700 /real\n"
        "COPY --exclude=src/again src /link/src\nCOPY named other /dir/\nCOPY --chmod=600 n?med /file\nCOPY . /all/\n",
    )
    found = {path: content.decode() for path, content in files_of(image).items() if not path.startswith("all/")}
    assert found == {
        "real/src/keep": "src/keep",
        "real/src/deep/kept.log": "src/deep/kept.log",
        "dir/named": "other",
        "dir/other": "other",
        "file": "other",
    }
    everything = {path for path in files_of(image) if path.startswith("all/")}
    assert everything == {"all/.dockerignore", "all/other", "all/src/again", "all/src/deep/kept.log", "all/src/keep"}
    copied = Path(image.layer_paths[2])
    assert (copied / "real").stat().st_mode & 0o777 == 0o700, "a directory of the image keeps its mode"


@pytest.mark.parametrize(
    "line",
    [
        "COPY ../secret /",
        "COPY /../secret /",
        "COPY escape /",
        "COPY up/secret /",
        "COPY gone /",
        "COPY a* /x",
        "ADD ./ /bin/sh",
    ],
)
def test_no_path_leads_out_of_the_context(store: ImageStore, context: Path, line: str) -> None:
    (context.parent / "secret").write_text("secret")
    (context / "escape").symlink_to("../secret")
    (context / "up").symlink_to("..")
    (context / "plain").write_text("plain")
    with pytest.raises(BuildFailed) as failed:
        build(store, context, f"FROM busybox:1\n{line}\n")
    assert failed.value.step == line and "secret" not in failed.value.result.stdout
    assert [image.name for image in store.list()] == ["busybox:1"]


def test_a_hard_link_to_a_file_that_another_source_replaces(store: ImageStore, context: Path) -> None:
    """It keeps its own content, not that of the file which took the other name."""
    for name in ("one", "two"):
        (context / name).mkdir()
    (context / "one/a").write_text("linked")
    (context / "two/a").write_text("replaced")
    os.link(context / "one/a", context / "two/b")
    os.link(context / "one/a", context / "two/c")
    image = build(store, context, "FROM scratch\nCOPY one two /d/\n")
    root = Path(image.layer_paths[0]) / "d"
    assert [(root / name).read_text() for name in "abc"] == ["replaced", "linked", "linked"]


def test_links_inside_what_is_copied_stay_links(store: ImageStore, context: Path) -> None:
    """A link of the context or of a stage is never followed on this host, whatever it points to."""
    (context.parent / "secret").write_text("secret")
    (context / "dir").mkdir()
    (context / "dir/link").symlink_to(context.parent / "secret")
    image = build(
        store,
        context,
        "FROM busybox:1 AS first\nCOPY dir /d\nRUN busybox ln -s / /d/root && busybox ln -s ../../.. /d/up\n"
        "FROM scratch\nCOPY --from=first /d/ /d/\nCOPY --from=first /d/root/bin/busybox /d/up/bin/busybox /tools/\n",
    )
    assert (Path(image.layer_paths[0]) / "d/link").is_symlink()
    assert list(files_of(image)) == ["tools/busybox"]
    with pytest.raises(BuildFailed, match="not found"):
        build(store, context, "FROM busybox:1 AS first\nCOPY dir /d\nFROM scratch\nCOPY --from=first /d/link /x\n")


def test_archives_are_unpacked_by_add_alone(store: ImageStore, context: Path) -> None:
    members = layer(entry("sub/file", b"x", uid=7), symlink("sub/link", "file"), hardlink("hard", "sub/file"))
    (context / "a.tar").write_bytes(members)
    (context / "a.tar.xz").write_bytes(lzma.compress(layer(entry("from-xz", b"y"))))
    (context / "plain").write_text("not an archive")
    image = build(store, context, "FROM scratch\nADD a.tar a.tar.xz plain /x/\nCOPY a.tar /y/\n")
    assert files_of(image) == {
        "x/sub/file": b"x",
        "x/hard": b"x",
        "x/from-xz": b"y",
        "x/plain": b"not an archive",
        "y/a.tar": members,
    }
    (context / "a.tar").write_bytes(layer(entry("../../out", b"x")))
    with pytest.raises(BuildFailed):
        build(store, context, "FROM scratch\nADD a.tar /\n")
    (context / "a.tar").write_bytes(layer(entry(".wh.sh", b"x")))
    with pytest.raises(BuildFailed, match=r"\.wh\."):
        build(store, context, "FROM scratch\nADD a.tar /\n")


def test_the_owner_of_an_archives_new_parents_is_not_another_builds(store: ImageStore, context: Path) -> None:
    """The digest had the owner of each file, and an archive has its own: the cached layer had the first build's."""
    (context / "a.tar").write_bytes(layer(entry("file", b"x")))
    build(store, context, "FROM scratch\nADD --chown=5:6 a.tar /srv/app/\n")
    other = build(store, context, "FROM scratch\nADD a.tar /srv/app/\n")
    again = build(store, context, "FROM scratch\nADD --chown=5:6 a.tar /srv/app/\n")
    assert [store.owners(image)[0].get("srv", (0, 0, 0o755))[:2] for image in (other, again)] == [(0, 0), (5, 6)]


def test_huge_files_are_refused_before_they_are_read(tmp_path: Path, context: Path) -> None:
    store = ImageStore(tmp_path / "store", limits=ImageLimits(unpacked_bytes=1 << 20, entries=1000))
    with (context / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BuildFailed, match="more than"):
        build(store, context, "FROM scratch\nCOPY huge /\n")
    bomb = io.BytesIO()
    with tarfile.open(fileobj=bomb, mode="w:gz") as archive:
        info = tarfile.TarInfo("zeros")
        info.size = 64 << 20
        archive.addfile(info, io.BytesIO(bytes(info.size)))
    (context / "bomb.tar.gz").write_bytes(bomb.getvalue())
    with pytest.raises(BuildFailed, match="more than"):
        build(store, context, "FROM scratch\nADD bomb.tar.gz /\n")
    assert not [name for name in os.listdir(f"{store.path}/blobs") if name.startswith(".")]


@pytest.mark.parametrize(("target", "line"), [(".", "COPY */* /d/"), ("files", "COPY l* /d/")])
def test_links_do_not_multiply_what_is_copied(
    tmp_path: Path, context: Path, monkeypatch: pytest.MonkeyPatch, target: str, line: str
) -> None:
    """A pattern follows links: a thousand of them made millions of entries in memory before any was counted."""
    (context / "files").mkdir()
    for number in range(50):
        (context / "files" / str(number)).touch()
    for number in range(40):
        (context / f"l{number}").symlink_to(target)
    listed, children = list[str](), Tree.children

    def count(tree: Tree, node: Node) -> list[Node]:
        listed.append(node.path)
        return children(tree, node)

    monkeypatch.setattr(Tree, "children", count)
    store = ImageStore(tmp_path / "store", limits=ImageLimits(entries=200))
    with pytest.raises(BuildFailed, match="more than 200 entries"):
        build(store, context, f"FROM scratch\n{line}\n")
    assert len(listed) < 10


@pytest.mark.parametrize(
    ("dockerfile", "arguments"),
    [
        ("FROM scratch\nCOPY a\0b /x\n", {}),
        ("FROM scratch\nWORKDIR /a\0b\n", {}),
        ("FROM scratch\nENV A=a\0b\n", {}),
        ('FROM scratch\nCMD ["a\\u0000b"]\n', {}),
        ('FROM scratch\nCMD ["\\ud800"]\n', {}),
        ("FROM scratch\nARG A\nWORKDIR /$A\n", {"A": "a\0b"}),
        ("FROM scratch\nARG A\nWORKDIR /$A\n", {"A": "\ud800"}),
        ("FROM scratch\nARG A\n", {"A\0B": "a"}),
    ],
)
def test_text_that_no_program_can_have(
    store: ImageStore, context: Path, dockerfile: str, arguments: dict[str, str]
) -> None:
    (context / "Dockerfile").write_text(dockerfile)
    with pytest.raises(InvalidRequest, match=r"null byte|Unicode"):
        store.build(context, build_args=arguments, name="x")
    with pytest.raises(InvalidRequest, match="null byte"):
        store.build(context, "a\0b", name="x")


def test_bad_requests(store: ImageStore, context: Path, tmp_path: Path) -> None:
    for dockerfile in ("RUN a\n", "FROM busybox:1\nNOPE\n", "FROM busybox:1\nRUN --mount=type=cache x\n"):
        with pytest.raises(InvalidRequest):
            build(store, context, dockerfile)
    with pytest.raises(BuildFailed, match="no image"):
        build(store, context, "FROM busybox:1\nCOPY --from=nowhere /a /b\n")
    (context / "Dockerfile").unlink()
    (context / "Dockerfile").symlink_to("/etc/passwd")
    with pytest.raises(InvalidRequest, match="not a regular file"):
        store.build(context)
    with pytest.raises(InvalidRequest, match="not a directory"):
        store.build(tmp_path / "nothing")


def test_the_command(store: ImageStore, context: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (context / "Dockerfile").write_text("FROM busybox:1\nARG A\nRUN echo \x1b[31m$A\nRUN exit $A\n")
    words = ["image", "build", "--store", store.path, "-t", "app:1", str(context)]
    assert main([*words, "--build-arg", "A=0"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("app:1  sha256:")
    assert (
        "#1 [1/2] RUN echo" in said.err
        and "\\x1b[31m0" in said.err
        and "#2 DONE" in said.err
        and "\x1b" not in said.err
    )
    assert main([*words, "--build-arg", "A=0"]) == 0
    assert "#1 CACHED" in capsys.readouterr().err
    assert main([*words, "--build-arg", "A=3", "-f", str(context / "Dockerfile")]) != 0
    said = capsys.readouterr()
    assert "#2 ERROR" in said.err and "exit code 3" in said.err and not said.out


def test_other_tools_accept_the_image(store: ImageStore, context: Path, tmp_path: Path) -> None:
    for tool in ("skopeo", "umoci"):
        found = subprocess.run(["which", tool], capture_output=True, check=False)
        require(found.returncode == 0, f"{tool} is not installed")
    (context / "file").write_text("content")
    build(store, context, 'FROM busybox:1\nCOPY file /f\nRUN rm /bin/ps && mkdir /made\nENV A=b\nCMD ["x"]\n')
    store.export("built:1", tmp_path / "layout")
    layout = f"oci:{tmp_path}/layout:1"
    inspected = subprocess.run(["skopeo", "inspect", "--config", layout], capture_output=True, text=True, check=True)
    assert '"A=b"' in inspected.stdout
    copied = f"docker-archive:{tmp_path}/docker.tar"
    subprocess.run(["skopeo", "--insecure-policy", "copy", layout, copied], capture_output=True, check=True)
    unpacked = ["umoci", "unpack", "--rootless", "--image", f"{tmp_path}/layout:1", str(tmp_path / "bundle")]
    subprocess.run(unpacked, capture_output=True, check=True)
    root = tmp_path / "bundle/rootfs"
    assert (root / "f").read_text() == "content" and (root / "made").is_dir() and not (root / "bin/ps").is_symlink()
    assert ImageStore(tmp_path / "again").import_(tmp_path / "docker.tar", "x").config.cmd == ("x",)
