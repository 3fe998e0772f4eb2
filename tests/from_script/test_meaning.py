"""What a line means for the job, or that it is named: nothing is dropped or changed silently."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from hpc_launch.base.errors import UsageError
from hpc_launch.from_script.convert import Conversion, convert, understand
from hpc_launch.from_script.old_job import OldScript
from hpc_launch.from_script.script_text import decode
from hpc_launch.images.training_source import read_training

HEAD = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4\n"
RUN = "srun python train.py"


def read(body: str) -> OldScript:
    return understand(HEAD + body, "job.sbatch", "/submitted", {})


def converted(body: str, folder: Path, head: str = HEAD) -> Conversion:
    (folder / "job.sbatch").write_text(head + body)
    (folder / "train.py").write_text("")
    return convert(folder / "job.sbatch", output=folder / "job.yaml", site=None, environment={}, folder=str(folder))


def doubts(script: OldScript) -> list[int]:
    return [account.line - HEAD.count("\n") for account in script.of("not_understood")]


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("cat <<EOF > conf.json\n{}\nEOF\nsrun python train.py", [1, 2, 3]),
        ("cat <<EOF | tee conf.json\n{}\nEOF\nsrun python train.py", [1, 2, 3]),
        ("echo a | tee conf\necho b | tee out.log\nsrun python train.py", [1]),
        ('export $(cat .env | xargs)\nexport "A=x y"\nsrun python train.py', [1, 2]),
        ("srun python train.py --data *.bin", [1]),
        ("srun python train.py --data 'a*.bin' --list [1,2]", []),
        ("srun python train.py --data part-{a,b}", [1]),
        ("srun -n 3 python train.py", [1]),
        ("srun -n 12 --ntasks-per-node=8 python train.py", [1]),
        ("mpirun -np 3 python train.py", [1]),
        ("srun -n 8 python train.py", []),
        ("srun singularity run a.sif --epochs 3", [1]),
        ("srun singularity run a.sif python train.py", []),
        ("srun apptainer exec --pwd /opt/x -B src:/opt/y a.sif python train.py", [1]),
        ("read -ra G <<< $SLURM_JOB_GPUS\nN=${#G[@]}\nsrun python train.py --n $N --first ${G[0]}", [3]),
        ("read -ra G <<< $SLURM_JOB_NAME\nN=${#G[@]}\nsrun python train.py --n $N", [1, 2, 3]),
        ("if [ -d ckpt ]; then MORE=--resume; else MORE=; fi\nsrun python train.py $MORE", [1, 2]),
        ("for rate in 0.1 0.2; do\n  srun python train.py --lr $rate\ndone", [2]),
        ("for try in 1 2 3; do\n  srun python train.py\ndone", [2]),
        ("for i in $(seq 1 10); do\n  srun python train.py --seed $i\ndone", [2]),
        ("cd -\nsrun python train.py", [1]),
        ("(cd src; make)\nsrun python train.py", [1]),
        ("pushd src; make; popd\nsrun python train.py", [1]),
        ("ibrun python train.py", []),
        ("! [ -e stop ]\nsrun python train.py\n! srun python evaluate.py", [3]),
        ("X='a b'\nsrun python train.py --x=$X", [2]),
        ("X='a b'\nsrun python train.py --x=\"$X\" $X", []),
        ("cat list | xargs -n1 python prepare.py\nsrun python train.py", [1]),
        ("echo 3 | while read n; do X=$n; done\nsrun python train.py", [1]),
        ("scontrol show job $SLURM_JOB_ID | grep Node | awk '{print $1}'\nsrun python train.py", []),
        ("srun env -u X A=1 python train.py", [1]),
        ("env A=1 python train.py", []),
        ("env | sort\nsrun env\nsrun python train.py", []),
        ('srun bash -c "python train.py $@"', [1]),
        ("python train.py <<< yes", [1]),
        ("python train.py < answers", [1]),
        ("timeout 5h python train.py", [1]),
        ("srun --made-up=3 python a.py", [1]),
        ("printf -v NAME %d 5\nsrun python train.py --name $NAME", [1, 2]),
        ("cd src\nsource setup.bash\nsrun python train.py", [2]),
        ("source ~/.bashrc\nsource ~/miniconda3/bin/activate tune\nsrun python train.py", [1, 2]),
        ("GPUS=$1\nsrun torchrun --nproc_per_node=$GPUS train.py --lr ${2}", [1, 2]),
        ("setup() { module load a; }\n[ -d x ] && setup\nsrun python train.py", [1, 2]),
        ("f() { X=$1; }\nf 1\nf 2\nsrun python train.py", [3]),
        ('for x in 1 2; do ARGS+=" --n $x"; done\nsrun python train.py $ARGS', [1, 2]),
        ("[ -d x ] && true && X=1\nfalse || Y=2\nsrun python train.py --x $X --y $Y", [1, 2, 3]),
        ("A=(1); A+=(2)\nA[0]=3\nsrun python train.py ${A[@]}", [2, 3]),
        ("srun bash -c 'torchrun --nproc_per_node=4 train.py --rank $SLURM_PROCID'", [1]),
        ("srun python train.py $((010 * 2))", [1]),
        ("srun -n $1 python train.py", [1]),
        ("PATH=/opt/x:$PATH\nsrun python train.py", [1]),
        ("cd src\nsrun python $PWD/train.py $(pwd)", []),
    ],
)
def test_what_would_change_the_job_is_named(body: str, lines: list[int]) -> None:
    assert doubts(read(body)) == lines


LAUNCHER = "srun -N1 -n1 torchrun --nproc_per_node=4 --node_rank=$i train.py &"


@pytest.mark.parametrize(
    "body",
    [
        f"for ((i = 0; i < 2; i++)); do\n{LAUNCHER}\ndone\nwait",
        f"for i in {{0..1}}; do\n{LAUNCHER}\ndone\nwait",
        f"for i in $(seq 0 $((SLURM_NNODES - 1))); do\n{LAUNCHER}\ndone\nwait",
        "for t in 1 2; do srun python train.py; done",
        "srun ibrun python train.py",
    ],
)
def test_a_loop_over_the_nodes_is_one_launch(body: str) -> None:
    found = read(body)
    assert found.size is not None
    assert (found.size.nodes, found.size.processes_per_node) == (2, 4)
    assert bool(doubts(found)) == ("for t" in body)


@pytest.mark.parametrize(
    ("body", "folder", "program"),
    [
        (f"(cd src; make)\n{RUN}", None, "train.py"),
        (f"cd src; make; cd -\n{RUN}", None, "train.py"),
        (f"cd src\n{RUN}\ncd /elsewhere", "src", "src/train.py"),
        (f"srun --chdir=src true\n{RUN}", None, "train.py"),
        ("srun --chdir=src python ../train.py", "src", "train.py"),
        ("srun apptainer exec -B src:/x:ro --pwd /x a.sif python train.py", "src", "src/train.py"),
        ("srun apptainer exec -B /:/r,$PWD:/x --pwd=/x/src a.sif python train.py", "src", "src/train.py"),
        ("srun apptainer exec --cwd /x --bind $PWD:/x a.sif python train.py", None, "train.py"),
        ("cd code\npython $SLURM_SUBMIT_DIR/prepare.py\ncd ../other\ntorchrun ${HOME}/a.py", "other", "${home}/a.py"),
    ],
)
def test_the_folder_of_the_launch_line_is_followed(body: str, folder: str | None, program: str, tmp_path: Path) -> None:
    job = yaml.safe_load(converted(body, tmp_path).job_file)
    assert (job.get("workdir"), job["script"]) == (folder, program)


@pytest.mark.parametrize(
    ("options", "size", "lines"),
    [
        ("-n 12 -N 5", (5, 3, 0), [2]),
        ("-n 8 -N 2 --ntasks-per-node=8", (2, 4, 0), []),
        ("-n 8 --ntasks-per-node=4", (2, 4, 0), []),
        ("-n 4 --gpus-per-task=2", (1, 4, 8), [2]),
        ("-n 1 --gpus=2", (1, 1, 2), []),
        ("-N 2 --gpus=8 --ntasks-per-gpu=1", (2, 4, 4), []),
    ],
)
def test_the_size_of_the_request(options: str, size: tuple[int, int, int], lines: list[int], tmp_path: Path) -> None:
    found = converted(RUN, tmp_path, f"#!/bin/bash\n#SBATCH {options}\n")
    request = found.script.request
    assert (request.nodes, request.tasks_per_node, request.gpus_per_node) == size
    assert [account.line for account in found.script.of("not_understood")] == lines


def test_a_guess_of_cpus_is_one_for_each_process(tmp_path: Path) -> None:
    found = converted(RUN, tmp_path, "#!/bin/bash\n#SBATCH -N 1 -n 16\n")
    assert yaml.safe_load(found.site_file or "")["node_classes"]["node"]["cpus"] == 16


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("pip install -e . && python train.py", "command"),
        ("tar xf data.tar; python train.py", "command"),
        ("nvidia-smi; export A=1; python train.py", "command"),
        ("A=1; export B=$A; python train.py", "script"),
    ],
)
def test_text_of_bash_stays_where_it_does_more_than_start_one_program(text: str, program: str) -> None:
    launch = read(f'srun bash -c "{text}"').launch
    assert launch is not None
    assert launch.program == program


@pytest.mark.parametrize(
    ("body", "arguments", "env"),
    [
        ("X=1\n(X=2; export Y=3)\nsrun python train.py --x $X", ["--x", "1"], {}),
        ("srun env A=1 python train.py", [], {"A": "1"}),
        ("env A=1 python train.py", [], {"A": "1"}),
        ("srun bash -c 'python train.py $1 $2' sh a b", ["a", "b"], {}),
        (f"export A=1\n{RUN}\nexport A=2\nexport B=3", [], {"A": "1"}),
        ('A=(x "y z")\nsrun python train.py "${A[@]}"', ["x", "y z"], {}),
        ("X=${Y:=1e-4}\nN=$(( 2 * 3 ))\nsrun python train.py $X $N ${#B[@]}", ["1e-4", "6", "$${#B[@]}"], {}),
        ("srun python train.py $((SLURM_NNODES * 4)) $((1 / 0))", ["8", "$((1 / 0))"], {}),
        ("f() {\n  srun python train.py --lr $1\n}\nf 0.1", ["--lr", "0.1"], {}),
    ],
)
def test_values_are_followed(body: str, arguments: list[str], env: dict[str, str]) -> None:
    found = read(body)
    assert found.launch is not None
    assert [found.launch.words[0].text, *(word.text for word in found.launch.arguments)] == ["train.py", *arguments]
    variables = {name: value for name, (value, _) in found.job.env.items()} | found.launch.env
    assert {name: value.text for name, value in variables.items()} == env


@pytest.mark.parametrize(
    ("body", "secrets", "expected"),
    [
        ("export HF_TOKEN=SEKRET\nsrun python train.py --hf $HF_TOKEN", ["HF_TOKEN"], "hf: ${shell.HF_TOKEN}"),
        ("TOKEN=SEKRET\nsrun python train.py --x=$TOKEN", ["TOKEN"], "--x=${shell.TOKEN}"),
        ("TOKEN=SEKRET\nexport HF_TOKEN=$TOKEN\nsrun python train.py", ["HF_TOKEN"], ""),
        (
            "export A_KEY=SEKRET\nexport URL=http://x/$A_KEY\nsrun python train.py",
            ["A_KEY"],
            "URL: http://x/${shell.A_KEY}",
        ),
        (
            'srun bash -c "export HF_TOKEN=SEKRET; python train.py --rank \\$SLURM_PROCID"',
            None,
            "export HF_TOKEN=…; python train.py",
        ),
        ("srun python train.py --key hf_SEKRETabcdefghijk123", None, "key: …"),
        (
            "HF_TOKEN=hf_SEKRET srun --export=ALL,A_KEY=SEKRET apptainer exec --env C_TOKEN=SEKRET a.sif torchrun a.py",
            ["HF_TOKEN", "A_KEY", "C_TOKEN"],
            "container: a.sif",
        ),
        ("export ADDRESS=https://me:SEKRET@host/x\nsrun python train.py", None, "ADDRESS: https://…@host/x"),
    ],
)
def test_values_of_secrets_are_copied_from_nowhere(
    body: str, secrets: list[str] | None, expected: str, tmp_path: Path
) -> None:
    found = converted(body, tmp_path)
    job = yaml.safe_load(found.job_file)
    assert job.get("secrets") == secrets
    assert (secrets is None) == bool(found.script.of("not_understood"))
    assert expected in yaml.safe_dump(job, width=1000, allow_unicode=True).replace("'", "")
    shown = found.job_file + "".join(account.text + account.why for account in found.script.accounts)
    assert "SEKRET" not in shown


def test_lines_of_a_burst_buffer_are_named(tmp_path: Path) -> None:
    lines = "#SBATCH --nodes=2\n#DW jobdw capacity=1TB\n#BB create_persistent name=x\nsrun python train.py"
    found = converted(lines, tmp_path, "#!/bin/bash\n").script.of("not_understood")
    assert [account.line for account in found] == [3, 4]
    assert "bbf" in found[0].why


def test_the_request_of_another_scheduler_is_named(tmp_path: Path) -> None:
    alone = converted("#PBS -l select=2:ngpus=4\npython train.py", tmp_path, "#!/bin/bash\n")
    assert [account.line for account in alone.script.of("not_understood")] == [2]
    assert doubts(read("python train.py")) == []


def test_bytes_that_are_not_text_are_named() -> None:
    data = HEAD.encode() + b"# caf\xe9\nexport A=caf\xe9\nsrun python train.py --name caf\xe9"
    found = understand(decode(data, "job.sbatch"), "job.sbatch", "/submitted", {})
    assert doubts(found) == [2, 3]


def test_unusual_characters_are_valid_yaml(tmp_path: Path) -> None:
    found = converted("srun python train.py --name 'a\U0001f600é\u202e'", tmp_path)
    assert found.prepare().plan.program is not None
    assert yaml.safe_load(found.job_file)["args"]["name"] == "a\U0001f600é\u202e"


def test_a_finding_names_the_file_that_is_written(tmp_path: Path) -> None:
    found = converted("source /opt/venv/bin/activate\nsrun python train.py", tmp_path)
    places = [str(finding.place) for finding in found.prepare().warnings]
    assert places
    assert all(place.startswith(f"{tmp_path}/job.yaml") for place in places)


def test_a_pipe_is_no_training(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    with pytest.raises(UsageError, match="not a file"):
        read_training(tmp_path / "train.py")
