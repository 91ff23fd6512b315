"""The command line's grammar. Subcommands are loaded only when they are called."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

from warmcell.interfaces.cli.exits import UsageError
from warmcell.interfaces.cli.quick import split_at_dashes
from warmcell.languages.table import ROWS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

EXIT_STATUSES = (
    "exit status: the guest's own; 124 timeout; 137 memory; 125 warmcell could not run it; 2 wrong usage; 130 ctrl-c"
)


class Formatter(argparse.HelpFormatter):
    """argparse makes one for every option that it is told of, and would load half a dozen modules for the width."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_terminal_width() - 2)


def _terminal_width() -> int:
    try:
        return int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        pass
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return 80


class Parser(argparse.ArgumentParser):
    """argparse in our voice: lower case, a hint, exit status 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message[:1].lower() + message[1:], f"see '{self.prog} --help'")


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments, with `handler` set to the subcommand's function."""
    named = [name for name in argv[:1] if name in _COMMANDS]
    own, for_program = split_at_dashes(argv) if named == ["run"] else (argv, [])
    return build_parser(named).parse_args(own, argparse.Namespace(args=for_program))


def build_parser(names: Iterable[str] = ()) -> Parser:
    """For all commands, or for those that are going to be used."""
    parser = Parser(
        prog="warmcell",
        description="Run code that you did not write.",
        allow_abbrev=False,
        formatter_class=Formatter,
    )
    parser.add_argument("--version", action=_Version, help="print the version and leave")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for name in names or _COMMANDS:
        _COMMANDS[name](commands)
    return parser


