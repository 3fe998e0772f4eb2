"""Variables for trackers and model hubs: keys if the nodes reach the internet, offline modes if not."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from hpc_launch.base.findings import FindingCode
from hpc_launch.job.document import KeyPath, Origin, rule
from hpc_launch.job.job import Tracker
from hpc_launch.job.shell_text import RUNTIME
from hpc_launch.plan.launch_plan import Variable
from hpc_launch.plan.plan_draft import PlanDraft
from hpc_launch.runtimes.container_runtimes import runtime_of
from hpc_launch.sites.queues import Internet

WANDB_HOST = "api.wandb.ai"
ONE_RUN = rule("all attempts continue one run of the tracker")

FOLDERS = {
    "mlflow": ("HPC_LAUNCH_MLFLOW_RUN", "/mlflow-run-id"),  # read by agent/sitecustomize.py
    # Read by transformers 5 (integrations/integration_utils.py); other programs use `${run.dir}/…`.
    "tensorboard": ("TENSORBOARD_LOGGING_DIR", "/tensorboard"),
}
"""The variable and the place in the run folder of each tracker that writes files."""

OFFLINE = {
    "HF_HUB_OFFLINE": "do not try to download",
    "TRANSFORMERS_OFFLINE": "the same for transformers before 5",
    "HF_DATASETS_OFFLINE": "use only local data sets",
}
"""Otherwise Hugging Face's libraries wait for time-outs (huggingface_hub and datasets, environment variables)."""


def tracker_variables(draft: PlanDraft) -> list[Variable]:
    """Variables for `internet:` and `trackers:`, with a finding for each setting that cannot work."""
    site = draft.resolved.site
    result = _internet(draft, site.internet)
    for index, tracker in enumerate(draft.resolved.job.trackers):
        path: KeyPath = ("trackers", index)
        if tracker.name == "wandb":
            result += _wandb(draft, tracker, path)
        elif tracker.name == "neptune":
            # neptune.init_run reads it (neptune 1.14, metadata_containers/run.py), up to 36 characters.
            result.append(Variable("NEPTUNE_CUSTOM_RUN_ID", (RUNTIME["run.name"],), ONE_RUN, default=True))
        elif tracker.name == "tensorboard" or "MLFLOW_RUN_ID" not in draft.resolved.job.env:
            variable, file = FOLDERS[tracker.name]
            result.append(Variable(variable, (RUNTIME["run.dir"], file), draft.resolved.origin(*path)))
    return result


def login_bind(draft: PlanDraft) -> str | None:
    """The login file to bind into the container; None if the home is visible there or no tracker needs it."""
    job, logins = draft.resolved.job, draft.resolved.logins
    online = [one for one in job.trackers if one.name == "wandb" and _mode(draft, one, rule(""))[0] == "online"]
    if logins is None or not online:
        return None
    needed = not _sees_home(draft) and "WANDB_API_KEY" not in job.secrets and _host(draft) in logins.hosts
    return logins.file if needed and runtime_of(_runtime(draft)).binds else None


def _sees_home(draft: PlanDraft) -> bool:
    """Whether the training sees the home folder, with the login file."""
    container = draft.resolved.job.container
    home = draft.resolved.site.containers.home
    return container is None or (home if container.home is None else container.home)


def _internet(draft: PlanDraft, facts: Internet) -> list[Variable]:
    site = draft.resolved.site_origin("internet")
    if facts.compute == "none":
        return [Variable(name, ("1",), rule(f"no internet on compute nodes: {why}")) for name, why in OFFLINE.items()]
    if facts.compute != "proxy":
        return []
    if facts.proxy is None:
        message = "`internet.compute` is `proxy`, but no proxy is set"
        draft.site_fault(FindingCode.PROXY_MISSING, message, ("internet",), "add `proxy: http://HOST:PORT`")
        return []
    # Both spellings: curl reads only `http_proxy`, other programs only the upper-case names.
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    result = [Variable(name, (facts.proxy,), site) for name in names]
    return [*result, *(Variable(name, (facts.no_proxy,), site) for name in ("no_proxy", "NO_PROXY"))]


