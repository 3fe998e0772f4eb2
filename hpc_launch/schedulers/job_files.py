"""Names of the files in a job's folder that a scheduler reads or writes, and what a script requests. Standard library
only."""

SCRIPT = "script.sh"
BATCH_LOG = "batch.log"
LOCAL_STATE = "local.json"
ELSEWHERE = "elsewhere.json"
"""In a run folder that another host has: `host` is its name for ssh."""


def hosts_of(script: str) -> tuple[tuple[str, ...], bool]:
    """The names of the `#HOST` lines, before the first command: where a job without Slurm runs. And whether other runs
    may use these hosts."""
    names, shared = [], False
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#HOST "):
            names.append(line.split()[1])
            shared = line.endswith(" shared")
    return tuple(names), shared


def directives(script: str) -> list[str]:
    """The `#SBATCH` lines that sbatch reads: those before the first command. Without the origins after ` # `."""
    found = []
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH "):
            found.append(line.partition(" # ")[0].rstrip())
    return found