class _Version(argparse.Action):
    """Reads the version from the package's metadata, which is too slow to do on every start."""

    def __init__(self, option_strings: list[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"warmcell {version('warmcell')}")
        except PackageNotFoundError:
            print("warmcell (not installed; run from its sources)")
        parser.exit()


def _later(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    def call(arguments: argparse.Namespace) -> int:
        status: int = getattr(import_module(f"warmcell.interfaces.cli.{module}"), function)(arguments)
        return status

    return call


def _add(commands: argparse._SubParsersAction[Parser], name: str, summary: str, epilog: str | None = None) -> Parser:
    return commands.add_parser(
        name, help=summary, description=summary, epilog=epilog, allow_abbrev=False, formatter_class=Formatter
    )


def _add_permissions(command: Parser) -> None:
    """What the guest may do beyond nothing."""
    command.add_argument(
        "--policy", metavar="FILE", help="what it may do, as a .toml or .json file; the rest is added to it"
    )
    for option, metavar, meaning in (
        ("--allow-read", "PATH", "a host path that it may read"),
        ("--allow-write", "PATH", "a host path that it may change"),
        ("--allow-domain", "NAME[:PORT]", "a host that it may talk to"),
        ("--env", "K=V", "a variable of its environment"),
    ):
        command.add_argument(option, metavar=metavar, action="append", default=[], help=meaning)


def _add_run(commands: argparse._SubParsersAction[Parser]) -> None:
    run = _add(commands, "run", "run a program in a sandbox", epilog=EXIT_STATUSES)
    run.usage = "%(prog)s [OPTION]... LANGUAGE|FILE [FILE|-] [-- ARGUMENT...]"
    run.add_argument("target", metavar="LANGUAGE|FILE", help=f"{', '.join(row.name for row in ROWS)}; or a file")
    run.add_argument("source", metavar="FILE|-", nargs="?", help="the program's file; '-' reads it from stdin")
    run.add_argument("-c", "--code", metavar="CODE", help="the program itself")
    run.add_argument("--timeout", metavar="S", default="30", help="seconds until the program is stopped (default 30)")
    run.add_argument("--memory", metavar="MB", help="memory that all its processes may use together")
    run.add_argument(
        "--max-output", metavar="BYTES", help="how much of each of stdout and stderr is kept (default 1 MiB)"
    )
    _add_permissions(run)
    run.add_argument("--backend", metavar="NAME", help="process, wasm or an installed one (default: by language)")
    run.add_argument("--enforcer", metavar="NAME", default="auto", help="default auto; 'none' runs without a cage")
    run.add_argument("--audit", metavar="FILE", help="append what was run, refused and reached to this file, as JSON")
    run.add_argument("--record", metavar="FILE", help="add this run to FILE, for 'warmcell replay'")
    run.add_argument("--json", action="store_true", help="print the whole result as JSON")
    run.set_defaults(handler=_later("run", "run"))


def _add_sh(commands: argparse._SubParsersAction[Parser]) -> None:
    sh = _add(commands, "sh", "run a shell script over the current directory, in WebAssembly", epilog=EXIT_STATUSES)
    sh.add_argument("script", metavar="SCRIPT")
    sh.add_argument("--write", action="store_true", help="let it change the current directory")
    sh.add_argument("--timeout", metavar="S", default="30", help="seconds until the script is stopped (default 30)")
    sh.add_argument("--memory", metavar="MB", help="memory that the script may use")
    sh.add_argument(
        "--policy", metavar="FILE", help="what it may do, as a .toml or .json file; the rest is added to it"
    )
    sh.add_argument("--allow-domain", metavar="NAME", action="append", default=[], help="a host that it may fetch from")
    sh.add_argument("--env", metavar="K=V", action="append", default=[], help="a variable of its environment")
    sh.add_argument("--json", action="store_true", help="print the whole result as JSON")
    sh.set_defaults(handler=_later("shell", "sh"))


def _add_shell(commands: argparse._SubParsersAction[Parser]) -> None:
    shell = _add(commands, "shell", "open an interactive shell in a sandbox", epilog=EXIT_STATUSES)
    shell.add_argument("directory", metavar="DIR", nargs="?", help="what it sees as /work (default: an empty one)")
    shell.add_argument("--write", action="store_true", help="let it change DIR")
    shell.add_argument("--memory", metavar="MB", help="memory that all its processes may use together")
    _add_permissions(shell)
    shell.set_defaults(handler=_later("interactive", "shell"))


def _add_judge(commands: argparse._SubParsersAction[Parser]) -> None:
    epilog = "exit status: 0 every case was accepted; 1 one was not; 125 one could not be judged; 2 wrong usage"
    judge = _add(commands, "judge", "run a program on many cases and check what it prints", epilog=epilog)
    judge.add_argument("file", metavar="FILE", help="the program's file")
    judge.add_argument("--language", metavar="NAME", help="its language, where the file's suffix does not say")
    judge.add_argument(
        "--cases",
        metavar="PATH",
        required=True,
        help="a directory with 1.in and 1.out or with input/ and output/, or a file of JSON lines",
    )
    judge.add_argument("--timeout", metavar="S", default="10", help="seconds for each case (default 10)")
    judge.add_argument("--memory", metavar="MB", help="memory that all its processes may use together")
    judge.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="which time is limited (default wall)")
    judge.add_argument("--checker", choices=("exact", "trim", "tokens", "number"), help="default trim")
    judge.add_argument("--tolerance", metavar="X", help="how far numbers may be off; implies --checker number")
    judge.add_argument("--jobs", metavar="N", help="cases at a time (default: one for each processor)")
    judge.add_argument("--stop-early", action="store_true", help="stop at the first case that is not accepted")
    judge.add_argument("--enforcer", metavar="NAME", default="auto", help="default auto; 'none' runs without a cage")
    judge.add_argument("--json", action="store_true", help="print everything as JSON")
    judge.set_defaults(handler=_later("judge", "judge"))


def _add_serve(commands: argparse._SubParsersAction[Parser]) -> None:
    serve = _add(commands, "serve", "answer over HTTP: our own API, E2B, SandboxFusion, Piston")
    serve.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="where to listen (default: 127.0.0.1)")
    serve.add_argument("--port", metavar="N", default="8000", help="default 8000; 0 takes a free one")
    serve.add_argument("--token", metavar="T", help="what clients must present (better: the variable WARMCELL_TOKEN)")
    serve.add_argument("--tokens", metavar="FILE", help="tokens of several tenants, see 'warmcell token'")
    serve.add_argument("--policy", metavar="FILE", help="the most that any request can ask for, .toml or .json")
    serve.add_argument("--python", metavar="PATH", help="the Python that code gets, with its packages")
    serve.add_argument("--open", action="store_true", help="open the page in a browser")
    serve.add_argument("--max-timeout", metavar="S", default="300", help="the longest run (default 300)")
    serve.add_argument("--max-body", metavar="MB", default="16", help="the largest request (default 16)")
    serve.add_argument("--workers", metavar="N", default="1", help="processes that carry out requests (default 1)")
    serve.add_argument("--spares", metavar="N", help="E2B sandboxes made ahead at most (default: up to 64)")
    serve.set_defaults(handler=_later("serve", "serve"))


