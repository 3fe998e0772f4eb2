"""The ten tasks of docs/for-agents.md, as an assistant would do them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.view.home import Home

GUIDE = (Path(__file__).parents[2] / "docs" / "for-agents.md").read_text()
COMMAND = re.compile(r"^ +hpc-launch (.*?)(?: +# exits with (\d))?$", re.MULTILINE)
TRAINING = """
import sys, time
words = sys.argv[1:]
steps = int(words[words.index("--steps") + 1])
for step in range(1, steps + 1):
    print(f"step {step}/{steps} loss 0.{step}", flush=True)
if "--sleep" in words:
    time.sleep(float(words[words.index("--sleep") + 1]))
if "--fail" in words:
    raise RuntimeError("the file data.bin is empty")
"""
OUTCOMES: dict[str, Any] = {
    "validate job.yaml": lambda found: found == [],
    "validate broken.yaml": lambda found: found[0]["hint"] == "did you mean `nodes`?",
    "explain": lambda found: [one["layer"] for one in found] == ["--set"],
    "submit job.yaml --dry-run": lambda found: found["run"] is None and Path(found["script"]).is_file(),
    "status": lambda found: (found["state"], found["progress"]["step"]) == ("COMPLETED", 3),
    "why": lambda found: (found["class"], found["verdict"]) == ("user_code_error", "STOP"),
    "list": lambda found: [len(found), found[0]["state"]] == [2, "COMPLETED"],
    "cancel": lambda found: "cancelled job" in found[0]["message"],
}
"""What an assistant concludes from the answers."""


def test_the_ten_tasks_of_the_guide(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home.path)
    (home.path / "train.py").write_text(TRAINING)
    job = re.search(r"```text\n(.*?)```", GUIDE, re.DOTALL)
    assert job is not None
    (home.path / "job.yaml").write_text(job[1])
    (home.path / "broken.yaml").write_text(job[1] + "node: 2\n")
    tasks = re.findall(r"^\d+\. .*?(?=^\d+\. |\Z)", GUIDE, re.DOTALL | re.MULTILINE)
    assert len(tasks) == 10
    judged = set()
    for task in tasks:
        for command, code in COMMAND.findall(task):
            words = shlex.split(command)
            done = home.call(*words, code=int(code or 0))
            if "--json" not in words:
                continue
            found = json.loads(done.stdout)
            for name in [name for name in OUTCOMES if command.startswith(name)]:
                assert OUTCOMES[name](found), (command, found)
                judged.add(name)
    assert judged == set(OUTCOMES)
