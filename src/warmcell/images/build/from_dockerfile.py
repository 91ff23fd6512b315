"""Builds an image from the stages of a Dockerfile and its context. The caller holds the store's shared lock."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping, Sequence

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import dataclass, replace
from warmcell.images.build.builder import Builder, BuildOptions
from warmcell.images.build.dockerfile import (
    MAX_BYTES,
    Dockerfile,
    Expansions,
    Instruction,
    check_text,
    parse_dockerfile,
    split_words,
)
from warmcell.images.build.instructions import Interpreter
from warmcell.images.build.state import BuildState
from warmcell.images.build.steps import Configure
from warmcell.images.manifests import own_architecture
from warmcell.images.records import StoreParts
from warmcell.workspace.untrusted_files import open_regular

#: Build arguments that a stage can use without an ARG.
_PREDEFINED = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")


@dataclass(frozen=True, slots=True)
class Stage:
    """From one FROM to the next. `base` is "scratch", an image, or the name of an earlier stage."""

    number: int
    name: str
    base: str
    origin: Instruction
    instructions: tuple[Instruction, ...]

    @property
    def steps(self) -> tuple[Instruction, ...]:
        return tuple(item for item in self.instructions if item.name != "ARG")


class StagedBuild:
    """Builds the stages of a Dockerfile. `find_image` returns the digest of an image."""

    def __init__(self, dockerfile: Dockerfile, build_args: Mapping[str, str], find_image: Callable[[str], str]) -> None:
        self._dockerfile, self._build_args, self._find_image = dockerfile, build_args, find_image
        self._platform = _platform_args()
        self._globals: dict[str, str] = {}
        self._expansions = Expansions()
        self.stages = self._split()

    def find_needed(self, target: str | None) -> tuple[Stage, ...]:
        """The target, by default the last stage, and every stage that it depends on, in order."""
        wanted = self.stages[-1] if target is None else self._find(target.lower(), self.stages)
        if wanted is None:
            raise InvalidRequest(f"the Dockerfile has no stage {target!r}", field="target")
        found: dict[int, Stage] = {}
        waiting = [wanted]
        while waiting:
            stage = waiting.pop()
            if stage.number not in found:
                found[stage.number] = stage
                waiting += self._sources(stage)
        return tuple(found[number] for number in sorted(found))

    def build(self, builder: Builder, stages: Sequence[Stage]) -> BuildState:
        state = BuildState()
        for stage in stages:
            builder.stage = (stage.name or f"stage-{stage.number}") if len(stages) > 1 else ""
            state = self._build_stage(builder, stage)
            builder.stages |= {str(stage.number): state} | ({stage.name: state} if stage.name else {})
        return state

    def _split(self) -> list[Stage]:
        stages: list[Stage] = []
        for item in self._dockerfile.instructions:
            if item.name == "FROM":
                stages.append(self._parse_from(item, len(stages)))
            elif stages:
                stages[-1] = replace(stages[-1], instructions=(*stages[-1].instructions, item))
            elif item.name == "ARG":
                self._globals |= self._arg(item, {**self._platform, **self._globals})
            else:
                raise item.error("comes before the first FROM")
        return stages

    def _parse_from(self, item: Instruction, number: int) -> Stage:
        variables = {**self._platform, **self._globals}
        expand, escape = self._expansions.expand, self._dockerfile.escape
        words = [expand(word, variables, escape) for word in split_words(item.rest)]
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS") or not words[0]:
            raise item.error("write it as FROM image [AS name]", "an ARG that it uses may have no value")
        platform = expand(item.flags.get("platform", ("",))[-1], variables, escape)
        if platform not in ("", self._platform["TARGETPLATFORM"]) or set(item.flags) - {"platform"}:
            raise item.error(f"this machine builds {self._platform['TARGETPLATFORM']} only")
        return Stage(number, words[2].lower() if len(words) == 3 else "", words[0], item, ())

    def _sources(self, stage: Stage) -> list[Stage]:
        """Earlier stages that it is based on or copies from."""
        names = [stage.base, *(name for item in stage.instructions for name in item.flags.get("from", ()))]
        earlier = self.stages[: stage.number]
        return [found for name in names if (found := self._find(name.lower(), earlier)) is not None]

    def _find(self, name: str, stages: Sequence[Stage]) -> Stage | None:
        """The latest stage of that name, or the stage of that number."""
        return next((stage for stage in reversed(stages) if name in (stage.name, str(stage.number)) and name), None)

    def _build_stage(self, builder: Builder, stage: Stage) -> BuildState:
        earlier = self._find(stage.base.lower(), self.stages[: stage.number])
        if earlier is not None:
            state = builder.stages[str(earlier.number)]
        else:
            state = builder.start(None if stage.base == "scratch" else self._find_image(stage.base))
        if state.config.get("OnBuild"):
            raise stage.origin.error(f"{stage.base} has ONBUILD instructions, which are not supported")
        return self._apply(builder, stage, state)

    def _apply(self, builder: Builder, stage: Stage, state: BuildState) -> BuildState:
        args = {name: value for name, value in self._build_args.items() if name.lower() in _PREDEFINED}
        has_command = False
        for item in stage.instructions:
            variables = {**args, **state.env}
            if item.name == "ARG":
                args |= self._arg(item, variables)
                continue
            step = Interpreter(variables, args, state.shell, self._dockerfile.escape, self._expansions).make_step(item)
            has_command = has_command or item.name == "CMD"
            if item.name == "ENTRYPOINT" and not has_command and isinstance(step, Configure):
                step = replace(step, fields={"Cmd": None, **step.fields})  # the inherited CMD was for another program
            state = builder.apply(step, state)
        return state

    def _arg(self, item: Instruction, variables: Mapping[str, str]) -> dict[str, str]:
        """The caller's value, else the default, else the value of a global ARG; else unset."""
        found: dict[str, str] = {}
        seen, inherited = dict(variables), {**self._platform, **self._globals}
        for word in split_words(item.rest, self._dockerfile.escape):
            name, equals, default = word.partition("=")
            if name in self._build_args:
                value = self._build_args[name]
            elif equals:
                value = self._expansions.expand(default, seen, self._dockerfile.escape)
            elif name in inherited:
                value = inherited[name]
            else:
                continue
            found[name] = seen[name] = value
        return found


