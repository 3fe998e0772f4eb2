"""Images that are built and pulled with a real Apptainer, as an ordinary user; trainings in them on two nodes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import re
import sys
import tarfile
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.faults import PATIENCE_S
from tests.cluster.requirements import REPOSITORY
from tests.marks import prove
from tests.slurm.own_program import SLEEPS, wait_for_ranks
from tests.slurm.test_continuation import COUNTING
from tests.slurm.user import User

EXAMPLE = REPOSITORY / "examples" / "tiny-gpt" / "job.yaml"

RANKS = """
import os
print("RANK", os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], os.uname().nodename,
      os.environ.get("HPC_LAUNCH_IMAGE"), os.environ.get("STEP"), open("/data/words").read().strip(), flush=True)
"""


@pytest.fixture
def user(cluster_sid: Cluster, user_dir: Path) -> User:
    return User(cluster_sid, user_dir)


@pytest.fixture(scope="module")
def image(cluster_sid: Cluster, sif: Path) -> Path:
    """The shipped recipe for the CPU, built on the tests' own small image instead of one from a registry."""
    user = User(cluster_sid, cluster_sid.user_folder("recipe-"))
    path = user.home / "images" / "cpu.sif"
    base = ["BOOTSTRAP=localimage", f"BASE={sif}", "PACKAGES="]
    words = [word for value in base for word in ("--build-arg", value)]
    done = user.launch("containers", "build", "cpu", "-o", str(path), *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{path}\n"
    return path


@pytest.fixture
def container(image: Path, user: User) -> dict[str, object]:
    """`container:` of a job in the image: with the tests' Python, and a folder of the user's own as /data."""
    user.job("of the user", "data/words")
    return {
        "image": str(image),
        "binds": [*user.cluster.python_folders, f"{user.home}/data:/data"],
        "prelude": [{"set": {"STEP": "inside"}}],
    }


def job(user: User, container: dict[str, object], **more: object) -> str:
    return user.job(json.dumps({"name": "boxed", "nodes": 2, "container": container, **more}))


def test_a_built_image_has_a_record(image: Path) -> None:
    record = json.loads(image.with_name("cpu.sif.json").read_text())
    assert record["digest"] == f"sha256:{hashlib.sha256(image.read_bytes()).hexdigest()}"
    assert (record["architecture"], record["kind"]) == (platform.machine(), "recipe")
    assert record["by"].startswith("apptainer 1.")
    assert [path.name for path in sorted(image.parent.iterdir())] == ["cpu.sif", "cpu.sif.json"]


def test_an_image_without_a_python_is_found_out(user: User, image: Path) -> None:
    done = user.launch("containers", "check", str(image))
    assert done.returncode == 3
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["ok", "image"], ["skip", "architecture"], ["hint:", "set"], ["fail", "inside"],
    ]  # fmt: skip


def test_an_image_that_is_there_is_not_built_over(user: User, image: Path) -> None:
    done = user.launch("containers", "build", "cpu", "-o", str(image))
    assert done.returncode == 2
    assert "already exists" in done.stderr


def test_a_recipe_that_fails_leaves_the_old_image_and_says_why(user: User, sif: Path) -> None:
    recipe = user.job(f"Bootstrap: localimage\nFrom: {sif}\n%post\n    echo no such luck\n    exit 3\n", "bad.def")
    done = user.launch("containers", "build", recipe, "-o", str(user.home / "bad.sif"))
    assert done.returncode == 1
    assert "no such luck" in done.stderr
    assert "hint: unprivileged builds need user namespaces, or an entry in /etc/subuid" in done.stderr
    assert [path.name for path in user.home.glob("*bad*")] == ["bad.def"]


