"""Every command exists and answers --help; the important ones equal GNU's byte for byte."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import toolbox_harness as harness

Mounts = dict[str, Path]

WANTED = """cat head tail tac rev nl wc sort uniq cut paste join comm tr fold expand unexpand column split strings od xxd hexdump grep egrep fgrep rg sed awk jq
find xargs ls tree stat file du df touch mkdir rmdir rm cp mv ln readlink realpath basename dirname mktemp tee diff patch cmp base64 md5sum sha1sum sha256sum
sha512sum tar gzip gunzip zcat zip unzip echo printf seq yes true false test [ expr env printenv date sleep which whoami hostname uname id pwd timeout shuf
truncate numfmt bc less watch chmod sh bash curl""".split()


def manifest() -> dict[str, object]:
    return json.loads(harness.ARTEFACT.with_name("toolbox.json").read_text())


def test_every_wanted_command_is_listed() -> None:
    listed = manifest()["commands"]
    assert set(WANTED) <= set(listed)
    assert harness.run(["toolbox", "--list"]).text.split() == listed


@pytest.mark.parametrize("name", sorted(set(WANTED) - {"test", "[", "echo"}))
def test_help(name: str, mounts: Mounts) -> None:
    outcome = harness.run([name, "--help"], mounts)
    assert outcome.code == 0
    assert "Usage:" in outcome.text


def test_unknown_command(mounts: Mounts) -> None:
    assert harness.run(["nonesuch"], mounts).code == 127
    outcome = harness.run(["sh", "-c", "nonesuch"], mounts)
    assert (outcome.code, outcome.errors) == (127, "sh: line 1: nonesuch: command not found\n")


@pytest.fixture(scope="module")
def inputs() -> dict[str, bytes]:
    chance = random.Random(7)
    words = ["apple", "Banana", "cherry", "date", "eggplant", "fig", "Größe", "naïve", "x", ""]
    rows = [
        f"{chance.randint(-50, 5000)}\t{chance.choice(words)} {chance.choice(words)},{chance.random():.3f}"
        for _ in range(300)
    ]
    return {
        "rows": ("\n".join(rows) + "\n").encode(),
        "unterminated": b"one\ntwo\n\n\nthree  four\tfive",
        "numbers": "".join(f"{chance.randint(0, 99)}\n" for _ in range(200)).encode(),
        "bytes": bytes(chance.randrange(256) for _ in range(777)),
    }


COMPARED = [
    "cat -A",
    "cat -n",
    "cat -bs",
    "head -n 3",
    "head -c 50",
    "head -n -5",
    "tail -n 4",
    "tail -n +7",
    "tail -c 33",
    "tac",
    "nl",
    "nl -ba",
    "wc",
    "wc -l",
    "wc -w",
    "wc -c",
    "sort",
    "sort -r",
    "sort -n",
    "sort -k2",
    "sort -t, -k2n",
    "sort -u",
    "sort -f",
    "sort -k1,1n -k2,2r",
    "sort -V",
    "uniq",
    "uniq -c",
    "uniq -d",
    "uniq -i",
    "cut -f2",
    "cut -d, -f1",
    "cut -c2-5",
    "cut -b1-3,7-",
    "tr a-z A-Z",
    "tr -d aeiou",
    "tr -s '\\n'",
    "tr -cd '0-9\\n'",
    "fold -bsw 12",
    "fold -bsw 20",
    "expand",
    "unexpand -a",
    "od",
    "od -c",
    "od -An -tx1",
    "od -tx2 -Ad",
    "xxd",
    "xxd -p",
    "base64",
    "base64 -w 20",
    "md5sum",
    "sha1sum",
    "sha256sum",
    "sha512sum",
    "cksum",
    "grep a",
    "grep -c e",
    "grep -n apple",
    "grep -v a",
    "grep -io banana",
    "grep -E '(apple|fig) '",
    "grep -w fig",
    "grep -m2 a",
    "grep -A1 -B1 fig",
    "grep -x ''",
    "grep -F ,0.",
    "sed s/a/X/g",
    "sed -n 2,4p",
    "sed 3d",
    "sed '$!d'",
    "sed -E 's/([0-9]+)/<\\1>/'",
    "sed y/abc/xyz/",
    "sed '/fig/,/date/d'",
    "sed 'N;P;D'",
    "sed = ",
    "sed -n '$='",
    "sed '1~3d'",
    "awk '{print $2}'",
    "awk -F, '{s+=$2} END {printf \"%.2f\\n\", s}'",
    "awk 'NR%2'",
    "awk '{n[$2]++} END {print length(n)}'",
    "paste -sd,",
    "paste - -",
    "rev",
    "strings",
    "split -l 50 - out",
    "comm -12 - rows",
]


@pytest.mark.parametrize("command", COMPARED)
@pytest.mark.parametrize("name", ["rows", "unterminated", "numbers"])
def test_agrees_with_gnu(command: str, name: str, inputs: dict[str, bytes], mounts: Mounts, tmp_path: Path) -> None:
    tool = command.split()[0]
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed here")
    real_dir = tmp_path / "real"
    real_dir.mkdir()
    for directory in (real_dir, mounts["/work"]):
        (directory / "rows").write_bytes(inputs["rows"])
    real = subprocess.run(
        ["bash", "-c", command],
        cwd=real_dir,
        input=inputs[name],
        capture_output=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
    )
    ours = harness.run(["sh", "-c", command], mounts, stdin=inputs[name])
    assert (ours.code, ours.text) == (real.returncode, real.stdout.decode("utf-8", "surrogateescape"))
    made = {path.name: path.read_bytes() for path in real_dir.iterdir()}
    assert {path.name: path.read_bytes() for path in mounts["/work"].iterdir()} == made


def test_awk_counts_characters(mounts: Mounts, inputs: dict[str, bytes]) -> None:
    """As in POSIX. Not compared with the host's awk, which may count bytes."""
    lines = inputs["rows"].decode().splitlines()
    outcome = harness.run(["awk", "{print length} length > 12 {n++} END {print n}"], mounts, stdin=inputs["rows"])
    wanted = [*(len(line) for line in lines), sum(len(line) > 12 for line in lines)]
    assert outcome.text.split() == [str(number) for number in wanted]


def test_diff_and_patch_round_trip(mounts: Mounts, inputs: dict[str, bytes]) -> None:
    old = inputs["rows"].decode()
    lines = old.splitlines(keepends=True)
    new = "".join([*lines[:20], "inserted\n", *lines[25:200], "changed\n", *lines[201:]])
    (mounts["/work"] / "old").write_text(old)
    (mounts["/work"] / "new").write_text(new)
    script = (
        "diff -u old new > change; test $? = 1 && patch -s old change && cmp old new && diff -q old new && echo same"
    )
    assert harness.run(["sh", "-c", script], mounts).text == "same\n"


def test_archives_round_trip(mounts: Mounts) -> None:
    script = """mkdir -p d/e && echo one > d/a && seq 500 > d/e/b && ln -s a d/link
    tar czf t.tgz d && zip -qr z.zip d && mkdir x y && tar xzf t.tgz -C x && unzip -q z.zip -d y
    diff -r d x/d && diff d/e/b y/d/e/b && readlink x/d/link && gzip -k d/e/b && zcat d/e/b.gz | cmp - d/e/b && echo fine"""
    assert harness.run(["bash", "-c", script], mounts).text == "a\nfine\n"


def test_jq_keeps_key_order_and_numbers(mounts: Mounts) -> None:
    outcome = harness.run(
        ["jq", "-c", ".z += 1 | .new = [.a, 1.50, 1e3]"], mounts, stdin=b'{"z":1,"b":{"y":1,"x":2},"a":null}'
    )
    assert outcome.text == '{"z":2,"b":{"y":1,"x":2},"a":null,"new":[null,1.5,1000]}\n'


@pytest.mark.parametrize(
    "command",
    [
        "jq -R . n1 n2",
        "jq -R . n1 n2 rows",
        "jq -Rs . n1 rows",
        "jq -Rn '[inputs]' n1 n2 n1",
        "jq -R '[input_filename, input_line_number, .]' n1 n2 lines lines",
        "jq -c . n1 n2",
        "jq -c . part1 part2 lines",
        "jq -c '[., input_filename, input_line_number]' lines n1 lines",
        "jq -s -c . n1 lines n2",
        "jq -c -n 'input, input_filename' lines part1 part2",
    ],
)
def test_jq_reads_all_files_as_one_text(command: str, mounts: Mounts, tmp_path: Path) -> None:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed here")
    files = {
        "n1": "1",
        "n2": "2",
        "rows": "a\n\nb",
        "part1": '{"a":',
        "part2": "5}",
        "lines": '\n{"k":1}\n[1,\n2]\n\n"x"\n',
    }
    real_dir = tmp_path / "real"
    real_dir.mkdir()
    for name, content in files.items():
        (real_dir / name).write_text(content)
        (mounts["/work"] / name).write_text(content)
    real = subprocess.run(["bash", "-c", command], cwd=real_dir, capture_output=True, text=True, check=False)
    ours = harness.run(["sh", "-c", command], mounts)
    assert (ours.code, ours.text) == (real.returncode, real.stdout)


def test_jq_raw_lines_go_on_in_the_next_file(mounts: Mounts) -> None:
    """The same by expected text, for hosts without jq."""
    assert harness.run(["sh", "-c", "printf a >1; printf 'b\\nc' >2; jq -R . 1 2"], mounts).text == '"ab"\n"c"\n'


def test_everybody_is_the_user_of_the_process_cage(mounts: Mounts) -> None:
    script = "whoami; id -un; id -u; touch f; stat -c %U f; ls -l f | cut -d' ' -f3; find . -user sandbox -name f; echo ~sandbox"
    assert harness.run(["sh", "-c", script], mounts).text.split() == [
        "sandbox",
        "sandbox",
        "1000",
        "sandbox",
        "sandbox",
        "./f",
        "/work",
    ]


@pytest.mark.parametrize(
    "command", ["whoami x", "whoami -x", "id -u -g", "id -n", "id nosuchuser", "id root", "id -u 0", "groups root"]
)
def test_identity_answers_as_coreutils(command: str, mounts: Mounts) -> None:
    real = subprocess.run(
        command.split(), capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    )
    ours = harness.run(command.split(), mounts)
    assert (ours.code, ours.text, ours.errors) == (real.returncode, real.stdout, real.stderr)
