"""Builder: applies steps to an image, one layer for each step that changes files.

    state = builder.start(store.get("debian:12").digest)
    state = builder.apply(Run("apt-get update"), state)
    image = store.add_image(builder.finish(state), "mine:1")

The caller holds the store's shared lock.
"""

from __future__ import annotations

import os
import posixpath
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

from warmcell.core.errors import BackendUnavailable, BuildFailed, ImageInvalid, InvalidRequest, SandboxError
from warmcell.core.records import dataclass, replace
from warmcell.core.types import MIB, ExecResult, Limits
from warmcell.images.build.cache import BuildCache, BuiltLayer, make_key
from warmcell.images.build.copy import Copier
from warmcell.images.build.globs import IgnoreRules
from warmcell.images.build.state import BuildState, base_state
from warmcell.images.build.steps import (
    SEARCH_PATH,
    Configure,
    Copy,
    Env,
    OnStart,
    Run,
    Step,
    StepRun,
    User,
    Workdir,
    describe,
    find_runner,
)
from warmcell.images.build.trees import Tree, UpperLayer
from warmcell.images.image_files import find_user
from warmcell.images.layer_tar import Attributes, LayerWriter
from warmcell.images.layers import LayerSource
from warmcell.images.limits import Budget
from warmcell.images.manifests import OCI_CONFIG, OCI_LAYER, Descriptor, diff_ids, make_manifest, parse_manifest
from warmcell.images.progress import BuildProgress, OnBuildProgress
from warmcell.images.prune import full_disk, is_disk_full
from warmcell.images.records import StoreParts
from warmcell.images.unpack import WhiteoutsUnsupported
from warmcell.lifetime.held_directories import UNFINISHED_LAYERS, create_held_directory
from warmcell.lifetime.own_modes import make_directories
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import effective_limits
from warmcell.workspace.remove import remove_directory

#: Limits of a step unless the policy has its own. Installing packages takes more than a model's program.
BUILD_LIMITS = Limits(memory_mb=4096, processes=1024, open_files=4096, disk_mb=16 * 1024)
_STEP_SECONDS = 3600.0
#: Paths that the cage creates or replaces in the root of a step.
_CAGE_PLACES = frozenset({"dev", "proc", "etc/hosts", "etc/hostname", "etc/resolv.conf"})
#: The exit code of a run that exceeded its disk limit.
_DISK_EXIT = 128 + signal.SIGXFSZ
_SCRIPT = "/dev/shm/.warmcell-script"


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """`context` is the directory that COPY reads, `ignore_lines` replace its .dockerignore; `policy` is for RUN."""

    context: str | None = None
    policy: SandboxPolicy | None = None
    uses_cache: bool = True
    on_progress: OnBuildProgress | None = None
    ignore_lines: tuple[str, ...] | None = None
    #: Called when a command starts, with a function that ends it from any thread.
    on_start: OnStart | None = None
    step_seconds: float = _STEP_SECONDS