def _add_mcp(commands: argparse._SubParsersAction[Parser]) -> None:
    mcp = _add(commands, "mcp", "be a sandbox for an MCP client, over stdio or HTTP")
    mcp.add_argument("--http", action="store_true", help="streamable HTTP at /mcp, a sandbox for each client")
    mcp.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="where to listen (default: 127.0.0.1)")
    mcp.add_argument("--port", metavar="N", default="8000", help="default 8000; 0 takes a free one")
    mcp.add_argument("--token", metavar="T", help="what clients must present (better: the variable WARMCELL_TOKEN)")
    mcp.add_argument(
        "--idle-timeout", metavar="S", default="600", help="when a silent HTTP client's sandbox ends (default 600)"
    )
    mcp.add_argument(
        "--language", metavar="NAME", action="append", default=[], help="offer this one (default: all of this host)"
    )
    mcp.add_argument("--stateless", action="store_true", help="keep no variables from one run_code to the next")
    mcp.add_argument("--python", metavar="PATH", help="a Python with the packages that code may use")
    mcp.add_argument("--work-dir", metavar="DIR", help="a directory to work in (default: a private one)")
    _add_permissions(mcp)
    mcp.add_argument("--timeout", metavar="S", default="30", help="seconds of a run, unless a call says (default 30)")
    mcp.add_argument("--memory", metavar="MB", help="memory that all processes of a run may use together")
    mcp.add_argument("--backend", metavar="NAME", default="process", help="process or wasm (default process)")
    mcp.set_defaults(handler=_later("mcp", "mcp"))


def _add_jupyter(commands: argparse._SubParsersAction[Parser]) -> None:
    jupyter = _add(commands, "jupyter", "give Jupyter a kernel that runs in a sandbox")
    jupyter.add_argument("action", choices=("install",))
    jupyter.add_argument("--name", metavar="NAME", default="warmcell", help="of the kernelspec (default warmcell)")
    jupyter.add_argument("--display-name", metavar="TEXT", help="what people choose it by (default Python (Warmcell))")
    jupyter.add_argument("--python", metavar="PATH", help="a Python with ipykernel (default: this environment's)")
    jupyter.add_argument("--kernel", metavar="NAME", help="put this installed kernel into a cage instead")
    jupyter.add_argument("--user", action="store_true", help="install for you alone (default: this environment)")
    jupyter.add_argument("--prefix", metavar="DIR", help="install for the environment in DIR")
    jupyter.add_argument("--beside-notebook", action="store_true", help="let it work in the notebook's own directory")
    jupyter.add_argument("--work-dir", metavar="DIR", help="a directory to work in (default: a private one)")
    _add_permissions(jupyter)
    jupyter.add_argument("--memory", metavar="MB", default="2048", help="memory of all that runs there (default 2048)")
    jupyter.set_defaults(handler=_later("jupyter", "jupyter"))


