"""Hostile scripts: nothing in them runs, reading them ends, and every line has its account."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_launch.base.errors import UsageError
from hpc_launch.from_script.convert import convert, understand
from hpc_launch.from_script.old_job import OldScript
from hpc_launch.from_script.script_text import decode
from tests.from_script.test_forty import SCRIPTS

HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n"


def read(text: str, folder: str = "/submitted") -> OldScript:
    return understand(text, "job.sbatch", folder, {})


def accounted(script: OldScript, text: str) -> bool:
    return [account.line for account in script.accounts] == [
        number for number, line in enumerate(text.split("\n"), 1) if line.strip()
    ]


TRAPS = {
    "substitution": "X=$(touch TRAP)\nexport Y=$(touch TRAP)\npython train.py --x $(touch TRAP) --y $X",
    "backticks": "X=`touch TRAP`\nexport Y=`touch TRAP`\npython train.py `touch TRAP`",
    "eval": "eval touch TRAP\neval \"$(touch TRAP)\"\neval 'touch TRAP'",
    "command": "touch TRAP\n: > TRAP\n/bin/sh -c 'touch TRAP'\npython -c 'open(\"TRAP\", \"w\")'",
    "arithmetic": "a='b[$(touch TRAP)]'\necho $((a))\nN=$((a + $(touch TRAP)))\ntorchrun --nnodes=$((a)) train.py",
    "expansion": 'echo ${X:=$(touch TRAP)}\nY=${Z:-$(touch TRAP)}\npython train.py "${Y@P}" ${!Y}',
    "directive": "#SBATCH --job-name=$(touch TRAP)\n#SBATCH --output=`touch TRAP`\npython train.py",
    "process": "mapfile -t A < <(touch TRAP)\npython train.py <(touch TRAP)",
    "module": "module load $(touch TRAP)\nsource <(touch TRAP)\nsource $(touch TRAP)\ncd $(touch TRAP)",
    "nested": 'srun bash -c "python train.py --x \\"$(touch TRAP)\\" \\`touch TRAP\\`"',
    "yaml": "export X='!!python/object/apply:os.system [touch TRAP]'\npython train.py --x '${shell.$(touch TRAP)}'",
    "heredoc": "cat <<EOF\n$(touch TRAP)\nEOF\npython - <<EOF\nopen('TRAP', 'w')\nEOF",
    "function": "python() { touch TRAP; }\npython train.py",
    "self": "f() { f; }\nf\ng() { h; }\nh() { g; }\ng",
    "trap": "trap 'touch TRAP' EXIT DEBUG",
    "prompt": "PS4='$(touch TRAP)'\nPROMPT_COMMAND='touch TRAP'\nset -x",
}
BROKEN = {
    "heredoc": "cat <<EOF\nnever\nended",
    "quote": "python train.py 'never ended\nnext",
    "substitution": "python train.py $(never ended\n",
    "group": "{ { ( ( if for",
    "escape": "python train.py \\",
    "no words": "bash -c\nsrun\nmpirun\nenv -\npython -m\nread\nmodule\ncd\nprintf -v\nexport",
    "deep": "(" * 5000,
    "deep braces": "${x:-" * 3000,
    "deep substitutions": "$(" * 2000,
    "escapes": "\x1b[2J\x07 python train.py \u202e",
    "long word": "python train.py " + "a" * 900_000,
    "doubling": "A=xxxxxxxxxx\n" + "A=$A$A$A$A\n" * 60 + "python train.py $A",
    "doubling array": "A=(x)\n" + "A=(${A[@]} ${A[@]})\n" * 60 + "python train.py ${A[@]}",
    "empty": "",
    "only blanks": "  \n\t\n",
}


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_shown_and_never_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(tmp_path))
    text = HEAD + TRAPS[name] + "\n"
    (tmp_path / "job.sbatch").write_text(text)
    (tmp_path / "train.py").write_text("")
    found = convert(
        tmp_path / "job.sbatch", output=tmp_path / "job.yaml", site=None, environment={}, folder=str(tmp_path)
    )
    assert accounted(found.script, text)
    assert sorted(os.listdir(tmp_path)) == ["job.sbatch", "train.py"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_script_ends(name: str) -> None:
    text = HEAD + BROKEN[name]
    started = time.process_time()
    if "deep" in name:
        with suppress(UsageError):
            read(text)
    else:
        assert accounted(read(text), text)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"#!/bin/bash\npython \0 train.py\n", ":2: a NUL byte"),
        ("#!/bin/bash\n".encode("utf-16"), ":1: a NUL byte"),
        (b"#!/bin/bash\npython train.py\r\n", ":2: a DOS line end"),
        (b"\xef\xbb\xbf#!/bin/bash\n", ":1: a byte order mark"),
        (b"# " + b"x" * (5 << 20), "4 MiB"),
    ],
)
def test_what_sbatch_refuses_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decode(data, "job.sbatch")


def test_a_script_of_many_lines_is_read_in_time() -> None:
    text = HEAD + "export VARIABLE=value\n" * 5_000 + "python train.py\n"
    started = time.process_time()
    assert accounted(read(text), text)
    assert time.process_time() - started < 10


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_every_line_has_exactly_one_account(data: st.DataObject) -> None:
    """Lines of the forty scripts, cut and shuffled."""
    lines = [line for script in SCRIPTS for line in script.read_text().split("\n")]
    chosen = data.draw(st.lists(st.sampled_from(lines), max_size=25))
    noise = data.draw(st.lists(st.text("\"'`$(){}[];|&<>\\# \tabEOF\n=1", max_size=12), max_size=3))
    text = "\n".join([*chosen, *noise])
    assert accounted(read(text), text)
