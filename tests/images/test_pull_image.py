"""`containers pull` from a server on loopback: once, going on after a cut, and never another file than was meant."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from docs.output_types import checked
from hpc_launch.images import pull_image
from hpc_launch.images.image_record import digest_of, draft_folder
from tests.forked import hpc_launch_text
from tests.images.samples import sif
from tests.images.server import Server, serving

LAUNCH = str(Path(sys.executable).with_name("hpc-launch"))
CONTENT = sif(size=3_000_000)
Pull = Callable[..., subprocess.CompletedProcess[str]]


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def environment(folder: Path) -> dict[str, str]:
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("needs curl")
    with suppress(FileExistsError):
        (programs / "curl").symlink_to(curl)
    return {"PATH": str(programs), "HOME": str(folder), "no_proxy": "*"}


@pytest.fixture
def pull(tmp_path: Path) -> Pull:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return hpc_launch_text(("containers", "pull", *words), cwd=tmp_path, env=environment(tmp_path))

    return run


def left(folder: Path) -> list[str]:
    """All files of a folder but those that hpc-launch keeps for itself in the home."""
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_an_image_is_brought_with_its_record(pull: Pull, tmp_path: Path) -> None:
    with serving(Server(CONTENT)) as server:
        done = pull(f"{server.url}?signature=secret")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path}/small.sif\n"
    assert left(tmp_path) == ["small.sif", "small.sif.json"]
    assert (tmp_path / "small.sif").read_bytes() == CONTENT
    record = json.loads((tmp_path / "small.sif.json").read_text())
    assert (record["digest"], record["size"], record["architecture"]) == (digest(CONTENT), len(CONTENT), "x86_64")
    assert record["source"] == server.url  # without the signature


@pytest.mark.slow
def test_a_cut_connection_goes_on_where_it_ended(pull: Pull, tmp_path: Path) -> None:
    with serving(Server(CONTENT, cuts=[1_000_000, 500_000])) as server:
        done = pull(server.url)
    assert done.returncode == 0, done.stderr
    assert server.asked == [None, "bytes=1000000-", "bytes=1500000-"]
    assert "2000000 bytes remaining to read; resuming from byte 1000000" in done.stderr
    assert (tmp_path / "small.sif").read_bytes() == CONTENT


@pytest.mark.prove  # five connections with pauses between them
@pytest.mark.slow
def test_a_part_of_another_file_is_not_gone_on_with(pull: Pull, tmp_path: Path) -> None:
    other = sif(size=3_000_000, fill=b"another one")
    with serving(Server(CONTENT, cuts=[1_000_000, 0, 0, 0, 0])) as server:
        given_up = pull(server.url)
        assert (given_up.returncode, "resume from byte 1000000" in given_up.stderr) == (1, True)
        assert not (tmp_path / "small.sif").exists()
        server.content, server.tag = other, '"two"'
        done = pull(server.url)
    assert done.returncode == 0, done.stderr
    assert "the file has changed on the server" in done.stderr
    assert (tmp_path / "small.sif").read_bytes() == other


def test_nobody_else_can_write_to_an_image(pull: Pull, tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        with serving(Server(CONTENT)) as server:
            assert pull(server.url).returncode == 0
    finally:
        os.umask(before)
    assert (tmp_path / "small.sif").stat().st_mode & 0o777 == 0o755


def test_a_server_without_parts_is_asked_for_all_of_it(pull: Pull, tmp_path: Path) -> None:
    """The image goes into a folder that is not there yet."""
    with serving(Server(CONTENT, ranges=False, cuts=[1_000_000])) as server:
        assert pull(server.url, "-o", "more/images/").stdout == f"{tmp_path}/more/images/small.sif\n"
    assert (tmp_path / "more/images/small.sif").read_bytes() == CONTENT


def test_a_killed_pull_leaves_nothing_that_is_taken_for_an_image(pull: Pull, tmp_path: Path) -> None:
    with serving(Server(CONTENT, cuts=[1_000_000], delay=0)) as server:
        process = subprocess.Popen(
            [LAUNCH, "containers", "pull", server.url], cwd=tmp_path, env=environment(tmp_path),
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        while "resuming from byte" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (tmp_path / "small.sif").exists()
        done = pull(server.url)
    assert done.returncode == 0, done.stderr
    assert server.asked[-1] == "bytes=1000000-"
    assert left(tmp_path) == ["small.sif", "small.sif.json"]


def test_a_digest_that_lies_leaves_no_image(pull: Pull, tmp_path: Path) -> None:
    wrong = digest(b"something else")
    with serving(Server(CONTENT)) as server:
        done = pull(server.url, "--digest", wrong)
    assert done.returncode == 3
    assert f"HL471 the digest of {server.url} is {digest(CONTENT)}, expected {wrong}" in done.stderr
    assert left(tmp_path) == []


def test_the_next_pull_compares_and_asks_nobody(pull: Pull, tmp_path: Path) -> None:
    with serving(Server(CONTENT)) as server:
        assert pull(server.url, "--digest", digest(CONTENT)).returncode == 0
        assert pull(server.url).returncode == 0
        assert len(server.asked) == 1
        (tmp_path / "small.sif").write_bytes(CONTENT[:-1] + b"!")
        done = pull(server.url)
        assert done.returncode == 3
        assert "HL471 the file's digest is sha256:" in done.stderr
        assert pull(server.url, "--force").returncode == 0
    assert (tmp_path / "small.sif").read_bytes() == CONTENT


@pytest.mark.slow
def test_of_several_at_once_one_downloads_and_the_others_wait(tmp_path: Path) -> None:
    with serving(Server(CONTENT, delay=3)) as server:
        processes = [
            subprocess.Popen(
                [LAUNCH, "containers", "pull", server.url, "--json"], cwd=tmp_path, env=environment(tmp_path),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for _ in range(5)
        ]  # fmt: skip
        ends = [process.communicate(timeout=180) for process in processes]
    assert [process.returncode for process in processes] == [0] * 5, ends
    assert server.asked == [None]
    assert sorted(checked("containers pull", json.loads(out))["new"] for out, _ in ends) == [False] * 4 + [True]
    assert sum("waiting: another process" in errors for _, errors in ends) == 4
    assert left(tmp_path) == ["small.sif", "small.sif.json"]


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (Server(CONTENT, status=404), "returned error: 404"),
        (Server(CONTENT, status=403), "returned error: 403"),
        (Server(b"<html>please log in</html>"), "is not a SIF image"),
        (Server(CONTENT[:-1]), "is truncated"),
    ],
)
def test_what_is_no_image_is_not_kept_and_asked_for_once(pull: Pull, tmp_path: Path, server: Server, says: str) -> None:
    with serving(server):
        done = pull(server.url)
    assert (done.returncode, len(server.asked)) == (1, 1)
    assert says in done.stderr
    assert left(tmp_path) == []


def test_a_teammate_who_replaces_the_draft_opens_no_file_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of images that a team can write to: by a link in the draft's place while it is hashed."""
    precious = tmp_path / "precious"
    precious.write_text("machine x password y")
    precious.chmod(0o600)
    shared = tmp_path / "images"
    shared.mkdir()

    def hashed(path: Path) -> str:
        found = digest_of(path)
        for number, one in enumerate(list(shared.iterdir())):
            one.rename(tmp_path / f"stolen-{number}-{one.name}")
            one.symlink_to(precious)
        return found

    monkeypatch.setattr(pull_image, "digest_of", hashed)
    monkeypatch.setenv("no_proxy", "*")
    with serving(Server(CONTENT)) as server:
        record = pull_image.pull(server.url, shared / "small.sif", None, print)
    assert precious.stat().st_mode & 0o777 == 0o600
    assert record.digest == digest(CONTENT)
    assert (shared / "small.sif").read_bytes() == CONTENT
    assert not (shared / "small.sif").is_symlink()