def _add_token(commands: argparse._SubParsersAction[Parser]) -> None:
    token = _add(commands, "token", "make, list and revoke tokens for 'warmcell serve --tokens'")
    token.add_argument("action", choices=("new", "list", "revoke"))
    token.add_argument("name", metavar="NAME", nargs="?", help="whose it is; for revoke also an id")
    token.add_argument("--tokens", metavar="FILE", help="default: tokens.json in your configuration directory")
    scopes = ("run", "sandbox", "install", "doctor", "metrics")
    token.add_argument("--scope", action="append", choices=scopes, help="default: all of them")
    token.add_argument("--runs", metavar="N", help="runs at a time (default 64)")
    token.add_argument("--sandboxes", metavar="N", help="sandboxes at a time (default 32)")
    token.add_argument("--disk-mb", metavar="MB", help="disk of each sandbox (default 1024)")
    token.add_argument("--lifetime", metavar="S", help="the longest life of a sandbox (default 86400)")
    token.add_argument("--rate", metavar="N", help="requests in a second (default 1000)")
    token.add_argument("--connections", metavar="N", help="requests under way at a time (default 512)")
    token.add_argument("--json", action="store_true", help="print it as JSON")
    token.set_defaults(handler=_later("serve", "token"))


def _add_doctor(commands: argparse._SubParsersAction[Parser]) -> None:
    doctor = _add(commands, "doctor", "show what this host can enforce, proved by trying")
    doctor.add_argument("--json", action="store_true", help="print the report as JSON")
    doctor.set_defaults(handler=_later("doctor", "doctor"))


def _add_top(commands: argparse._SubParsersAction[Parser]) -> None:
    top = _add(commands, "top", "show what runs now: this host's cages, or a server's runs and sandboxes")
    top.add_argument("--server", metavar="URL", help="of a 'warmcell serve' (default: all cages of this host)")
    top.add_argument("--token", metavar="T", help="of that server (better: the variable WARMCELL_TOKEN)")
    top.add_argument("--sort", choices=("cpu", "memory", "seconds", "program"), default="cpu", help="default cpu")
    top.add_argument("--every", metavar="S", default="1", help="seconds from one look to the next (default 1)")
    top.add_argument("--once", action="store_true", help="print one table and leave; into a pipe it always does")
    top.add_argument("--json", action="store_true", help="print it once, as JSON")
    top.set_defaults(handler=_later("top", "top"))


def _add_bench(commands: argparse._SubParsersAction[Parser]) -> None:
    bench = _add(commands, "bench", "measure what a sandboxed run costs on this host")
    bench.add_argument("--rounds", type=int, default=100, metavar="N", help="samples of each case (default: 100)")
    bench.add_argument("--json", action="store_true", help="print the figures as JSON")
    bench.set_defaults(handler=_later("bench", "bench"))


def _add_audit(commands: argparse._SubParsersAction[Parser]) -> None:
    audit = _add(commands, "audit", "print in words what '--audit FILE' wrote")
    audit.add_argument("file", metavar="FILE", help="'-' reads it from stdin")
    audit.add_argument("--json", action="store_true", help="print each record as JSON, those that are whole")
    audit.set_defaults(handler=_later("audit", "audit"))


def _add_replay(commands: argparse._SubParsersAction[Parser]) -> None:
    epilog = "exit status: 0 every run came out as recorded; 1 one did not; 125 warmcell's failure; 2 wrong usage"
    replay = _add(commands, "replay", "run again what '--record FILE' wrote, and say what differs", epilog=epilog)
    replay.add_argument("file", metavar="FILE")
    replay.add_argument("--trust", action="store_true", help="also runs that were allowed host paths or a network")
    replay.add_argument("--json", action="store_true", help="print the differences as JSON, a line for each run")
    replay.set_defaults(handler=_later("replay", "replay"))


def _add_completion(commands: argparse._SubParsersAction[Parser]) -> None:
    completion = _add(commands, "completion", "print a completion script for your shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(handler=_later("completion", "completion"))


_COMMANDS = {
    "run": _add_run,
    "sh": _add_sh,
    "shell": _add_shell,
    "judge": _add_judge,
    "serve": _add_serve,
    "token": _add_token,
    "mcp": _add_mcp,
    "jupyter": _add_jupyter,
    "doctor": _add_doctor,
    "top": _add_top,
    "bench": _add_bench,
    "audit": _add_audit,
    "replay": _add_replay,
    "completion": _add_completion,
}