def _wandb(draft: PlanDraft, tracker: Tracker, path: KeyPath) -> list[Variable]:
    origin = draft.resolved.origin(*path)
    result = [Variable("WANDB_DIR", (RUNTIME["run.dir"],), rule("store wandb's files in the run folder"))]
    env = draft.resolved.job.env
    if "WANDB_MODE" in env:  # set by the user
        return [*result, *_one_wandb_run(draft, offline=env["WANDB_MODE"] == "offline")]
    mode, why = _mode(draft, tracker, origin)
    facts = draft.resolved.site.internet
    if tracker.mode == "online" and facts.compute == "none":
        message = f"wandb cannot run online: compute nodes of site {draft.resolved.site.name} have no internet access"
        hint = "remove `mode`; upload the files later with `wandb sync`"
        draft.fault(FindingCode.TRACKER_OFFLINE, message, (*path, "mode"), hint)
        return result
    if mode == "offline":
        if tracker.mode is None and facts.compute is None and facts.trackers is None:
            known = f"it is not known whether compute nodes of site {draft.resolved.site.name} reach the internet"
            message = f"wandb runs offline: {known}"
            hint = "add `mode: online` or `mode: offline` to the tracker, or `internet:` to the site profile"
            draft.fault(FindingCode.INTERNET_UNKNOWN, message, path, hint, "warning")
        return [*result, Variable("WANDB_MODE", ("offline",), why), *_one_wandb_run(draft, offline=True)]
    return [*result, *_one_wandb_run(draft, offline=False), *_key(draft, path)]


def _one_wandb_run(draft: PlanDraft, *, offline: bool) -> list[Variable]:
    """One run for all attempts. Offline, each attempt has a run of its own in one group: `wandb sync` of releases
    before 0.30 lets the last of several runs with one id replace the others (wandb issue 3841)."""
    own = draft.resolved.job.env.keys()
    if offline:
        group = rule("the offline runs of all attempts are one group")
        return [Variable("WANDB_RUN_GROUP", (RUNTIME["run.name"],), group, default=True)]
    if {"WANDB_RUN_ID", "WANDB_RESUME"} & own:
        return []
    return [
        Variable("WANDB_RUN_ID", (RUNTIME["run.name"],), ONE_RUN, default=True),
        Variable("WANDB_RESUME", ("allow",), ONE_RUN, default=True),
    ]


def _key(draft: PlanDraft, path: KeyPath) -> list[Variable]:
    """How the key reaches the job: by `secrets:`, or in the login file that wandb reads itself."""
    job, logins, host = draft.resolved.job, draft.resolved.logins, _host(draft)
    if "WANDB_API_KEY" in job.secrets:
        return []
    if draft.resolved.elsewhere and (logins is None or host not in logins.hosts or job.container is not None):
        message = f"not checked here: wandb's key for {host} at site {draft.resolved.site.name}"
        hint = "`submit` there checks it"
        draft.fault(FindingCode.NOT_CHECKED_HERE, message, path, hint, "warning")
        return []
    if logins is None or host not in logins.hosts:
        hint = "run `wandb login` once on the login node, or add `secrets: [WANDB_API_KEY]`"
        draft.fault(FindingCode.TRACKER_KEY_MISSING, f"wandb runs online but has no key for {host}", path, hint)
        return []
    if _sees_home(draft):
        return []
    if not runtime_of(_runtime(draft)).binds:
        message = f"wandb's key in {logins.file} is not visible inside the container"
        draft.fault(FindingCode.TRACKER_KEY_MISSING, message, path, "add `secrets: [WANDB_API_KEY]`")
        return []
    return [Variable("NETRC", (logins.file,), rule("the login file, bound into the container"))]


def _mode(draft: PlanDraft, tracker: Tracker, origin: Origin) -> tuple[Literal["online", "offline"], Origin]:
    facts = draft.resolved.site.internet
    if tracker.mode is not None:
        return tracker.mode, origin
    if facts.trackers is not None:
        return facts.trackers, draft.resolved.site_origin("internet", "trackers")
    if facts.compute in ("direct", "proxy"):
        return "online", draft.resolved.site_origin("internet")
    known = "no internet on compute nodes" if facts.compute == "none" else "internet access of compute nodes is unknown"
    return "offline", rule(f"{known}: upload later with `wandb sync`")


def _host(draft: PlanDraft) -> str:
    """The W&B server: the public one, or the one named by the job."""
    url = draft.resolved.job.env.get("WANDB_BASE_URL")
    return urlsplit(str(url)).hostname or WANDB_HOST if url else WANDB_HOST


def _runtime(draft: PlanDraft) -> str:
    container = draft.resolved.job.container
    return (container.runtime if container else None) or draft.resolved.site.containers.runtime
