"""Dockerfiles as text: lines, words, variables, and the steps that they mean."""

from __future__ import annotations

import pytest

from warmcell import InvalidRequest
from warmcell.images.build.dockerfile import expand, parse_dockerfile, split_words
from warmcell.images.build.from_dockerfile import StagedBuild
from warmcell.images.build.globs import IgnoreRules, Wildcard
from warmcell.images.build.instructions import Interpreter
from warmcell.images.build.steps import Configure, Copy, Env, Run, Step, User, Workdir

VARIABLES = {"a": "1", "empty": "", "path": "/x y"}
SHELL = ("/bin/sh", "-c")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$a ${a} $b", "1 1 "),
        ("$a_b-${a}_b", "-1_b"),
        ("${b:-x} ${empty:-x} ${empty-x} ${b-x}", "x x  x"),
        ("${a:+yes} ${empty:+yes} ${empty+yes} ${b+yes}", "yes  yes "),
        ("${b:-${c:-$a}}", "1"),
        (r"\$a '$a' \"$a\"", '$a $a "1"'),
        ('"$path" "\\x"', "/x y \\x"),
        ("$ 5$", "$ 5$"),
        ("${b:-a\\}b}", "a}b"),
    ],
)
def test_variables(text: str, expected: str) -> None:
    assert expand(text, VARIABLES) == expected


@pytest.mark.parametrize("text", ["${a", "'a", '"a', "${a%x}", "${b:?needed}", "${}", "${b:-" * 100 + "}" * 100])
def test_bad_words_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        expand(text, VARIABLES)


def test_words() -> None:
    assert split_words("a 'b c' d\\ e \"f g\"h\t i") == ["a", "'b c'", "d\\ e", '"f g"h', "i"]
    assert split_words("C:\\dir ` b", "`") == ["C:\\dir", "` b"]


def steps_of(text: str, args: dict[str, str] | None = None) -> list[Step]:
    parsed = parse_dockerfile(text)
    found = [item for item in parsed.instructions if item.name not in ("FROM", "ARG")]
    return [Interpreter({"v": "value"}, args or {}, SHELL, parsed.escape).make_step(item) for item in found]


