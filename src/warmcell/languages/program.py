"""Program: what a language makes of source text. Plain data; nothing has run yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from warmcell.core.records import dataclass, field, replace

#: Stands for the directory that holds the program's files, wherever the run puts it ("/code" in a cage).
CODE_DIR = "{code}"
#: Stands for the memory, in MiB, that the run may use, for programs that must be told.
MEMORY = "{memory_mb}"
#: Stands for the directory that a build writes into and a run finds the artefact in.
OUT_DIR = "{out}"


@dataclass(frozen=True, slots=True)
class Build:
    """A compile step that comes before the run, confined like it but with nothing of the policy in sight.

    `cache_key` covers what only the language knows, such as the compiler's version. The artefact is kept under a key
    that covers everything (`backends.process.builds.keyed`); nothing else may decide whether one is found again.
    """

    argv: tuple[str, ...]
    artefact: str
    cache_key: str

    def beside(self, files: Mapping[str, bytes]) -> Build:
        """The same step where a request's files lie in the work directory: a header, say, is part of what is made."""
        if not files:
            return self
        import hashlib

        contents = [[path, hashlib.sha256(files[path]).hexdigest()] for path in sorted(files)]
        key = hashlib.sha256(repr([self.cache_key, contents]).encode()).hexdigest()
        return Build(self.argv, self.artefact, key)


@dataclass(frozen=True, slots=True)
class Program:
    """How to start it.

    `argv` names the interpreter by its real absolute path on the host; `{code}` and `{out}` are replaced by the runner.
    `files` are written into the code directory. `runtime_paths` are the host directories, besides /usr, that the
    interpreter or compiler needs read-only at the same place. `worker` names the warm worker that can run
    `files[main_file]` without a new interpreter ("python", "node"), when there is one.
    """

    argv: tuple[str, ...]
    files: Mapping[str, bytes]
    main_file: str
    runtime_paths: tuple[str, ...] = ()
    worker: str | None = None
    build: Build | None = None
    #: The same program for who runs it often: with a build, where a single run is better off without.
    ahead: Program | None = None
    #: Reads the text without running it, and says by its exit status whether that is a program of the language; or
    #: what makes such a one, since most programs are run unchecked.
    check: Program | Callable[[], Program] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    #: For a program that is to be given arguments, where that takes another command line.
    argv_for_args: tuple[str, ...] = ()
    #: Of a command line that a caller gave word by word: where it begins.
    cwd: str = ""

    def argv_in(
        self, code_dir: str, out_dir: str = "/out", memory_mb: int = 512, args: tuple[str, ...] = ()
    ) -> list[str]:
        """The command line for a run that keeps the files in `code_dir`. `args` are taken as they are."""
        if self.cwd:  # "{code}" is then a word of the caller's own
            return [*self.argv, *args]
        argv = (self.argv_for_args if args else ()) or self.argv
        return [*(place(item, code_dir, out_dir).replace(MEMORY, str(memory_mb)) for item in argv), *args]

    def beside(self, shown: tuple[str, ...], path: tuple[str, ...]) -> Program:
        """The same program where it finds more of the host's: the trees, read-only, and directories on its PATH."""
        env = {"PATH": ":".join(path), **self.env}
        return self if self.build is not None else replace(self, runtime_paths=(*self.runtime_paths, *shown), env=env)


def place(item: str, code_dir: str, out_dir: str) -> str:
    """One argument with the directories put in."""
    return item.replace(CODE_DIR, code_dir).replace(OUT_DIR, out_dir)
