"""`resubmit` of a run that COMPLETED asks first."""

from __future__ import annotations

from tests.view.home import Home


def test_a_run_that_completed_is_repeated_only_when_asked_to(home: Home) -> None:
    run = home.submit()
    home.call("watch", run.name)
    refused = home.call("resubmit", run.name, code=2)
    assert f"{run.name} COMPLETED at step 4; nothing was submitted" in refused.stderr
    assert f"hpc-launch resubmit {run.name} --yes" in refused.stderr

    code, said = home.answered(b"n\n", "resubmit", run.name)
    assert (code, "Submit another attempt?" in said) == (2, True)
    for code, said in (
        home.answered(b"y\n", "resubmit", run.name),
        home.answered(b"", "resubmit", run.name, "--yes"),
    ):
        # This run has no job file that could be submitted again.
        assert (code, "COMPLETED at step 4;" in said) == (3, False), said
    assert len(run.attempts()) == 1


def test_a_run_that_failed_is_repeated_at_once(home: Home) -> None:
    run = home.submit("exit 3")
    home.call("watch", run.name, code=1)
    assert "COMPLETED" not in home.call("resubmit", run.name, code=3).stderr
