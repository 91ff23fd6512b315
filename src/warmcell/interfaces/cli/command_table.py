"""The commands and options of the command line, as data. `parser.py` makes the parser of it."""

from __future__ import annotations

from warmcell.languages.table import ROWS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Option = tuple[tuple[str, ...], dict[str, Any]]

EXIT_STATUSES = """\
exit status: the guest's own; 124 timeout; 137 memory limit; 125 warmcell
             failed; 2 usage error; 130 ctrl-c"""
RUN_USAGE = "%(prog)s [OPTION]... LANGUAGE|FILE [FILE|-] [-- ARGUMENT...]"
RUN_EXAMPLES = """\
examples:
  warmcell run python -c 'print(6 * 7)'
  warmcell run script.ts --timeout 5 --memory 256 --allow-read ./data
  cat main.py | warmcell run python - -- first-argument"""


def opt(*names: str, help: str | None = None, **settings: object) -> Option:
    """An argument of a command; without a metavar or choices, an option with dashes is a flag."""
    is_flag = names[0].startswith("-") and not settings.keys() & {"metavar", "choices", "action"}
    return names, {"help": help, **settings} | ({"action": "store_true"} if is_flag else {})


def repeatable(name: str, metavar: str, help: str) -> Option:
    return opt(name, metavar=metavar, action="append", default=[], help=help)


def json_flag(help: str = "print the whole result as JSON") -> Option:
    return opt("--json", help=help)