@pytest.mark.prove
@pytest.mark.torch
@pytest.mark.slow
def test_the_image_is_checked_and_trained_in_with_c10d(user: User, container: dict[str, object]) -> None:
    options = [
        "--set", f"container={json.dumps(container)}", "--set", "args.steps=5",
        "--set", "launcher={name: torchrun, max_restarts: 1}",
    ]  # fmt: skip
    done = user.launch("containers", "check", str(EXAMPLE), "--json", *options)
    checks = {one["name"]: one for one in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert {checks[name]["level"] for name in ("image", "binds", "python", "torch", "nccl", "imports")} == {"ok"}
    assert "for CPU only" in checks["torch"]["message"]
    log = user.completed(str(EXAMPLE), *options)
    assert {rank for rank, _ in re.findall(r"rank (\d) of 4 on host (n\d)", log)} == {"0", "1", "2", "3"}
    assert "rdzv-backend=c10d" in next(user.home.glob("runs/*/attempts/001/node.sh")).read_text()


def test_what_is_missing_inside_is_found_before_anything_is_queued(user: User, container: dict[str, object]) -> None:
    user.job("import torch\nimport no_such_module\n", "train.py")
    bare = {**container, "binds": []}
    done = user.launch("containers", "check", job(user, container, script="train.py"))
    assert done.returncode == 3
    assert re.search(r"^fail +imports +not found in the image: no_such_module$", done.stdout, re.MULTILINE)
    done = user.launch("containers", "check", job(user, bare, script="train.py"))
    assert done.returncode == 3
    assert re.search(r"^fail +inside +cannot run ", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("options", [[], prove(["--cleanenv"])], ids=["as-it-is", "cleanenv"])
def test_srun_starts_each_process_in_the_image(user: User, container: dict[str, object], options: list[str]) -> None:
    user.job(RANKS, "ranks.py")
    boxed = {**container, "options": options}
    log = user.completed(job(user, boxed, launcher="srun", processes_per_node=2, script="ranks.py"))
    seen = re.findall(r"RANK (\d) (\d) (\d) (n\d) (\w+) (\w+) (.*)", log)
    expected = [
        (str(rank), str(rank % 2), "4", f"n{rank // 2 + 1}", "cpu", "inside", "of the user") for rank in range(4)
    ]
    assert sorted(seen) == expected
    third = user.launch("logs", "@last", "--rank", "3").stdout
    assert re.findall(r"RANK (\d)", third) == ["3"]


@pytest.mark.prove
@pytest.mark.parametrize("joins", [True, False], ids=["its-container", "another-one"])
def test_a_shell_is_in_the_image_of_the_rank(user: User, container: dict[str, object], joins: bool) -> None:
    """Where nsenter cannot join the container, which is so without user namespaces, another one is started."""
    user.job(SLEEPS, "sleeps.py")
    user.submit(job(user, container, launcher="srun", processes_per_node=1, script="sleeps.py"))
    wait_for_ranks(user, 2)
    env = {}
    if not joins:
        programs = user.home / "programs"
        own = "$(command -v hpc-launch) $(command -v python3)"
        link = f"mkdir {programs} && ln -s /usr/bin/* {own} {programs} && rm {programs}/nsenter"
        user.cluster.run(["sh", "-c", link], check=True)
        env = {"PATH": str(programs)}
    code = 'echo "$STEP $RANK $HPC_LAUNCH_IMAGE"; cat /data/words; echo; uname -n; pwd; exit 9'
    done = user.launch("shell", "@last", "--rank", "1", "--", "sh", "-c", code, env=env)
    seen = ["inside 1 cpu", "of the user", user.nodes()[1], str(user.home)]
    assert (done.returncode, done.stdout.splitlines()) == (9, seen), done.stderr
    found = json.loads(user.launch("stacks", "@last", "--json").stdout)
    assert [(one["ranks"], bool(one["frames"])) for one in found["groups"]] == [([0, 1], True)]
    assert user.launch("cancel", "@last").returncode == 0


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "warning", "listen"),
    [("srun", "USR1", "USR1"), prove("torchrun", "USR1", "USR1"), prove("torchrun", "file", "hook")],
)
def test_a_training_inside_is_warned_and_goes_on(
    user: User, container: dict[str, object], launcher: str, warning: str, listen: str
) -> None:
    """The image has nothing of hpc-launch: the hooks come by the run folder."""
    sets = [f"launcher={launcher}", f"checkpoint.warn={warning}", f"args.listen={listen}"]
    sets.append(f"container={json.dumps(container)}")
    done = user.launch("drill", user.job(COUNTING), "--json", *(f"--set={one}" for one in sets))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["resumed_at_step"] == found["checkpoint_step"] + 1