def step_of(text: str) -> Step:
    return steps_of(f"FROM x\n{text}\n")[0]


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("RUN a && \\\n# comment\n\n  b", Run("a &&   b", {}, text="RUN a &&   b")),
        ('run ["a", "$v"]', Run(("a", "$v"), {}, text='run ["a", "$v"]')),
        ("RUN [not json", Run("[not json", {}, text="RUN [not json")),
        ("RUN <<E\necho $v\n\tx\nE", Run("echo $v\n\tx\n", {}, text="RUN <<E")),
        ("RUN <<-E\n\techo\n\tE", Run("echo\n", {}, text="RUN <<-E")),
        ("RUN cat <<E > f\nx\nE", Run("cat <<E > f\nx\nE\n", {}, text="RUN cat <<E > f")),
        ("RUN <<E\n#!/bin/cat\nE", Run("", {}, "#!/bin/cat\n", text="RUN <<E")),
        ("RUN --network=none a", Run("a", {}, has_network=False, text="RUN --network=none a")),
        ("RUN cat <<< x", Run("cat <<< x", {}, text="RUN cat <<< x")),
        ("COPY a $v/ c/", Copy(("a", "value/"), "c/", text="COPY a $v/ c/")),
        ('COPY ["a b", "c"]', Copy(("a b",), "c", text='COPY ["a b", "c"]')),
        (
            "COPY --from=s --chown=$v:1 --chmod=0755 --link a b",
            Copy(("a",), "b", "s", "value:1", 0o755, text="COPY --from=s --chown=$v:1 --chmod=0755 --link a b"),
        ),
        ("COPY <<E /f\n$v 'x'\nE", Copy((), "/f", inline={"E": b"value 'x'\n"}, text="COPY <<E /f")),
        ("COPY <<'E' /f\n$v\nE", Copy((), "/f", inline={"E": b"$v\n"}, text="COPY <<'E' /f")),
        ("ADD a.tar /", Copy(("a.tar",), "/", unpacks=True, text="ADD a.tar /")),
        ("ENV a=$v b='x y' c=d\\ e", Env({"a": "value", "b": "x y", "c": "d e"}, "ENV a=$v b='x y' c=d\\ e")),
        ("ENV a  b c", Env({"a": "b c"}, "ENV a  b c")),
        ("WORKDIR /$v", Workdir("/value", "WORKDIR /$v")),
        ("USER $v", User("value", "USER $v")),
        ('LABEL a="b c" d=e', Configure({"Labels": {"a": "b c", "d": "e"}}, 'LABEL a="b c" d=e')),
        ("EXPOSE 80 53/udp", Configure({"ExposedPorts": {"80/tcp": {}, "53/udp": {}}}, "EXPOSE 80 53/udp")),
        ("CMD a b", Configure({"Cmd": ["/bin/sh", "-c", "a b"]}, "CMD a b")),
        ('ENTRYPOINT ["a"]', Configure({"Entrypoint": ["a"]}, 'ENTRYPOINT ["a"]')),
        ('SHELL ["/bin/bash", "-c"]', Configure({"Shell": ["/bin/bash", "-c"]}, 'SHELL ["/bin/bash", "-c"]')),
        ("VOLUME /a /b", Configure({"Volumes": {"/a": {}, "/b": {}}}, "VOLUME /a /b")),
        ("STOPSIGNAL SIGINT", Configure({"StopSignal": "SIGINT"}, "STOPSIGNAL SIGINT")),
        ("HEALTHCHECK NONE", Configure({"Healthcheck": {"Test": ["NONE"]}}, "HEALTHCHECK NONE")),
        (
            "HEALTHCHECK --interval=1m30s --retries=2 CMD a b",
            Configure(
                {"Healthcheck": {"Test": ["CMD-SHELL", "a b"], "Interval": 90 * 10**9, "Retries": 2}},
                "HEALTHCHECK --interval=1m30s --retries=2 CMD a b",
            ),
        ),
    ],
)
def test_instructions(text: str, step: Step) -> None:
    assert step_of(text) == step


@pytest.mark.parametrize(
    "text",
    [
        "RUN",
        "RUN --mount=type=cache,target=/x a",
        "RUN --network=host a",
        "RUN <<E\nno end",
        "COPY a",
        "COPY --chmod=u+x a b",
        "ADD https://example.com/x /x",
        "ADD git@example.com:x /x",
        "ENV a",
        "ENV a=b c",
        "EXPOSE 70000",
        "EXPOSE 9-8",
        pytest.param("EXPOSE" + " 1-65535" * 4, id="more ports than there are"),
        "SHELL /bin/sh",
        "HEALTHCHECK CMD",
        "HEALTHCHECK --interval=soon CMD a",
        pytest.param("HEALTHCHECK --interval=" + "9" * 400 + "s CMD a", id="long duration"),
        "ONBUILD RUN a",
        "UNKNOWN a",
        "USER ${v:?}x ${q:?no}",
    ],
)
def test_bad_instructions_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        step_of(text)


def test_the_escape_directive() -> None:
    (step,) = steps_of("# syntax=x\n# escape=`\nFROM x\nRUN a `\n  C:\\b\n")
    assert isinstance(step, Run) and step.command == "a   C:\\b"


def make_build(text: str, **build_args: str) -> StagedBuild:
    return StagedBuild(parse_dockerfile(text), build_args, lambda name: name)


