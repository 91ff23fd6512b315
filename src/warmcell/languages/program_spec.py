"""ProgramSpec: source text turned into a command line and files. Plain data; nothing has run yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from warmcell.core.records import dataclass, field, replace

#: Placeholder for the directory of the program's files, wherever the run puts it ("/code" in a cage).
CODE_DIR = "{code}"
#: Placeholder for the run's memory limit in MiB, for interpreters that need to know it.
MEMORY = "{memory_mb}"
#: Placeholder for the directory that a build writes into and a run finds the artefact in.
OUT_DIR = "{out}"


@dataclass(frozen=True, slots=True)
class Build:
    """A compile step before the run, in a cage of its own without anything of the policy.

    `cache_key` covers what only the language knows, such as the compiler's version. The artefact is stored under a key
    that covers everything (`backends.process.building.add_cache_key`); nothing else decides whether it is found again.
    """

    argv: tuple[str, ...]
    artefact: str
    cache_key: str

    def beside(self, files: Mapping[str, bytes]) -> Build:
        """The same step with a request's files in the work directory. A header, say, changes the output."""
        if not files:
            return self
        import hashlib

        contents = [[path, hashlib.sha256(files[path]).hexdigest()] for path in sorted(files)]
        key = hashlib.sha256(repr([self.cache_key, contents]).encode()).hexdigest()
        return Build(self.argv, self.artefact, key)


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """How to start a program.

    `argv` names the interpreter by its real absolute path on the host; the runner replaces `{code}` and `{out}`.
    `files` are written into the code directory. `runtime_paths` are the host directories, besides /usr, that the
    interpreter or compiler needs read-only at the same path. `worker` names the warm worker ("python", "node", or
    "image-python" for an image's own) that can run `files[main_file]` without starting an interpreter.
    """

    argv: tuple[str, ...]
    files: Mapping[str, bytes]
    main_file: str
    runtime_paths: tuple[str, ...] = ()
    worker: str | None = None
    build: Build | None = None
    #: The same program with a build step, worth it if the program runs often.
    ahead: ProgramSpec | None = None
    #: Checks the source without running it; its exit status says whether it is valid. May be a function that makes it.
    check: ProgramSpec | Callable[[], ProgramSpec] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    #: A different command line for runs with arguments, where the language needs one.
    argv_for_args: tuple[str, ...] = ()
    #: Working directory of a command line that the caller gave word by word.
    cwd: str = ""

    def argv_in(
        self, code_dir: str, out_dir: str = "/out", memory_mb: int = 512, args: tuple[str, ...] = ()
    ) -> list[str]:
        """The command line for a run with its files in `code_dir`. `args` are not substituted."""
        if self.cwd:  # "{code}" is then a word of the caller's own
            return [*self.argv, *args]
        argv = (self.argv_for_args if args else ()) or self.argv
        return [*(place(item, code_dir, out_dir).replace(MEMORY, str(memory_mb)) for item in argv), *args]

    def with_tools(self, paths: tuple[str, ...], search_path: tuple[str, ...]) -> ProgramSpec:
        """The same program with more host directories visible, read-only, and with `search_path` as its PATH."""
        env = {"PATH": ":".join(search_path), **self.env}
        return self if self.build is not None else replace(self, runtime_paths=(*self.runtime_paths, *paths), env=env)


def place(item: str, code_dir: str, out_dir: str) -> str:
    """One argument with its placeholders replaced."""
    return item.replace(CODE_DIR, code_dir).replace(OUT_DIR, out_dir)
