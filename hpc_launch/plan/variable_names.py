"""Names of variables: which ones a shell accepts, and which ones belong to the script itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.plan.plan_draft import PlanDraft
from hpc_launch.plan.plan_parts import Variable

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

SCRIPT_VARIABLES = frozenset(
    "above address agent answer answers archive asked at attempt_dir bad_for beat before began below body checker "
    "checkpoint checkpoint_step checkpoints child clock code copier copies copy count cpus database devices driven "
    "end end_time ended ended_badly ended_by endpoint enter environment exe exit_code failed family fewest file "
    "finished first first_folder first_step first_umask folder folders follower found from head helpers here "
    "hold_dir holder host hostfile hosts how input inside interfaces interrupted is_host its job_addresses job_body "
    "job_by_hand job_check job_checkpoint_latest job_checkpoint_names job_checkpoint_steps job_code job_copies "
    "job_cpus_per_task job_devices job_each_process job_environ job_fewest_nodes job_first_ranks job_gpu_variables "
    "job_hosts job_id job_image_prefix job_image_variables job_interfaces job_lease job_node_rank job_nodes "
    "job_notify job_own_checkpoints job_phases job_processes job_processes_per_node job_secrets job_slots "
    "job_spare_hosts job_spares job_stage job_step job_tasks_per_node job_time_limit job_umask job_variable job_warn "
    "job_watch job_workdir judge known left line lock logs lost lost_nodes mark mask messages more name names needed "
    "newest next node node_code node_functions nodes note notes notifier notify_address now number of on_hosts only "
    "others over own owner parent path pause phase pid pids place probes processes program program_paths python rank "
    "reached reasons restart resumed reused root run_dir saved size skip spare_holder stage_agent stage_count "
    "stage_from stage_key stage_log stage_python stage_store stage_which staged started started_logs starter starts "
    "stat step step_inside steps successor told tries value waited warned warned_by where word words".split()
)
"""Variables of slurm_templates/. Bash evaluates some of them as arithmetic expressions, in which `a[$(command)]` runs
the command; all others would be overwritten."""


def check_variable_names(draft: PlanDraft, plan: LaunchPlan) -> None:
    """HL204 for each variable of the plan, from whatever file, that the script cannot set."""
    for variable in _variables(plan):
        if not NAME.match(variable.name):
            message, hint = f"`{variable.name}` is not a valid variable name", "use letters, digits and `_`"
        elif variable.name in SCRIPT_VARIABLES:
            message, hint = f"`{variable.name}` is a variable of the job script", "use another name"
        else:
            continue
        draft.fault_at(FindingCode.RESERVED_VARIABLE, message, variable.origin.place, hint)


def _variables(plan: LaunchPlan) -> Iterator[Variable]:
    around = plan.around
    yield from (*plan.variables, *plan.continuation.resume_variables, *around.rank_variables)
    for step in (*around.steps, *around.on_nodes, *around.inside, *around.node_steps):
        if step.variable is not None:
            yield step.variable