def test_variables_and_arguments_arrive_inside_as_written(user: User, container: dict[str, object]) -> None:
    dump = user.home / "dump.py"
    user.job("import json, os, sys\nprint('DUMP' + json.dumps([sys.argv[1:], dict(os.environ)]))\n", "dump.py")
    hostile = {"HCA": "mlx5_0,mlx5_1", "SHELL_TEXT": "$(id) `id` $HOME \\ \"' ;", "LINES": "a\nb", "EQUALS": "=x=,y="}
    arguments = ["$(id)", "a b", "", "-x", ":", "ünï", "a\nb"]
    text = {
        "name": "dump",
        "launcher": "srun",
        "nodes": 2,
        "command": [sys.executable, str(dump)],
        "args": arguments,
        "env": hostile,
        "container": {**container, "stage": "node"},  # the image is read from the nodes' memory
    }
    user.completed(user.job(json.dumps(text)))
    (log,) = user.home.glob("runs/dump-*/attempts/001/batch.log")
    assert "staged: copied to 2 nodes, reused on 0; 0 use the original" in log.read_text()
    dumps = re.findall(r"DUMP(.*)", user.launch("logs", "@last", "--node", "1").stdout)
    assert len(dumps) == 1
    argv, environment = json.loads(dumps[0])
    assert argv == arguments
    assert {name: environment.get(name) for name in hostile} == hostile
    assert environment["RANK"] == "1"
    assert environment["APPTAINER_CONTAINER"].startswith(f"/dev/shm/hpc-launch-{user.cluster.uid}/")
    for node in ("n1", "n2"):
        assert user.cluster.node_exec(node, ["find", "/dev/shm", "-type", "f"]).stdout == "", "memory is given back"


@pytest.mark.prove
def test_each_role_runs_in_its_own_image(user: User, image: Path, sif: Path) -> None:
    inside = "echo in $APPTAINER_CONTAINER with $HPC_LAUNCH_IMAGE; "
    boxes = [{"image": str(path), "binds": user.cluster.python_folders, "home": False} for path in (image, sif)]
    server = {"container": boxes[0], "ready": "/", "grace": "3s"}
    server["command"] = ["sh", "-c", f"{inside} exec {sys.executable} -m http.server -d /usr $ROLE_PORT"]
    ask = "import os, urllib.request as ask; print(ask.urlopen(os.environ['ROLE_SERVER_URL']).status)"
    train = {"container": boxes[1], "nodes": "rest", "after": "server", "ends": "job"}
    train["command"] = ["sh", "-c", f'{inside} exec {sys.executable} -c "{ask}"']
    text = {"name": "boxes", "nodes": 2, "roles": {"server": server, "train": train}}
    log = user.completed(user.job(json.dumps(text)))
    assert re.search(rf"in {re.escape(str(sif))} with", log)
    assert "200" in log
    assert f"in {image} with cpu" in user.launch("logs", "@last", "--role", "server").stdout
    user.nothing_left()