QUIET = opt("-q", "--quiet", help="print no progress, notes and warnings")
ENVIRONMENT = repeatable("--env", "K=V", "set an environment variable")
MEMORY = opt("--memory", metavar="MB", help="memory limit for all processes together")
ENFORCER = opt("--enforcer", metavar="NAME", default="auto", help="default auto; 'none' runs without a cage")
POLICY = opt("--policy", metavar="FILE", help="a policy as .toml or .json; the --allow options add to it")
GPU = opt("--gpu", metavar="N", help="let it use all GPUs; --gpu=0,1: only these")
PERMISSIONS = (
    POLICY,
    repeatable("--allow-read", "PATH", "let it read a host path"),
    repeatable("--allow-write", "PATH", "let it change a host path"),
    repeatable("--allow-domain", "NAME[:PORT]", "let it connect to a host"),
    GPU,
    ENVIRONMENT,
)
LISTEN = (
    opt("--host", metavar="ADDRESS", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"),
    opt("--port", metavar="N", default="8000", help="default 8000; 0 picks a free one"),
    opt("--token", metavar="T", help="the token that clients must send (better: set WARMCELL_TOKEN)"),
)


def timeout(default: int, help: str) -> Option:
    return opt("--timeout", metavar="S", default=str(default), help=f"{help} (default {default})")


def cluster(name: str, help: str) -> Option:
    help += " (default: the one of RAY_ADDRESS, or of this host)"
    return opt(name, metavar="ADDRESS", nargs="?", const="auto", help=help)


USER = opt("--user", metavar="NAME", help="the user in the image, such as root (default: the image's)")
IMAGE = (opt("--image", metavar="REF", help="the root file system of programs (default: this host's)"), USER)

CHANGES = (
    opt("--changes", help="let it work on a layer over the directory; at the end, list its changes and ask"),
    opt("--commit", help="like --changes, but commit them without asking, except flagged ones"),
    opt("--discard", help="like --changes, but discard them"),
    opt("--patch", metavar="FILE", help="like --changes, but write them to FILE as a patch ('-': stdout)"),
)

RUN, SERVE, INSPECT = "run code", "serve agents, editors and teams", "inspect"
#: By name: the group in the help, the summary, and the handler as `module:function`.
COMMANDS = {
    "run": (RUN, "run a program in a sandbox", "run:run"),
    "sh": (RUN, "run a shell script on the current directory, in WebAssembly", "wasm_script:sh"),
    "shell": (RUN, "open an interactive shell in a sandbox", "interactive_shell:shell"),
    "judge": (RUN, "run a program on test cases and check its output", "judge:judge"),
    "eval": (RUN, "judge a model's samples for many tasks and compute pass@k", "eval:evaluate"),
    "image": (RUN, "import, pull, build and export images to run programs in", "image:image"),
    "workspace": (RUN, "create, open and snapshot directories that outlast a sandbox", "workspace:workspace"),
    "serve": (SERVE, "serve HTTP: our own API, E2B, SandboxFusion, Piston; or Docker", "serve:serve"),
    "token": (SERVE, "create, list and revoke tokens for 'warmcell serve --tokens'", "serve:token"),
    "mcp": (SERVE, "serve a sandbox to an MCP client, over stdio or HTTP", "mcp:mcp"),
    "jupyter": (SERVE, "install a Jupyter kernel that runs in a sandbox", "jupyter:jupyter"),
    "doctor": (INSPECT, "show what this host can enforce, proved by trying", "doctor:doctor"),
    "top": (INSPECT, "show this host's cages, or a server's runs and sandboxes", "top:top"),
    "bench": (INSPECT, "measure what a sandboxed run costs on this host", "doctor:bench"),
    "audit": (INSPECT, "print an audit file ('--audit FILE') in words", "replay:audit"),
    "replay": (INSPECT, "repeat recorded runs ('--record FILE') and report differences", "replay:replay"),
    "completion": (INSPECT, "print a completion script for your shell", "completion:completion"),
    "man": (INSPECT, "print the manual page, for 'man -l -'", "manual:man"),
}
OPTIONS: dict[str, tuple[Option, ...]] = {
    "run": (
        opt("target", metavar="LANGUAGE|FILE", nargs="?", help=f"{', '.join(row.name for row in ROWS)}; or a file"),
        opt("source", metavar="FILE|-", nargs="?", help="the program's file; '-' reads it from stdin"),
        opt("-c", "--code", metavar="CODE", help="the program itself"),
        timeout(30, "seconds until the program is stopped"),
        MEMORY,
        opt("--max-output", metavar="BYTES", help="how much of stdout and of stderr to keep (default 1 MiB)"),
        *PERMISSIONS,
        opt("--backend", metavar="NAME", help="process, wasm, ray or an installed one (default: by language)"),
        opt("--image", metavar="REF", help="run it in this image; without LANGUAGE|FILE: its ENTRYPOINT and CMD"),
        USER,
        *CHANGES,
        ENFORCER,
        opt("--audit", metavar="FILE", help="append an audit of runs, refusals and connections to FILE, as JSON"),
        opt("--record", metavar="FILE", help="append this run to FILE, for 'warmcell replay'"),
        json_flag(),
    ),
    "sh": (
        opt("script", metavar="SCRIPT", help="the script, in quotes"),
        opt("--write", help="let it change the current directory"),
        timeout(30, "seconds until the script is stopped"),
        MEMORY,
        POLICY,
        repeatable("--allow-domain", "NAME", "let it fetch from a host"),
        ENVIRONMENT,
        json_flag(),
    ),
    "shell": (
        opt("directory", metavar="DIR", nargs="?", help="mounted at /work (default: an empty directory)"),
        opt("--write", help="let it change DIR"),
        *CHANGES,
        MEMORY,
        *PERMISSIONS,
        *IMAGE,
        json_flag("print errors as JSON"),
    ),
    "judge": (
        opt("file", metavar="FILE", help="the program's file"),
        opt("--language", metavar="NAME", help="its language (default: by the file's suffix)"),
        opt(
            "--cases",
            metavar="PATH",
            required=True,
            help="a directory with 1.in and 1.out or with input/ and output/, or a file of JSON lines",
        ),
        timeout(10, "seconds per case"),
        MEMORY,
        opt("--clock", choices=("wall", "cpu"), default="cpu", help="which time is limited (default cpu)"),
        opt("--checker", choices=("exact", "trim", "tokens", "number"), help="default trim"),
        opt("--tolerance", metavar="X", help="allowed difference of numbers; implies --checker number"),
        opt("--jobs", metavar="N", help="cases in parallel (default: one per processor)"),
        opt("--stop-early", help="stop at the first case that is not accepted"),
        opt("--interactor", metavar="FILE", help="a program that talks to the judged one and decides"),
        opt("--format", choices=("jsonl", "csv"), help="print one line per case instead of the table"),
        opt("--out", metavar="FILE", help="write these lines to FILE (CSV if it ends in .csv)"),
        GPU,
        *IMAGE,
        ENFORCER,
        json_flag("print everything as JSON"),
    ),
    "eval": (
        opt("tasks", metavar="TASKS.jsonl", help="tasks: HumanEval, MBPP, LiveCodeBench, APPS, SWE-bench or our own"),
        opt("samples", metavar="SAMPLES.jsonl", help="what the model wrote: a task's id and a text on each line"),
        opt(
            "--out",
            metavar="FILE",
            default="verdicts.jsonl",
            help="verdicts, resumed if it exists (default: verdicts.jsonl)",
        ),
        opt("--k", metavar="K,...", help="values of k (default 1,5,10,100, up to the number of samples)"),
        opt("--report", metavar="FILE", help="write a report as one HTML file"),
        opt("--jobs", metavar="N", help="samples in parallel (default: two per processor)"),
        ENFORCER,
        json_flag("print the summary as JSON"),
    ),
    "image": (
        opt("action", choices=("list", "import", "pull", "build", "tag", "inspect", "export", "remove", "prune")),
        opt("operands", metavar="OPERAND", nargs="*"),
        opt("-f", "--file", metavar="FILE", help="Dockerfile of a build (default: DIR/Dockerfile)"),
        opt("-t", "--tag", metavar="NAME", help="name of the built image (default: the directory's name)"),
        repeatable("--build-arg", "K=V", "the value of an ARG of the Dockerfile"),
        opt("--target", metavar="STAGE", help="the stage to build (default: the last)"),
        repeatable("--allow-domain", "NAME[:PORT]", "let commands of a build connect to a host"),
        opt("--policy", metavar="FILE", help="network rules, variables and limits of a build, as .toml or .json"),
        opt("--no-cache", help="build every step again, without results of earlier builds"),
        opt("--format", choices=("oci", "docker"), default="oci", help="format of an export (default oci)"),
        opt("--username", metavar="NAME", help="user name at the registry"),
        opt("--password-stdin", help="read the password for the registry from stdin"),
        opt("--plain-http", help="use HTTP, for a registry on this machine"),
        repeatable("--mirror", "[REGISTRY=]HOST", "pull from here first (default registry: docker.io)"),
        opt("--store", metavar="DIR", help="the image store (default: images in your cache directory)"),
        json_flag("print it as JSON"),
    ),
    "workspace": (
        opt("action", choices=("create", "list", "open", "stop", "snapshot", "resume", "export", "remove")),
        opt("operands", metavar="OPERAND", nargs="*"),
        opt("--manifest", metavar="FILE", help="contents of a new workspace, as .toml or .json"),
        opt("--name", metavar="NAME", help="name of the new workspace or snapshot"),
        opt("--snapshot", help="take a snapshot when it stops"),
        opt("--store", metavar="URL", help="a directory or URL (default: workspaces in your data directory)"),
        json_flag("print it as JSON"),
    ),
    "serve": (
        *LISTEN,
        opt("--tokens", metavar="FILE", help="tokens of several tenants, see 'warmcell token'"),
        opt("--policy", metavar="FILE", help="the most that a request can ask for, .toml or .json"),
        opt("--python", metavar="PATH", help="the Python that runs code, with its packages"),
        opt("--images", metavar="DIR", help="the image store for requests (default: your own)"),
        opt("--open", help="open the page in a browser"),
        opt("--max-timeout", metavar="S", default="300", help="the longest run (default 300)"),
        opt("--max-body", metavar="MB", default="16", help="the largest request (default 16)"),
        opt("--workers", metavar="N", default="1", help="processes that handle requests (default 1)"),
        cluster("--ray", "run everything on the nodes of a Ray cluster"),
        opt("--public-url", metavar="URL", help="where browsers reach the server through a proxy"),
        repeatable("--trusted-proxy", "ADDRESS", "trust X-Forwarded-* from this address or network"),
        opt(
            "--tls-cert", metavar="FILE", help="serve HTTPS with this certificate chain (PEM, reloaded when it changes)"
        ),
        opt("--tls-key", metavar="FILE", help="the private key, if it is not in the same file"),
        opt("--audit", metavar="FILE", help="append requests, runs and denials as JSON lines"),
        opt("--usage", metavar="FILE", help="keep the figures of /v1/usage over restarts (SQLite)"),
        opt("--state", metavar="DIR", help="keep sandboxes, snapshots and volumes over restarts"),
        opt("--state-key", metavar="FILE", help="encrypt the state with this key (or set WARMCELL_STATE_KEY)"),
        opt("--plain-volumes", help="allow volumes beside --state-key; they are not encrypted"),
        opt("--metrics-by-tenant", help="add counters with the tenant as a label to /metrics"),
        opt("--log-level", choices=("debug", "info", "warning", "error"), default="warning", help="default warning"),
        opt(
            "--log-format", choices=("text", "json"), default="text", help="format of the log on stderr (default text)"
        ),
        opt("--sandboxes", metavar="N", default="32", help="concurrent sandboxes without --tokens (default 32)"),
        opt("--docker-socket", metavar="PATH", help="serve the Docker Engine API at this socket, and no HTTP port"),
        repeatable("--docker-binds", "DIR", "let containers mount DIR and what is below it"),
        repeatable("--docker-network", "NAME[:PORT]", "let containers connect to a host"),
        opt("--docker-containers", metavar="N", default="64", help="the most containers (default 64)"),
        opt("--docker-ignore-capabilities", help="ignore requested capabilities instead of refusing them"),
        opt("--docker-join-output", help="send stdout and stderr of exec as one stream, in the order of writing"),
        opt("--spares", metavar="N", help="the most E2B sandboxes prepared ahead (default: up to 64)"),
        json_flag("print the URL, or why it cannot start, as JSON"),
    ),
    "token": (
        opt("action", choices=("new", "list", "revoke")),
        opt("name", metavar="NAME", nargs="?", help="the owner; for revoke also an id"),
        opt("--tokens", metavar="FILE", help="default: tokens.json in your configuration directory"),
        opt(
            "--scope",
            action="append",
            choices=("run", "sandbox", "install", "doctor", "metrics", "operate", "gpu"),
            help="default: all but metrics, operate and gpu",
        ),
        opt("--runs", metavar="N", help="concurrent runs (default 64)"),
        opt("--sandboxes", metavar="N", help="concurrent sandboxes (default 32)"),
        opt("--disk-mb", metavar="MB", help="disk of each sandbox (default 1024)"),
        opt("--lifetime", metavar="S", help="the longest life of a sandbox (default 86400)"),
        opt("--rate", metavar="N", help="requests per second (default 1000)"),
        opt("--connections", metavar="N", help="concurrent requests (default 512)"),
        opt("--gpu-runs", metavar="N", help="concurrent runs and sandboxes with a GPU (default 1)"),
        opt("--templates", metavar="N", help="builds of E2B templates that are kept (default 64)"),
        json_flag("print it as JSON"),
    ),
    "mcp": (
        opt("--http", help="streamable HTTP at /mcp, with a sandbox for each client"),
        *LISTEN,
        opt("--idle-timeout", metavar="S", default="600", help="end an idle HTTP client's sandbox (default 600)"),
        repeatable("--language", "NAME", "offer this language (default: all that this host can run)"),
        opt("--stateless", help="keep no variables from one run_code to the next"),
        opt("--python", metavar="PATH", help="the Python that runs code, with its packages"),
        opt("--work-dir", metavar="DIR", help="a directory to work in (default: a private one)"),
        opt("--changes", help="keep changes of DIR in a layer; 'warmcell shell DIR --changes' reviews them"),
        *IMAGE,
        *PERMISSIONS,
        timeout(30, "seconds per run, unless a call sets it"),
        MEMORY,
        opt("--backend", metavar="NAME", default="process", help="process or wasm (default process)"),
        json_flag("print the URL of --http, or why it cannot start, as JSON"),
    ),
    "jupyter": (
        opt("action", choices=("install",)),
        opt("--name", metavar="NAME", default="warmcell", help="name of the kernelspec (default warmcell)"),
        opt("--display-name", metavar="TEXT", help="name in Jupyter's menu (default Python (Warmcell))"),
        opt("--python", metavar="PATH", help="a Python with ipykernel (default: this environment's)"),
        opt("--kernel", metavar="NAME", help="run this installed kernel in a cage instead"),
        opt("--user", help="install for the current user (default: for this environment)"),
        opt("--prefix", metavar="DIR", help="install for the environment in DIR"),
        opt("--beside-notebook", help="let it work in the notebook's directory"),
        opt("--work-dir", metavar="DIR", help="a directory to work in (default: a private one)"),
        *PERMISSIONS,
        opt("--memory", metavar="MB", default="2048", help="memory limit of the kernel (default 2048)"),
        json_flag("print the kernel's directory as JSON"),
    ),
    "doctor": (cluster("--cluster", "examine each node of a Ray cluster"), json_flag("print the report as JSON")),
    "top": (
        opt("--server", metavar="URL", help="a 'warmcell serve' (default: all cages of this host)"),
        opt("--token", metavar="T", help="token for that server (better: the variable WARMCELL_TOKEN)"),
        opt("--sort", choices=("cpu", "memory", "seconds", "program"), default="cpu", help="default cpu"),
        opt("--end", metavar="ID", help="end this run or sandbox of the server, and exit"),
        opt("--every", metavar="S", default="1", help="seconds between updates (default 1)"),
        opt("--once", help="print one table and exit; implied if stdout is not a terminal"),
        json_flag("print it once, as JSON"),
    ),
    "bench": (
        opt("--rounds", type=int, default=100, metavar="N", help="samples per case (default: 100)"),
        json_flag("print the figures as JSON"),
    ),
    "audit": (
        opt("file", metavar="FILE", help="'-' reads it from stdin"),
        json_flag("print each complete record as JSON"),
    ),
    "replay": (
        opt("file", metavar="FILE", help="a file that --record wrote"),
        opt("--trust", help="also repeat runs with host paths, a network or weaker isolation"),
        json_flag("print the differences as JSON, one line per run"),
    ),
    "completion": (opt("shell", choices=("bash", "zsh", "fish"), help="a shell"), json_flag("print it as JSON")),
    "man": (json_flag("print commands and options as JSON"),),
}
IMAGE_ACTIONS = """\
actions:
  list                     list the images and their sizes
  import PATH [NAME]       add an OCI layout, docker archive, directory or tar
  pull REFERENCE           get an image from a registry
  build DIR                build an image from a Dockerfile and the files in DIR
  tag REFERENCE NAME       give an image another name
  inspect REFERENCE        print everything known about an image, as JSON
  export REFERENCE PATH    write it as a directory or .tar, in --format
  remove REFERENCE...      remove names, and what no other name needs
  prune                    remove what no name and no running program needs"""
WORKSPACE_ACTIONS = """\
actions:
  create [NAME]            create a workspace, with what --manifest says
  list                     list the workspaces and their snapshots
  open NAME [-- COMMAND]   run a shell in a workspace, or one command
  stop NAME                stop a workspace that is open elsewhere
  snapshot NAME            take a snapshot of a workspace
  resume SNAPSHOT          create a workspace from a snapshot's id or name
  export NAME PATH         write its files to a directory, .tar or .tar.gz
  remove NAME...           remove workspaces, snapshots, and what only they need"""
EPILOGS = {
    "workspace": WORKSPACE_ACTIONS,
    "image": IMAGE_ACTIONS,
    "run": f"{RUN_EXAMPLES}\n\n{EXIT_STATUSES}",
    "sh": EXIT_STATUSES,
    "shell": EXIT_STATUSES,
    "judge": "exit status: 0 all cases accepted; 1 one was not; 125 warmcell failed; 2 usage error",
    "eval": "exit status: 0 every sample has a verdict; 125 some must be judged again; 2 usage error",
    "replay": "exit status: 0 all runs as recorded; 1 one differs; 125 warmcell failed; 2 usage error",
}


def options_of(command: str) -> tuple[Option, ...]:
    return (*OPTIONS[command], QUIET)
