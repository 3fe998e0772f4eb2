"""What all verbs have in common: the help, `--quiet` and `--verbose`, and one name for each thing."""

from __future__ import annotations

import re

import click
import pytest

from hpc_launch.cli.main import SECTIONS, VERBS, group
from hpc_launch.cli.shared_options import OLD_SPELLINGS
from tests.cli.test_json import JOB, leaves
from tests.view.home import Home

LEAVES = dict(leaves(group))


def test_the_help_begins_with_what_a_newcomer_does_and_names_the_documentation(shared_home: Home) -> None:
    text = shared_home.call("--help").stdout
    places = [
        text.index(f"hpc-launch {words}") for words in ("init train.py", "validate job", "submit job", "why @last")
    ]
    assert places == sorted(places)
    assert places[-1] < text.index("Options:")
    titles = ["Start", "Run", "Follow", "Understand", "Share", "Administer"]
    assert list(SECTIONS) == titles
    assert [text.index(f"\n{title}:\n") for title in titles] == sorted(text.index(f"\n{title}:\n") for title in titles)
    assert all(f"\n  {verb} " in text for verb in VERBS)
    assert "Documentation:\n  hpc-launch docs [WORDS]" in text


@pytest.mark.parametrize("old", OLD_SPELLINGS)
def test_each_old_name_means_one_that_exists_and_is_itself_gone(old: str) -> None:
    command, _, name = old.rpartition(" ")
    new = OLD_SPELLINGS[old]
    if name.startswith("--"):
        known = {option for param in LEAVES[command].params for option in param.opts}
        assert (new in known, name in known) == (True, False)
    else:
        assert (f"{command} {new}" in LEAVES, old in LEAVES) == (True, False)


@pytest.mark.parametrize("word", ["--num-nodes", "--num_nodes", "--num-nodes=2"])
def test_an_old_name_works_and_says_the_new_one(home: Home, word: str) -> None:
    words = [word] if "=" in word else [word, "2"]
    start = ["config", "launcher", "--script", "train.py", "--master-addr", "n1"]
    old = home.call(*start, *words, "--", "--num-nodes", "7")
    new = home.call(*start, "--nodes", "2", "--", "--num-nodes", "7")
    assert old.stdout == new.stdout
    assert "--num-nodes \\\n" in new.stdout, "what follows `--` belongs to the training"
    note = f"note: `{word.partition('=')[0]}` is now called `--nodes`; the old name goes with the next release\n"
    assert old.stderr == note + new.stderr


def test_a_renamed_command_works_and_says_so(home: Home) -> None:
    done = home.call("nodes", "report", "--site", "local")
    assert "`report` is now called `ticket`" in done.stderr
    assert "no node is recorded as bad" in done.stderr
    home.environment |= {
        "COMP_WORDS": "hpc-launch nodes report --s",
        "COMP_CWORD": "3",
        "_HPC_LAUNCH_COMPLETE": "bash_complete",
    }
    done = home.call()
    assert (done.stdout, done.stderr) == ("plain,--site\n", ""), "a shell that completes hears nothing"


def test_an_option_has_one_meaning() -> None:
    kinds: dict[str, set[bool]] = {}
    for command in LEAVES.values():
        for param in command.params:
            if isinstance(param, click.Option):
                for name in param.opts:
                    kinds.setdefault(name, set()).add(param.is_flag)
    assert {name for name, several in kinds.items() if len(several) > 1} == set()
    # What was called by several names.
    assert not {"--num-nodes", "--num-machines", "--num-gpus-per-node", "--module", "--time"} & set(kinds)
    assert [name for name, command in LEAVES.items() for param in command.params if "--from" in param.opts] == ["init"]
    assert [name for name in LEAVES if "report" in name.split()] == ["report"]
    assert {name for name in kinds if re.fullmatch("-[yqv]", name)} == {"-y", "-q", "-v"}


def test_quiet_and_verbose_before_and_after_the_verb(home: Home) -> None:
    (home.path / "job.yaml").write_text(JOB)
    job = str(home.path / "job.yaml")
    for words in (["-q", "validate", job], ["validate", job, "--quiet"], ["-q", "list"], ["status", "-q"]):
        assert home.call(*words).stderr == ""
    assert "1 job file checked, no errors" in home.call("validate", job).stderr
    (home.path / "bad.yaml").write_text(JOB + "node: 2\n")
    assert "HL010" in home.call("submit", str(home.path / "bad.yaml"), "-q", code=3).stderr, "errors are no notes"
    run = home.submit("sleep 2")
    said = home.call("watch", "-q", run.name).stderr
    assert said.startswith(f"{run.name} COMPLETED after"), "not how it went on before"
    shown = home.call("-v", "submit", job, "-v").stderr
    started = [line for line in shown.splitlines() if line.startswith("+ ")]
    assert len(started) == len(set(started)) > 0
    assert any("supervisor" in line for line in started)
    assert "\n+ " not in home.call("submit", job).stderr