def layout(folder: Path) -> None:
    """An image in OCI layout with one file in it (image-spec, image-layout.md)."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes, kind: str) -> dict[str, object]:
        name = hashlib.sha256(content).hexdigest()
        (blobs / name).write_bytes(content)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{name}", "size": len(content)}

    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        entry = tarfile.TarInfo("etc/words")
        entry.size = 5
        tar.addfile(entry, io.BytesIO(b"words"))
    layer = blob(gzip.compress(raw.getvalue()), "layer.v1.tar+gzip")
    files = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(raw.getvalue()).hexdigest()}"]}
    go = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    about = json.dumps({"architecture": go, "os": "linux", "config": {}, "rootfs": files}).encode()
    manifest = {"schemaVersion": 2, "config": blob(about, "config.v1+json"), "layers": [layer]}
    index = {"schemaVersion": 2, "manifests": [blob(json.dumps(manifest).encode(), "manifest.v1+json")]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def test_of_three_hosts_one_pulls_and_the_others_find_it(user: User) -> None:
    layout(user.home / "layout")
    words = [
        "hpc-launch",
        "containers",
        "pull",
        f"oci:{user.home}/layout",
        "-o",
        str(user.home / "words.sif"),
        "--json",
    ]
    pulls = [user.cluster.popen(words, cwd=user.home, env=user.env, node=node) for node in (None, "n1", "n2")]
    ends = [pull.communicate(timeout=PATIENCE_S) for pull in pulls]
    assert [pull.returncode for pull in pulls] == [0, 0, 0], ends
    said = [json.loads(out) for out, _ in ends]
    assert sorted(one["new"] for one in said) == [False, False, True]
    assert len({one["digest"] for one in said}) == 1
    box = user.cluster.run(["apptainer", "sif", "list", str(user.home / "words.sif")], check=True)
    assert "Squashfs" in box.stdout


# --- wandb's key: its login file is bound in, not to be written, and the key stands in no file ---

KEY = "0123456789abcdef-the-key-of-alice"
LOOK = """
grep -c password "$NETRC"
echo spoilt >>"$NETRC" && echo written
echo mode is "$WANDB_MODE"
"""


def test_the_login_file_is_bound_in_for_reading(user: User, sif: Path) -> None:
    netrc = user.home / "login"
    user.cluster.write(netrc, f"machine api.wandb.ai\n  login user\n  password {KEY}\n", mode=0o600)
    user.site("internet: direct\n")
    look = {
        "name": "look",
        "nodes": 2,
        "launcher": "srun",
        "trackers": ["wandb"],
        "container": {"image": str(sif), "binds": user.cluster.python_folders, "home": False},
        "command": ["sh", "-c", LOOK],
    }
    told = {"NETRC": str(netrc)}
    output = user.completed(user.job(json.dumps(look)), env=told)
    said = [line.partition("|")[2].strip() for line in output.splitlines() if line.startswith("node-")]
    assert said.count("1") == 2
    assert said.count("mode is") == 2
    assert "written" not in said
    runs = user.home / "runs"
    assert not [path for path in runs.rglob("*") if path.is_file() and KEY in path.read_text(errors="replace")]
    assert "spoilt" not in netrc.read_text()


@pytest.mark.parametrize(
    "inside", [pytest.param(True, id="in the image"), pytest.param(False, id="on the nodes", marks=pytest.mark.prove)]
)
def test_each_node_mounts_an_image_of_data_and_none_is_left(
    inside: bool, user: User, container: dict[str, object]
) -> None:
    """Apptainer mounts it in the container; without one squashfuse does so, until the training has ended."""
    user.job("words", "corpus/inner/part-0")
    pack = ["mksquashfs", f"{user.home}/corpus", f"{user.home}/corpus.sqsh", "-quiet", "-no-progress"]
    user.cluster.run(pack, check=True)
    code = (
        "import os; d = os.environ['HPC_LAUNCH_DATA']; print('READS', d, open(d + '/inner/part-0').read(), flush=True)"
    )
    more = {"container": container} if inside else {}
    keys = {"name": "fed", "nodes": 2, "launcher": "srun", "processes_per_node": 2, "data": "corpus.sqsh", **more}
    log = user.completed(user.job(json.dumps({**keys, "command": [sys.executable, "-c", code], "preflight": "off"})))
    read = re.findall(r"READS (\S+) (\S+)", log)
    root = f"/dev/shm/hpc-launch-{user.cluster.uid}"
    assert [words for _, words in read] == ["words"] * 4, log
    assert (
        {path for path, _ in read} == {"/hpc-launch/data"} if inside else all(path.startswith(root) for path, _ in read)
    )
    (batch,) = user.home.glob("runs/fed-*/attempts/001/batch.log")
    assert "data: copied to 0 nodes, reused on 0, mounted on 2 of 2" in batch.read_text()
    for node in user.nodes():
        assert f" {root}/" not in user.cluster.node_exec(node, ["cat", "/proc/mounts"]).stdout
        assert "mount-" not in user.cluster.node_exec(node, ["ls", root]).stdout