def test_the_folder_of_a_draft_is_this_user_s_alone(tmp_path: Path) -> None:
    image = tmp_path / "small.sif"
    known = tmp_path / f".small.sif.{os.getuid()}.part"
    with draft_folder(image) as folder:
        assert (folder.path, folder.own.stat().st_mode & 0o077) == (known, 0)
    assert list(tmp_path.iterdir()) == []
    known.mkdir()
    known.chmod(0o770)  # as somebody else makes it
    with pytest.raises(OSError, match="another user"), draft_folder(image):
        pass
    known.rmdir()
    known.symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"Not a directory|symbolic"), draft_folder(image):
        pass
    assert list(tmp_path.iterdir()) == [known]


def test_an_image_of_the_site_goes_where_the_profile_says(pull: Pull, tmp_path: Path) -> None:
    with serving(Server(CONTENT)) as server:
        (tmp_path / "site.yaml").write_text(
            "name: here\nscheduler: slurm\nnode_classes: {n: {cpus: 1}}\nqueues: {q: {node_class: n}}\n"
            f"paths: {{work: {tmp_path}/work}}\n"
            "containers:\n  images:\n"
            f"    small: {{path: '${{paths.work}}/s.sif', uri: '{server.url}', digest: '{digest(CONTENT)}'}}\n"
        )
        (tmp_path / "work").mkdir()
        done = pull("small", "--site", "./site.yaml")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/work/s.sif\n"), done.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["pytorch"], 2, "pytorch is not an image URI"),
        (["http://me:secret@127.0.0.1/x.sif"], 2, "could see in the process list"),
        (["http://127.0.0.1/"], 2, "cannot derive a file name"),
        (["docker://a/b:c"], 3, "HL472 cannot pull images: neither apptainer nor singularity found"),
        (["http://127.0.0.1/x.sif", "--digest", "abc"], 2, "abc is not a valid digest"),
    ],
)
def test_what_cannot_be_pulled_is_said_at_once(pull: Pull, words: list[str], code: int, message: str) -> None:
    done = pull(*words)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
