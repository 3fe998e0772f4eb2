"""Nine of the forty scripts on the cluster: submitted as they are, and converted. Both do the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.cluster.requirements import REPOSITORY
from tests.marks import prove
from tests.slurm.user import User

SCRIPTS = REPOSITORY / "tests" / "from_script" / "scripts"
PROGRAM = """\
import json, os, sys
ranks = [os.environ.get(a) or os.environ.get(b) for a, b in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS"))]
seen = {name: os.environ.get(name) for name in %r}
started = os.environ.get("RANK") or os.environ.get("SLURM_STEP_ID")
print("RESULT " + json.dumps([ranks if started else [], sys.argv[1:], seen]), flush=True)
"""
"""Prints its rank, its arguments and variables: what a training would get."""


def results(text: str) -> list[str]:
    """What each process printed; two may share a line of the old script's file."""
    return sorted(re.findall(r"RESULT (\[\[[^]]*\], \[[^]]*\], \{[^}]*\}\])", text))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "cpu_gloo",
        *(prove(name) for name in ("guide_gpt_neox", "requeue_trap", "worker_file_by_rank")),
        *(
            prove(name, also=pytest.mark.torch)
            for name in ("script_arguments", "head_and_workers", "loop_over_array", "module_entry", "worker_file")
        ),
    ],
)
def test_a_script_does_the_same_before_and_after(user: User, name: str) -> None:
    want = yaml.safe_load((SCRIPTS / f"{name}.yaml").read_text())
    program = PROGRAM % sorted(want["env"])
    for file in want["files"]:
        user.job(program, file)
    for file, text in want.get("texts", {}).items():
        user.job(text, file)
        user.cluster.run(["chmod", "+x", str(user.home / file)], check=True)
    script = Path(user.job((SCRIPTS / f"{name}.sbatch").read_text(), "old.sbatch"))

    old = user.cluster.run(["sbatch", "--wait", "--output=old.out", script.name], cwd=user.home, timeout=400)
    before = results("\n".join(path.read_text() for path in sorted(user.home.glob("*.[ot][ux]t"))))
    assert old.returncode == 0, before

    made = user.launch("init", "--from", script.name, "-o", "new.yaml", "--json")
    assert made.returncode == 0, made.stderr + made.stdout
    assert json.loads(made.stdout)["same"] is True
    after = results(user.completed("new.yaml"))
    assert before == after != []