def test_stages() -> None:
    text = """ARG base=debian
ARG tag
FROM ${base}:${tag:-12} AS First
FROM scratch
FROM first as last
COPY --from=1 a b
FROM other
"""
    build = make_build(text, tag="13")
    assert [(stage.name, stage.base) for stage in build.stages] == [
        ("first", "debian:13"),
        ("", "scratch"),
        ("last", "first"),
        ("", "other"),
    ]
    assert [stage.number for stage in build.find_needed("LAST")] == [0, 1, 2]
    assert [stage.number for stage in build.find_needed(None)] == [3]
    with pytest.raises(InvalidRequest, match="no stage 'none'"):
        build.find_needed("none")
    for bad in ("RUN a\nFROM x", "FROM x AS", "FROM $nothing", "FROM --platform=linux/s390x x", "# nothing"):
        with pytest.raises(InvalidRequest):
            make_build(bad)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*.py", "a.py", True),
        ("*.py", "a.pyc", False),
        ("a?c", "abc", True),
        ("[a-c]x", "bx", True),
        ("[^a-c]x", "bx", False),
        ("\\*", "*", True),
        ("\\*", "a", False),
        ("a*b*c", "aXbXbc", True),
    ],
)
def test_wildcards(pattern: str, name: str, expected: bool) -> None:
    assert Wildcard(pattern).matches(name) == expected


def test_ignore_rules() -> None:
    rules = IgnoreRules(["# comment", "*.log", "!keep.log", "**/secret", "/dir/", "!dir/good", "a/**/z"])
    ignored = [
        path
        for path in (
            "x.log",
            "keep.log",
            "d/x.log",
            "a/b/secret",
            "secret/x",
            "dir/bad",
            "dir/good",
            "a/b/c/z",
            "a/z",
            "b",
        )
        if rules.ignores(path)
    ]
    assert ignored == ["x.log", "a/b/secret", "secret/x", "dir/bad", "a/b/c/z", "a/z"]


def test_time_is_linear_in_what_strangers_write() -> None:
    """Exponential or quadratic work would not end before the time limit of tests."""
    assert not Wildcard("*a" * 500 + "b").matches("a" * 4000)
    assert IgnoreRules(["**/*a" * 40]).ignores("/".join("a" * 40)) in (True, False)
    with pytest.raises(InvalidRequest, match="take too much time"):
        IgnoreRules(["**/" + "*/" * 30 + str(number) for number in range(10_000)]).ignores("/".join("a" * 100))
    assert len(split_words("x" * 1_000_000)) == 1
    with pytest.raises(InvalidRequest, match="expands to more than"):
        value = "x"
        for _ in range(60):
            value = expand("$v$v", {"v": value})
    with pytest.raises(InvalidRequest, match="too many flags"):
        step_of("RUN " + "--a " * 200_000 + "b")


def test_wildcards_take_bounded_time() -> None:
    """A tenant chooses the wildcard, and 200,000 names that nearly match it."""
    slow = Wildcard("*" + "a" * 120 + "b")
    with pytest.raises(InvalidRequest, match="a wildcard takes too much time"):
        for _ in range(1000):
            slow.matches("a" * 255)
    assert sum(Wildcard("*.py").matches(f"{number}.py") for number in range(1000)) == 1000
    with pytest.raises(InvalidRequest, match="more than 4096"):
        Wildcard("*" + "a" * 5000)
    rules = IgnoreRules(["*" + "a" * 120 + "b"] * 1000)
    with pytest.raises(InvalidRequest, match="take too much time"):
        for _ in range(10):
            rules.ignores("a" * 255)


@pytest.mark.parametrize("start", ["ENV", "LABEL", "VOLUME", "EXPOSE", "ARG"])
def test_memory_is_bounded_whatever_strangers_write(start: str) -> None:
    """One long value that many names repeat would take gigabytes."""
    line, value = " ".join([start, *(f"a{number}=$v." for number in range(40))]), "x" * 500_000
    with pytest.raises(InvalidRequest, match="expand to more than"):
        if start == "ARG":
            make_build(f"ARG v={value}\n{line}\nFROM x\n")
        else:
            Interpreter({"v": value}, {}, SHELL).make_step(parse_dockerfile(f"FROM x\n{line}\n").instructions[1])