def _platform_args() -> dict[str, str]:
    architecture = own_architecture()
    values = {"PLATFORM": posixpath.join("linux", architecture), "OS": "linux", "ARCH": architecture}
    return {f"{side}{name}": value for side in ("TARGET", "BUILD") for name, value in values.items()}


def build_dockerfile(
    store: StoreParts,
    find_image: Callable[[str], str],
    context: str,
    dockerfile: str,
    build_args: Mapping[str, str],
    target: str | None,
    options: BuildOptions,
) -> str:
    """Build and return the digest of the manifest. The path of the Dockerfile is relative to the context."""
    if not os.path.isdir(context):
        raise InvalidRequest(f"{context!r} is not a directory", field="context_dir")
    for name, value in build_args.items():
        check_text(name, "the name of a build argument")
        check_text(value, f"the build argument {name!r}")
    check_text(dockerfile, "the path of the Dockerfile")
    path = os.path.join(context, dockerfile)
    build = StagedBuild(parse_dockerfile(_read(path)), build_args, find_image)
    stages = build.find_needed(target)
    ignore_file = f"{path}.dockerignore"
    options = replace(
        options,
        context=os.path.realpath(context),
        ignore_lines=tuple(_read(ignore_file).splitlines()) if os.path.isfile(ignore_file) else None,
    )
    builder = Builder(store, options, sum(len(stage.steps) for stage in stages))
    builder.find_image = find_image
    return builder.finish(build.build(builder, stages))


def _read(path: str) -> str:
    with open(open_regular(path, "dockerfile"), "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InvalidRequest(f"{path!r} is larger than {MAX_BYTES} bytes", field="dockerfile")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path!r} is not UTF-8 text", field="dockerfile") from None
