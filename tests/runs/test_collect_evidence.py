"""What an attempt's folder holds becomes evidence, and the answer is kept."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpc_launch.diagnose.decide_verdict import default_action
from hpc_launch.diagnose.diagnose import diagnose, may_be_node_failure
from hpc_launch.diagnose.diagnosis import Diagnosis, FirstFailure, Verdict
from hpc_launch.diagnose.evidence import DriverFacts, Evidence
from hpc_launch.runs import artifacts
from hpc_launch.runs.collect_evidence import diagnose_attempt, gather, rulebook, with_role
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.rank_logs import follow
from hpc_launch.runs.records.attempt_files import keep_final
from hpc_launch.runs.records.submission import CANCELLED, NEVER_SUBMITTED
from hpc_launch.runs.records.verdict_record import keep_verdict, verdict_record
from hpc_launch.schedulers.scheduler import JobRecord
from tests.diagnose.logs import BOOK

GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.9.0.2]:52359."


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptFolder:
    run = RunFolder(tmp_path / "tiny-1")
    attempt = run.attempt(1)
    attempt.logs.mkdir(parents=True)
    put(run.info, {"run": "tiny-1", "name": "tiny", "site": "x", "scheduler": "local", "created": 1})
    attempt.claim.write_text("77\n")
    put(attempt.job, {"job_id": "77"})
    return attempt


def put(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def end(attempt: AttemptFolder, code: int, **more: Any) -> None:
    told = {"job_id": "77", "restart": 0, "exit_code": code, "signal": "", "phase": "ended", "nodes": "n[1-2]"}
    put(attempt.end, {**told, **more})


def final(attempt: AttemptFolder, state: str, **more: Any) -> None:
    told = {"job_id": "77", "state": state, "source": "sacct", "as_of": 9.0, "ended": 5.0, "nodes": "n[1-2]", **more}
    put(attempt.final, told)


def evidence(attempt: AttemptFolder) -> Evidence:
    return gather(attempt, BOOK)


def test_logs_bear_their_node_and_rank(attempt: AttemptFolder) -> None:
    end(attempt, 1)
    (attempt.logs / "node-1.log").write_text("[rank3]: ValueError: x\n")
    (attempt.logs / "node-0.rank-0.log").write_text("fine\n")
    attempt.batch_log.write_text("hello\n")
    found = evidence(attempt)
    assert [(scan.name, scan.node, scan.rank) for scan in found.logs] == [
        ("batch.log", None, None),
        ("logs/node-0.rank-0.log", "n1", 0),
        ("logs/node-1.log", "n2", None),
    ]
    place = diagnose_attempt(attempt, BOOK).first_failure
    assert (place.node, place.rank) == ("n2", 3)


def test_error_files_of_torchelastic(attempt: AttemptFolder) -> None:
    end(attempt, 1)
    (attempt.logs / "node-0.log").write_text(f"[rank0]: {GLOO}\n")

    def error(text: str, at: int) -> dict[str, Any]:
        return {"message": {"message": text, "extraInfo": {"py_callstack": "", "timestamp": str(at)}}}

    put(attempt.logs / "ranks-of-node-0" / "launcher.json", error(GLOO, 50))
    put(attempt.logs / "ranks-of-node-1" / "77_x" / "attempt_0" / "1" / "error.json", error("KeyError: 'x'", 40))
    (attempt.logs / "ranks-of-node-1" / "launcher.json").write_text("{torn")
    found = diagnose_attempt(attempt, BOOK)
    assert (found.failure_class, found.first_failure.node, found.first_failure.time) == ("user_code_error", "n2", 40.0)
    assert found.evidence[0].file.endswith("attempt_0/1/error.json")


def test_steps_of_the_last_word(attempt: AttemptFolder) -> None:
    end(attempt, 0)
    final(attempt, "COMPLETED", derived_exit_code=0, steps=[["0", "OUT_OF_MEMORY", "0:125"]])
    assert diagnose_attempt(attempt, BOOK).failure_class == "host_oom"


def test_notes_of_the_watcher(attempt: AttemptFolder) -> None:
    end(attempt, 1)
    folder = attempt.path / "agent"
    folder.mkdir()
    lines = [
        {"t": 10.0, "event": "start", "node": 1, "host": "h"},
        {"t": 11.0, "event": "sample", "gpus": []},
        {"t": 12.0, "event": "gone", "rank": 3, "signal": 11, "exit_code": None, "oom_kill": False},
        {"t": 12.5, "event": "gone", "rank": 2, "signal": None, "exit_code": 0, "oom_kill": False},
    ]
    (folder / "node-1.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"torn": ')
    note, left = evidence(attempt).notes
    assert (note.kind, note.node, note.rank, note.signal, note.time) == ("death", "n2", 3, 11, 12.0)
    assert (left.kind, left.rank, left.code, left.time) == ("left", 2, 0, 12.5)
    put(folder / "hang.json", {"t": 700.0, "node": 0, "silent_s": 600})
    found = diagnose_attempt(attempt, BOOK)
    assert (found.failure_class, found.first_failure.node, found.first_failure.time) == (
        "hang_no_progress",
        None,  # it noticed; nothing tells that it is to blame
        100.0,
    )
    ranks = {"event": "ranks", "ranks": {"2": 71, "3": 72}}
    (folder / "node-1.jsonl").write_text(json.dumps(ranks) + "\n")
    (folder / "stacks").mkdir()
    for rank, place in {2: "torch/distributed/distributed_c10d.py", 3: "data.py"}.items():
        text = f'Thread 7 (idle): "MainThread"\n    step ({place}:12)\n'
        (folder / "stacks" / f"rank-{rank}.txt").write_text(text)
    found = diagnose_attempt(attempt, BOOK)
    assert (found.first_failure.node, found.first_failure.rank) == ("n2", 3)
    assert "rank 3 stood at data.py:12 in step while others waited" in found.evidence[0].text


@pytest.mark.parametrize(("code", "rank"), [("0\n", 1), ("137\n", None)])
def test_a_rank_that_goes_on_after_another_was_done_is_named(
    attempt: AttemptFolder, code: str, rank: int | None
) -> None:
    end(attempt, 143)
    (attempt.path / "agent" / "stacks").mkdir(parents=True)
    gone = {"t": 12.0, "event": "gone", "rank": 0, "signal": None, "exit_code": None, "oom_kill": False}
    (attempt.path / "agent" / "node-0.jsonl").write_text(json.dumps(gone) + "\n")
    (attempt.path / "agent" / "stacks" / "rank-1.txt").write_text("waits in the kernel at: running\nstate: R\n")
    put(attempt.path / "agent" / "hang.json", {"t": 700.0, "node": 0, "silent_s": 600})
    (attempt.logs / "rank-0.exit").write_text(code)
    found = diagnose_attempt(attempt, BOOK)
    assert (found.failure_class, found.first_failure.rank) == ("hang_no_progress", rank)


def test_a_sigkill_is_no_lack_of_memory_where_the_watcher_counted_none(attempt: AttemptFolder) -> None:
    """Nobody saw the signal, and neither has Slurm anything to say, as where its database is down."""
    end(attempt, 137)
    (attempt.logs / "node-1.rank-3.log").write_text("node.sh: line 2: 17 Killed   python3 train.py\n")
    assert diagnose_attempt(attempt, BOOK).failure_class == "host_oom"
    folder = attempt.path / "agent"
    folder.mkdir()
    gone: dict[str, Any] = {"t": 12.0, "event": "gone", "rank": 3, "signal": None, "exit_code": None, "oom_kill": None}
    for killed, kind in ((None, "host_oom"), (False, "segfault_or_abort"), (True, "host_oom")):
        put(folder / "node-1.jsonl", {**gone, "oom_kill": killed})
        assert diagnose_attempt(attempt, BOOK).failure_class == kind, killed
    put(folder / "node-1.jsonl", {"t": 13.0, "event": "end", "oom_kill": False})  # it saw no rank
    assert diagnose_attempt(attempt, BOOK).failure_class == "segfault_or_abort"


def test_the_watcher_knows_which_rank_was_killed_for_memory(attempt: AttemptFolder) -> None:
    """Slurm says it in the log of the first rank, whoever it was."""
    end(attempt, 137)
    words = "slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=77.0. Some of your processes may have been"
    (attempt.logs / "node-0.rank-0.log").write_text(words + "\n")
    assert diagnose_attempt(attempt, BOOK).first_failure.rank == 0
    (attempt.path / "agent").mkdir()
    put(attempt.path / "agent" / "node-0.jsonl", {"t": 12.0, "event": "gone", "rank": 1, "oom_kill": True})
    found = diagnose_attempt(attempt, BOOK)
    assert (found.failure_class, found.first_failure.rank) == ("host_oom", 1)


def test_a_success_needs_no_word_of_a_scheduler_that_is_away(attempt: AttemptFolder) -> None:
    end(attempt, 0)
    assert diagnose_attempt(attempt, BOOK).failure_class == "success"
    final(attempt, "FAILED", exit_code=1)
    assert diagnose_attempt(attempt, BOOK).failure_class != "success"


@pytest.mark.parametrize(("signal", "kind"), [("TERM", "preempted"), ("USR1", "time_limit")])
def test_what_was_warned_and_left_was_not_cancelled(attempt: AttemptFolder, signal: str, kind: str) -> None:
    """At a preemption with a grace time Slurm calls the step cancelled, and the job completed."""
    record = {"job_id": "77", "exit_code": 0, "signal": "", "phase": "ended", "ended": 100, "nodes": "n[1-2]"}
    put(attempt.end, {**record, "warned": 90, "warned_by": signal})
    put(attempt.plan, {"progress": {"step": r"step (\d+)/(\d+)"}})
    words = "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-21T14:22:07 ***"
    (attempt.logs / "node-0.log").write_text(f"step 1/14\nstep 2/14\n{words}\n")
    final(attempt, "COMPLETED", exit_code=0, derived_exit_code=0)
    assert diagnose_attempt(attempt, BOOK).failure_class == kind


def test_of_ranks_that_lost_a_peer_the_one_that_went_first_is_the_root(attempt: AttemptFolder) -> None:
    """srun may see the second one end first, and then kill the shell that would have said how the first one died."""
    end(attempt, 1)
    (attempt.logs / "node-0.rank-0.log").write_text(f"{GLOO}\n")
    (attempt.logs / "node-1.rank-3.log").write_text("step 1/14\n")
    before = diagnose_attempt(attempt, BOOK)
    assert before.failure_class == "nccl_system_error"
    (attempt.path / "agent").mkdir()
    gone: dict[str, Any] = {"event": "gone", "signal": None, "exit_code": None, "oom_kill": False}
    put(attempt.path / "agent" / "node-0.jsonl", {**gone, "t": 12.9, "rank": 0})
    put(attempt.path / "agent" / "node-1.jsonl", {**gone, "t": 12.8, "rank": 3})
    found = diagnose_attempt(attempt, BOOK)
    assert (found.failure_class, found.first_failure.node, found.first_failure.rank) == ("segfault_or_abort", "n2", 3)
    assert default_action(found) == "RETRY"


def test_a_node_that_is_down_is_blamed_and_the_diagnosis_of_the_verdict_is_shown(attempt: AttemptFolder) -> None:
    """The log of a batch host that died just stops; the driver that decided saw which node was down."""
    final(attempt, "NODE_FAIL")
    facts = evidence(attempt)
    assert may_be_node_failure(facts, BOOK)
    assert diagnose(facts, BOOK).bad_nodes == ()
    found = diagnose(replace(facts, driver=DriverFacts(node_states=(("n2", "down*"),))), BOOK)
    assert (found.first_failure.node, found.bad_nodes, found.evidence[-1].text) == ("n2", ("n2",), "n2 down*")
    verdict = verdict_record(found, Verdict("RETRY_ELSEWHERE", "why", exclude=("n2",)), 1.0, further=False, step=None)
    keep_verdict(attempt, verdict)
    assert verdict.blamed == found.bad_nodes
    assert diagnose_attempt(attempt, BOOK) == found


def test_the_words_of_a_claim_are_known_to_the_rules() -> None:
    for void, kind in ((NEVER_SUBMITTED, "unknown"), (f"{CANCELLED} by alice", "cancelled_by_user")):
        assert diagnose(Evidence(void=void), BOOK).failure_class == kind


def test_exit_codes_of_nodes_cancel_and_void(attempt: AttemptFolder) -> None:
    end(attempt, 3)
    (attempt.logs / "node-1.exit").write_text("3\n")
    (attempt.logs / "node-0.rank-5.exit").write_text("4\n")
    noted = [(note.node, note.rank, note.code) for note in evidence(attempt).node_exits]
    assert noted == [("n1", 5, 4), ("n2", None, 3)]
    put(attempt.cancel, {"time": 4, "by": "alice"})
    assert diagnose_attempt(attempt, BOOK).failure_class == "cancelled_by_user"
    attempt.claim.write_text("void sbatch: error: Batch job submission failed: Invalid qos specification\n")
    assert diagnose_attempt(attempt, BOOK).failure_class == "submit_rejected"


def test_an_empty_folder_and_one_that_still_runs(attempt: AttemptFolder) -> None:
    found = diagnose_attempt(attempt, BOOK)
    assert found.failure_class == "unknown"
    assert "still runs" in found.advice
    assert diagnose_attempt(AttemptFolder(attempt.path.parent / "002"), BOOK).failure_class == "unknown"


def test_of_a_very_large_log_the_middle_is_only_counted(
    attempt: AttemptFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "CHUNK", 100)
    monkeypatch.setattr(artifacts, "HEAD", 1000)
    monkeypatch.setattr(artifacts, "TAIL", 1000)
    line = "nothing to see\n"
    text = line * 500 + "MemoryError\n" + line * 500 + "torch.OutOfMemoryError: CUDA out of memory.\n"
    (attempt.logs / "node-0.log").write_text(text)
    (scan,) = evidence(attempt).logs
    assert scan.lines == 1002
    assert [(hit.rule, hit.line) for hit in scan.hits if hit.rule in {"cuda-oom", "host-alloc"}] == [("cuda-oom", 1002)]


def test_a_pipe_in_place_of_a_log_is_not_waited_for(attempt: AttemptFolder) -> None:
    end(attempt, 1)
    os.mkfifo(attempt.logs / "node-0.log")
    assert diagnose_attempt(attempt, BOOK).failure_class == "unknown"


def test_rules_of_the_user_and_the_team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = "- {{id: tape, cause: fs_stale_or_io, match: tape robot, examples: [], source: x, advice: {}}}\n"
    mine, team = tmp_path / "config" / "hpc-launch" / "rules", tmp_path / "team" / "rules"
    for folder, advice in ((mine, "mine"), (team, "theirs")):
        folder.mkdir(parents=True)
        (folder / "a.yaml").write_text(rule.format(advice))
    (mine / "b.yaml").write_bytes(b"\xff\xfe bad")
    (mine / "c.yaml").write_text("- {id: c}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HPC_LAUNCH_SITE_PATH", str(tmp_path / "team"))
    findings: list[Any] = []
    book = rulebook(findings)
    assert [finding.code for finding in findings] == ["HL690", "HL690"]
    assert all(finding.severity == "warning" for finding in findings)
    assert book.rules["tape"].advice == "mine"
    (mine / "a.yaml").unlink()
    assert rulebook().rules["tape"].advice == "theirs"


def test_a_line_that_a_good_attempt_also_printed_is_not_evidence(attempt: AttemptFolder) -> None:
    ordinary = "OSError: [Errno 5] Input/output error: '/scratch/u/part-{}'\n"
    end(attempt, 0)
    final(attempt, "TIMEOUT")
    (attempt.logs / "node-0.log").write_text(ordinary.format(3) + "step 5/90 loss 1.5\n")
    second = attempt.run.attempt(2)
    second.logs.mkdir(parents=True)
    second.claim.write_text("78\n")
    put(second.job, {"job_id": "78"})
    end(second, 7, job_id="78")
    log = second.logs / "node-0.log"
    log.write_text(ordinary.format(4) + "KeyError: 'caption'\n")
    assert diagnose(evidence(second), BOOK).failure_class == "filesystem_error"
    diagnosis = diagnose(evidence(attempt), BOOK)
    verdict = Verdict("CONTINUE", "its time limit")
    keep_verdict(attempt, verdict_record(diagnosis, verdict, 9.0, further=True, step=5))
    assert diagnose(evidence(second), BOOK).failure_class == "user_code_error"


@pytest.mark.parametrize(
    "reason", ["", "DUE TO TIME LIMIT ", "DUE TO PREEMPTION ", "DUE TO NODE FAILURE ", "DUE TO JOB REQUEUE "]
)
@pytest.mark.parametrize("log", ["batch.log", "logs/node-0.rank-0.log"])
def test_a_training_that_prints_the_end_of_another_job(attempt: AttemptFolder, reason: str, log: str) -> None:
    line = f"slurmstepd-n1: error: *** JOB {{}} ON n1 CANCELLED AT 2026-11-22T08:14:10 {reason}***\n"
    end(attempt, 7)
    attempt.batch_log.write_text("srun: error: n1: task 0: Exited with exit code 7\n")
    with (attempt.path / log).open("a") as file:
        file.write(line.format(76))
    assert diagnose_attempt(attempt, BOOK).cause == "task_exit_nonzero"
    with (attempt.path / log).open("a") as file:
        file.write(line.format(77))
    believed = log == "batch.log" or not reason
    assert (diagnose(evidence(attempt), BOOK).cause != "task_exit_nonzero") == believed


SECRET = "hf_SECRETtoken"


@pytest.fixture
def of_another_user(attempt: AttemptFolder, tmp_path: Path) -> AttemptFolder:
    """A failed attempt of another user, with links to a file of this user in the places of logs and records."""
    secret = tmp_path / "token"
    secret.write_text(f"ValueError: {SECRET}\n")
    (tmp_path / "error.json").write_text(json.dumps({"message": SECRET}))
    end(attempt, 1)
    final(attempt, "FAILED")
    (attempt.logs / "node-0.rank-0.log").write_text("fine\n")
    (attempt.logs / "node-0.rank-1.log").symlink_to(secret)
    (attempt.logs / "ranks-of-node-0").mkdir()
    (attempt.logs / "ranks-of-node-0" / "launcher.json").symlink_to(tmp_path / "error.json")
    (attempt.agent / "stacks").mkdir(parents=True)
    (attempt.agent / "stacks" / "rank-1.txt").symlink_to(secret)
    for path in (attempt.run.path, *attempt.run.path.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    return attempt


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_another_user_s_run_links_to_is_not_read(of_another_user: AttemptFolder) -> None:
    attempt = of_another_user
    diagnosis = diagnose_attempt(attempt, BOOK)
    assert SECRET not in str(diagnosis)
    assert SECRET not in str(evidence(attempt))
    assert SECRET not in str(list(follow(attempt)))


@pytest.mark.parametrize("plan", [{"spares": 1}, {"recovery": {"nodes": None}}], ids=["spares", "elastic"])
def test_a_node_that_fell_silent_is_the_one_to_blame(attempt: AttemptFolder, plan: dict[str, Any]) -> None:
    (attempt.logs / "node-0.log").write_text(f"[rank0]: {GLOO}\n")
    attempt.lost.parent.mkdir()
    attempt.lost.write_text("n2 n9\n")
    end(attempt, 137)
    assert diagnose_attempt(attempt, BOOK).cause != "node_lost", "without spares nothing but the training wrote this"
    put(attempt.plan, {**plan, "scheduler": "ssh"})
    assert diagnose_attempt(attempt, BOOK).cause != "node_lost", "over ssh there is no heartbeat"
    put(attempt.plan, plan)

    found = diagnose_attempt(attempt, BOOK)

    assert (found.failure_class, found.cause, found.bad_nodes, found.confidence) == (
        "node_failure",
        "node_lost",
        ("n2",),
        "high",
    )


@pytest.mark.parametrize(
    ("check", "cause"),
    [("clock", "node_check"), ("memory", "node_unfit"), ("interface docker0", "node_unfit"), ("gpus", "node_unfit")],
)
def test_what_a_profile_states_wrongly_is_no_fault_of_the_node(attempt: AttemptFolder, check: str, cause: str) -> None:
    """One report excludes a node with a fault of its own for the team."""
    put(attempt.node_check, {"job_id": "77", "nodes": 3, "bad": [{"node": "n2", "check": check, "text": "t"}]})
    end(attempt, 76, phase="check")
    found = diagnose_attempt(attempt, BOOK)
    assert (found.cause, found.bad_nodes) == (cause, ("n2",))


def test_the_nodes_are_those_of_the_attempt_not_all_that_the_job_holds(attempt: AttemptFolder) -> None:
    put(attempt.start, {"job_id": "77", "restart": 0, "started": 1, "nodes": "n1,n3"})
    keep_final(attempt, JobRecord("77", "FAILED", source="sacct", as_of=9e9, ended=5.0, nodes="n[1-3]"))
    assert evidence(attempt).nodes == ("n1", "n3")


def test_a_training_that_ended_well_has_lost_no_node(attempt: AttemptFolder) -> None:
    attempt.lost.parent.mkdir()
    attempt.lost.write_text("n2\n")
    end(attempt, 0)
    assert not evidence(attempt).node_faults


@pytest.mark.parametrize(
    ("kind", "failed", "role"),
    [
        ("node_failure", None, "server"),  # the role of a lost node
        ("cancelled_by_user", None, None),  # all roles were ended
        ("unknown", None, None),
        ("user_code_error", "train", "train"),
    ],
)
def test_a_role_is_named_where_it_failed_or_lost_its_node(
    attempt: AttemptFolder, kind: str, failed: str | None, role: str | None
) -> None:
    roles = [{"name": name, "role": name, "state": "ended", "since": 1, "nodes": [f"n{at}"]} for at, name in ROLES]
    fault = failed and {"name": failed, "role": failed, "node": "n2", "exit_code": 3, "why": "ended"}
    put(attempt.roles, {"roles": roles, "failed": fault})
    found = with_role(Diagnosis(kind, first_failure=FirstFailure(node="n1")), attempt)
    assert (found.first_failure.role, found.first_failure.node) == (role, "n1")
    end(attempt, 1)
    put(attempt.role("train").path / "end.json", {"job_id": "77", "restart": 0, "exit_code": 1, "nodes": "n2"})
    attempt.role("main").path.symlink_to("train")
    assert evidence(attempt).nodes == (("n2",) if failed else ("n2", "n1"))


ROLES = ((1, "server"), (2, "train"))