class Builder:
    """One build. `total` is the number of steps, for progress. `stages` are for COPY --from."""

    def __init__(self, store: StoreParts, options: BuildOptions, total: int = 0) -> None:
        self._store, self._options = store, options
        self._cache = BuildCache(store.path, store.blobs, store.layers)
        self._policy = _policy_of_steps(options.policy)
        self._total = total
        self._number = 0
        self._ignored: IgnoreRules | None = None
        self.stage = ""
        self.stages: dict[str, BuildState] = {}
        #: Finds the digest of an image that a step names.
        self.find_image: Callable[[str], str] | None = None

    def start(self, digest: str | None) -> BuildState:
        """The state of an image in the store, or an empty one for None. PATH is always set, as in other builders."""
        state = BuildState() if digest is None else self._base(digest)
        return state if "PATH" in state.env else state.with_env({"PATH": SEARCH_PATH})

    def _base(self, digest: str) -> BuildState:
        manifest = parse_manifest(self._store.blobs.read_json(digest))
        document = self._store.blobs.read_json(manifest.config.digest)
        ids = diff_ids(document, len(manifest.layers))
        return base_state(document, ids, manifest.layers, self._store.records.image(digest)["layers"])

    def finish(self, state: BuildState) -> str:
        """Write configuration and manifest; returns the manifest's digest."""
        config = Descriptor(OCI_CONFIG, *self._store.blobs.put_json(state.document()))
        return self._store.blobs.put_json(make_manifest(config, state.blobs))[0]

    def apply(self, step: Step, state: BuildState) -> BuildState:
        """Apply one step. `BuildFailed` names it."""
        self._number += 1
        began, text = time.monotonic(), describe(step)
        self._report(text, "started")
        try:
            after, is_cached = self._apply(step, state, text)
        except SandboxError as error:
            self._report(text, "failed", seconds=time.monotonic() - began)
            if isinstance(error, BuildFailed) or error.fault == "host":
                raise
            result = getattr(error, "result", None) or ExecResult(stderr=f"{error}\n", exit_code=1)
            raise BuildFailed(result, step=text, reason=str(error)) from error
        self._report(text, "cached" if is_cached else "done", seconds=time.monotonic() - began)
        return after

    def _report(self, text: str, state: str, data: bytes = b"", seconds: float = 0.0) -> None:
        if self._options.on_progress is not None:
            progress = BuildProgress(self._number, self._total, text, state, self.stage, data, seconds)  # type: ignore[arg-type]
            self._options.on_progress(progress)

    def _apply(self, step: Step, state: BuildState, text: str) -> tuple[BuildState, bool]:
        """The state afterwards, and whether the layer was in the cache."""
        match step:
            case Run():
                return self._run(step, state, text)
            case Copy():
                return self._copy(step, state, text)
            case Workdir():
                return self._change_directory(step, state, text), False
            case Env():
                return state.with_env(step.variables).add(None, text), False
            case User():
                return state.configure({"User": step.name}).add(None, text), False
            case Configure():
                return state.configure(step.fields).add(None, text), False

    # ---- RUN ----

    def _run(self, step: Run, state: BuildState, text: str) -> tuple[BuildState, bool]:
        if not state.trees:
            raise ImageInvalid("the image is empty: RUN needs a program in it")
        argv, env = _command(step, state.shell)[0], {**state.env, **step.env}
        policy = self._policy if step.has_network else replace(self._policy, allow_network=False, network_rules=())
        # Its variables reach the command, and its rules decide what the command can fetch.
        given = replace(policy, limits=None).to_json()
        key = make_key("run", state.distinct_trees, argv, step.script, env, state.workdir, state.user, given)
        return self._with_cache(key, state, text, lambda: self._run_in_cage(step, state, env, policy, text))

    def _run_in_cage(
        self, step: Run, state: BuildState, env: Mapping[str, str], policy: SandboxPolicy, text: str
    ) -> BuiltLayer:
        lower = self._tree(state)
        argv, files = _command(step, state.shell)
        with self._upper_directory(lower) as directory:
            began = time.monotonic()
            run = StepRun(
                layers=tuple(map(self._store.layers.tree, state.distinct_trees)),
                upper=directory,
                argv=argv,
                env=env,
                cwd=state.workdir,
                user=state.user,
                policy=policy,
                timeout=self._options.step_seconds,
                files=files,
                on_start=self._options.on_start,
                on_output=lambda _, data: self._report(text, "output", data, time.monotonic() - began),
            )
            result = find_runner()(run)
            if result.exit_code != 0:
                if is_disk_full(directory):
                    raise full_disk(self._store.path)
                raise _failure(result, text, policy)
            user = find_user(lower.files, state.user or "root")
            upper = UpperLayer(os.path.join(directory, "upper"), lower, (user.uid, user.gid), _CAGE_PLACES)
            # Sparse files take no disk until they are written to a layer.
            most = effective_limits(policy).disk_mb * MIB
            return self._add_layer(upper.write, min(most, self._store.limits.unpacked_bytes))

    @contextmanager
    def _upper_directory(self, lower: Tree) -> Iterator[str]:
        """A private temporary directory on the store's disk, for an overlay. `sweep` removes it after a crash."""
        make_directories(self._store.layers.path)
        with create_held_directory(UNFINISHED_LAYERS[0], self._store.layers.path) as held:
            try:
                for name in ("upper", "work"):
                    os.mkdir(os.path.join(held.path, name))
                    os.chmod(os.path.join(held.path, name), 0o755)
                root = lower.find("/")
                if root is not None:
                    os.chmod(os.path.join(held.path, "upper"), stat.S_IMODE(root.state.st_mode))
                yield held.path
            finally:
                remove_directory(held.path)

    # ---- COPY and WORKDIR ----

    def _copy(self, step: Copy, state: BuildState, text: str) -> tuple[BuildState, bool]:
        source, ignored = self._source(step)
        copier = Copier(step, source, self._tree(state), state.workdir, ignored, self._store.limits)
        digest = copier.digest()
        key = make_key("copy", state.distinct_trees, digest, step.unpacks)
        is_fixed = step.source is not None  # the files of other stages and images
        is_stale = lambda: not is_fixed and copier.has_changed(digest)  # noqa: E731
        return self._with_cache(key, state, text, lambda: self._add_layer(copier.write), is_stale)

    def _source(self, step: Copy) -> tuple[Tree, IgnoreRules]:
        if step.source is not None:
            return self._tree(self._find_stage(step.source)), IgnoreRules()
        if not step.sources:
            return Tree([]), IgnoreRules()
        context = self._options.context
        if context is None:
            raise InvalidRequest("the build has no context", field="context_dir", hint="name a directory")
        if self._ignored is None:
            lines = self._options.ignore_lines
            self._ignored = IgnoreRules(Tree([context]).files.read_lines(".dockerignore") if lines is None else lines)
        return Tree([context]), self._ignored

    def _find_stage(self, name: str) -> BuildState:
        if name.lower() in self.stages:
            return self.stages[name.lower()]
        if self.find_image is None:
            raise InvalidRequest(f"unknown stage {name!r}", field="source", hint="name an earlier stage of the build")
        return self.start(self.find_image(name))

    def _change_directory(self, step: Workdir, state: BuildState, text: str) -> BuildState:
        path = "/" + posixpath.normpath(posixpath.join(state.workdir, step.path)).lstrip("/")
        after = state.configure({"WorkingDir": path})
        tree = self._tree(state)
        inside = tree.files.locate(path)[0].strip("/")
        found = tree.find(path)
        if found is not None:
            if not found.is_directory:
                raise ImageInvalid(f"{path} is not a directory")
            return after.add(None, text)
        return after.add(self._add_layer(lambda writer: _write_directories(inside, tree, writer)), text)

    # ---- layers ----

    def _with_cache(
        self,
        key: str,
        state: BuildState,
        text: str,
        make: Callable[[], BuiltLayer],
        is_stale: Callable[[], bool] = lambda: False,
    ) -> tuple[BuildState, bool]:
        """`is_stale`: whether the key is no longer that of the files that `make` has read."""
        known = self._cache.find(key) if self._options.uses_cache else None
        if known is not None:
            return state.add(known, text), True
        built = make()
        if not is_stale():
            self._cache.put(key, built)
        return state.add(built, text), False

    def _add_layer(self, write: Callable[[LayerWriter], None], most_bytes: int | None = None) -> BuiltLayer:
        created = datetime.now(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")
        store = self._store
        with store.blobs.writer() as blob:
            limits = store.limits if most_bytes is None else replace(store.limits, unpacked_bytes=most_bytes)
            writer = LayerWriter(blob, Budget(limits))
            write(writer)
            writer.finish()
            if writer.is_empty:
                return BuiltLayer(None, None, created)
            digest = blob.commit()
        source = LayerSource(digest, partial(store.blobs.open, digest), blob.size)
        try:
            store.layers.add([source], Budget(store.limits))
        except WhiteoutsUnsupported:
            hint = "keep the store on another file system: ext4, xfs, btrfs or tmpfs"
            raise BackendUnavailable(
                "the file system of the image store does not support whiteouts", hint=hint
            ) from None
        return BuiltLayer(digest, Descriptor(OCI_LAYER, digest, blob.size), created)

    def _tree(self, state: BuildState) -> Tree:
        layers, ids = self._store.layers, state.distinct_trees
        return Tree(list(map(layers.tree, ids)), list(map(layers.owners, ids)))


def _policy_of_steps(policy: SandboxPolicy | None) -> SandboxPolicy:
    """Steps may start processes; without a policy they have no network."""
    if policy is None:
        return SandboxPolicy(allow_process_spawn=True, limits=BUILD_LIMITS)
    if policy.allowed_paths:
        hint = "leave allowed_paths out, and COPY what the build needs from the context"
        raise InvalidRequest("a build cannot use paths of the host", field="policy", hint=hint)
    return replace(policy, allow_process_spawn=True, limits=policy.limits or BUILD_LIMITS)


def _failure(result: ExecResult, text: str, policy: SandboxPolicy) -> BuildFailed:
    has_network = policy.allow_network or policy.network_rules
    hint = None if has_network else "steps have no network: allow domains in the policy (--allow-domain)"
    reason = f"exit code {result.exit_code}"
    if result.denials:
        denial = result.denials[0]
        reason, hint = f"{reason}; refused: {denial.what!r} ({denial.rule})", denial.hint
    if result.exit_code == _DISK_EXIT:
        reason, hint = f"{reason}: disk limit exceeded", "raise disk_mb in the limits of the policy"
    return BuildFailed(result, step=text, reason=reason, hint=hint)


def _command(step: Run, shell: tuple[str, ...]) -> tuple[tuple[str, ...], Mapping[str, bytes]]:
    """The command line, and the files that it needs."""
    if step.script:
        return (_SCRIPT,), {_SCRIPT: step.script.encode()}
    return ((*shell, step.command) if isinstance(step.command, str) else step.command), {}


def _write_directories(path: str, tree: Tree, writer: LayerWriter) -> None:
    """Add a directory and its parents. Existing ones keep their modes and owners."""
    parts = path.split("/")
    for length in range(1, len(parts) + 1):
        name = "/".join(parts[:length])
        found = tree.find(name)
        writer.add_directory(name, Attributes(0o755) if found is None else tree.attributes(found))
