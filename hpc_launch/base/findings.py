"""Findings: errors and warnings about what the user wrote, each with its code and its place. Every check returns them.

A code is stable: once released, it never gets another meaning. Each has a section on the page of findings, which
begins with the title here.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

Severity = Literal["error", "warning"]


class FindingCode(str, Enum):
    """A code with its title and its severity: fixed, or `either` where the rule decides."""

    heading: str
    severity: Severity | Literal["either"]

    def __new__(  # noqa: PYI034  typing.Self came with Python 3.11
        cls, code: str, heading: str, severity: Severity | Literal["either"] = "error"
    ) -> FindingCode:
        """A member whose value is the code."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.heading, member.severity = heading, severity
        return member

    def __str__(self) -> str:
        return str(self.value)

    # The file and its YAML
    UNREADABLE_FILE = "HL001", "Cannot read the file"
    INVALID_YAML = "HL002", "Invalid YAML"
    DUPLICATE_KEY = "HL003", "Duplicate key"
    TAB = "HL004", "Tab in the indentation"
    NOT_ONE_MAPPING = "HL005", "Not a single mapping"
    UNSAFE_YAML = "HL006", "Unsafe YAML"
    INVALID_CHARACTER = "HL007", "Invalid character"

    # Keys and values
    UNKNOWN_KEY = "HL010", "Unknown key"
    WRONG_TYPE = "HL011", "Wrong type"
    MISSING_KEY = "HL012", "Missing key"
    INVALID_VALUE = "HL013", "Invalid value"
    SURPRISING_UNIT = "HL014", "Value without a unit", "warning"
    INVALID_SET_OPTION = "HL020", "Invalid `--set` option"
    INVALID_MERGE_OPERATOR = "HL021", "Invalid merge operator"

    # What the job names
    FILE_NOT_FOUND = "HL201", "File not found"
    NOT_ONE_PROGRAM = "HL202", "Not exactly one program"
    INVALID_COMMAND = "HL203", "Invalid command"
    RESERVED_VARIABLE = "HL204", "Invalid or reserved variable name"
    VALUE_TOO_LONG = "HL205", "Value too long"
    UNKNOWN_NAME = "HL206", "Unknown `${NAME}`"
    NAME_KNOWN_ONLY_IN_JOB = "HL207", "Name known only inside the job"
    UNEVEN_GPUS = "HL208", "Inconsistent number of GPUs"
    INVALID_MODULE = "HL209", "Invalid module name"
    SECRET_NOT_SET = "HL210", "Secret not set", "either"
    SECRET_IN_SCRIPT = "HL211", "Secret in the job file"
    INVALID_ARGUMENT = "HL212", "Invalid argument value"
    INVALID_RUN_DIR = "HL213", "Invalid run folder"
    INSECURE_SECRETS_FILE = "HL214", "Insecure or unreadable secrets file", "either"
    INVALID_PROGRESS_PATTERN = "HL215", "Invalid progress pattern"
    INVALID_SWEEP = "HL217", "Invalid sweep"
    INVALID_PIPELINE = "HL218", "Invalid pipeline"
    NOT_EXPANDED = "HL219", "Text that no shell reads", "warning"
    INVALID_ROLE = "HL220", "Invalid role"
    DATA_NOT_POSSIBLE = "HL221", "Data that the nodes cannot get"
    MANY_SMALL_FILES = "HL222", "Data of very many files", "warning"
    NOT_CHECKED_HERE = "HL216", "Not checked here", "warning"

    # The site and its profile
    SITE_NOT_DETECTED = "HL300", "No site selected"
    UNKNOWN_SITE = "HL301", "Unknown site"
    UNKNOWN_QUEUE = "HL302", "Unknown queue"
    INVALID_ACCOUNT = "HL303", "Missing or invalid account"
    UNKNOWN_NODE_CLASS = "HL304", "Unknown node class"
    INVALID_PORT_RANGE = "HL305", "Invalid port range"
    INVALID_ACCOUNT_PATTERN = "HL306", "Invalid account pattern"
    CIRCULAR_EXTENDS = "HL307", "Circular `extends:`"
    UNKNOWN_PARENT = "HL308", "Unknown parent profile"
    INVALID_PARENT_NAME = "HL309", "Invalid name of a parent profile"
    BASE_NOT_SYSTEM = "HL310", "The profile is a base"
    INVALID_PARAMETER = "HL311", "Invalid template parameter"
    UNSOURCED_FACTS = "HL312", "Facts without a source", "either"
    UNTRUSTED_CODE = "HL313", "Untrusted code", "either"
    INVALID_PRELUDE_STEP = "HL314", "Invalid prelude step"
    OVERLAPPING_LIMITS = "HL315", "Overlapping limits"
    UNKNOWN_PROFILE_NAME = "HL316", "Unknown name in the profile"
    SECRET_IN_PROFILE = "HL317", "Secret in the profile"
    SYSTEM_RETIRED = "HL318", "System retired", "either"
    UNKNOWN_SITE_OPTION = "HL319", "Unknown option or stack"
    WRONG_SUBMIT_PLACE = "HL320", "Wrong folder or host for submitting", "warning"
    PERSONAL_PROFILE = "HL321", "Personal data in a shared profile", "either"
    GOLDEN_SCRIPT_DIFFERS = "HL322", "The script differs from its golden script"
    BROKEN_PLUGIN = "HL323", "Broken plug-in"

    # What the job requests
    TOO_MANY_GPUS = "HL401", "Too many GPUs per node"
    TIME_OVER_LIMIT = "HL402", "Time over the limit"
    WARNING_TOO_EARLY = "HL403", "Warning before the job starts"
    TOO_MANY_CPUS = "HL404", "Too many CPUs per node"
    TOO_MUCH_MEMORY = "HL405", "Too much memory per node"
    UNEVEN_PROCESSES = "HL406", "Processes do not match the GPUs", "warning"
    NODES_OUT_OF_LIMITS = "HL407", "Number of nodes not allowed"
    TOO_MANY_LOCAL_PROCESSES = "HL408", "Too many local processes"
    LIMIT_UNKNOWN = "HL409", "Limit not known", "warning"
    INVALID_SBATCH_OPTION = "HL410", "Invalid sbatch option"
    RESERVED_SBATCH_OPTION = "HL411", "Reserved sbatch option"
    INVALID_SBATCH_VALUE = "HL412", "Invalid value for an `#SBATCH` line"
    LAUNCHER_NEEDS_SLURM = "HL420", "The launcher requires Slurm"
    OPTION_OF_OTHER_LAUNCHER = "HL421", "Option of another launcher"
    LAUNCHER_NOT_ELASTIC = "HL422", "The launcher is not elastic"
    STATIC_RENDEZVOUS = "HL423", "Static rendezvous cannot restart"
    NUMA_BINDING_UNSUPPORTED = "HL424", "`numa_binding` requires PyTorch 2.9", "either"
    NO_LAUNCHER_OPTIONS = "HL425", "`launcher: none` has no options"
    PROGRAM_CANNOT_REACH_NODES = "HL426", "The program cannot reach the other nodes"
    NO_CONTAINERS = "HL430", "Container runtime not available"
    IMAGE_PULLED_BY_ALL_NODES = "HL431", "Every node would pull the image"
    INVALID_BIND = "HL432", "Invalid bind"

    # Images
    WRONG_IMAGE_ARCHITECTURE = "HL470", "Image for another architecture"
    WRONG_IMAGE_DIGEST = "HL471", "Wrong image digest"
    NO_APPTAINER = "HL472", "Apptainer not found"
    INVALID_CONTAINER_STEP = "HL473", "Invalid container prelude step"
    ENVIRONMENT_OUTSIDE_CONTAINER = "HL474", "Environment outside the container", "warning"

    # How processes start
    STEP_NOT_ELASTIC = "HL480", "The site does not support elastic runs"
    RUNTIME_NEEDS_SRUN = "HL481", "The container runtime requires srun"
    BINDING_HIDES_RESOURCES = "HL482", "Binding hides CPUs or GPUs"
    SRUN_OPTION_WITHOUT_SRUN = "HL484", "srun option without srun"
    PDSH_NOT_POSSIBLE = "HL485", "pdsh not possible"
    SSH_IGNORES_GPU_REQUEST = "HL486", "ssh ignores the GPU request"
    CONFLICTING_RENDEZVOUS_RULES = "HL487", "Conflicting rendezvous rules"
    OPTION_LOST_OVER_PDSH = "HL488", "Option lost over pdsh"
    GPUS_PER_TASK_UNEVEN = "HL489", "GPUs do not divide by tasks"
    SPARES_NOT_POSSIBLE = "HL490", "Spares not possible"

    # The disk and the internet
    CANNOT_WRITE = "HL501", "Cannot write"
    TRACKER_OFFLINE = "HL502", "No internet for the tracker"
    INTERNET_UNKNOWN = "HL503", "Internet access unknown", "warning"
    TRACKER_KEY_MISSING = "HL504", "No API key for the tracker"
    PROXY_MISSING = "HL505", "No proxy named"

    # How a run continues
    CHECKPOINTS_NOT_LOCATED = "HL510", "Location of the checkpoints missing"
    CHECKPOINTS_PER_ATTEMPT = "HL511", "Another checkpoint folder in each attempt"
    INVALID_CHECKPOINT_PATTERN = "HL512", "Invalid checkpoint pattern"
    DRILL_CANNOT_MEASURE = "HL513", "The drill cannot observe the training"
    CHECKPOINTS_NOT_SHARED = "HL514", "Checkpoints that other hosts cannot read", "warning"
    NOTHING_TO_CONTINUE_FROM = "HL515", "Nothing to continue from", "warning"

    # What is retried
    UNKNOWN_FAILURE_CLASS = "HL531", "Unknown failure class"
    RETRY_STEP_IMPOSSIBLE = "HL532", "Retry step not possible"
    INVALID_RETRY_BATCH = "HL533", "Invalid `retry.batch`"
    UNKNOWN_SENTINEL_QUEUE = "HL534", "Unknown sentinel queue"
    INVALID_LEDGER_PATH = "HL535", "Invalid ledger folder"
    SUCCESSOR_NOT_POSSIBLE = "HL536", "Successor job not possible"

    # What the site requires
    OPTION_REFUSED_BY_SITE = "HL540", "Option refused by the site"
    OPTION_REQUIRED_BY_SITE = "HL541", "Option required by the site"
    MISSING_COMPANION = "HL542", "Missing companion setting", "either"
    CONFLICTING_SETTINGS = "HL543", "Conflicting settings", "either"
    NODE_MINUTES_OVER_LIMIT = "HL544", "Too many node-minutes"
    GPU_COUNT_NOT_OFFERED = "HL545", "Number of GPUs not offered"
    MEMORY_NOT_ACCEPTED = "HL547", "Memory request not accepted"
    EXCLUSIVE_NOT_ACCEPTED = "HL548", "Whole nodes not available"
    LAUNCHER_DISCOURAGED = "HL549", "Launcher discouraged or refused", "either"

    # Notifications
    INVALID_WEBHOOK = "HL551", "Webhook address in a file"
    NOTHING_TO_SEND = "HL552", "Notification that is not sent", "warning"

    # The files and flags of config
    UNREADABLE_CONFIG = "HL600", "Cannot read the configuration"
    UNKNOWN_CONFIG_KEY = "HL601", "Unknown configuration key"
    INVALID_CONFIG_VALUE = "HL604", "Invalid configuration value"
    AUTO_NOT_FILLED_IN = "HL605", "`auto` outside Hugging Face", "either"
    INCONSISTENT_BATCH = "HL610", "Inconsistent batch or process numbers"
    TWO_PRECISIONS = "HL611", "fp16 and bf16 together"
    PARAM_OFFLOAD_NEEDS_STAGE_3 = "HL612", "Parameter offload below ZeRO stage 3"
    NVME_PATH_MISMATCH = "HL613", "NVMe without a path, or a path without NVMe"
    OPTIMIZER_OFFLOAD_NOT_POSSIBLE = "HL614", "Optimizer offload not possible at this stage"
    DEEPSPEED_REFUSES = "HL619", "DeepSpeed refuses the file", "either"
    WRAP_POLICY_MISMATCH = "HL623", "Wrap policy and arguments do not match"
    STATE_DICT_UNSUPPORTED = "HL625", "State dict type not supported by FSDP 2"
    STRATEGY_UNSUPPORTED = "HL627", "Sharding strategy not supported by FSDP 2"
    STRATEGY_WITHOUT_EFFECT = "HL628", "Sharding strategy without effect", "warning"
    ACCELERATE_REFUSES = "HL629", "Accelerate refuses the file", "either"
    PROCESSES_NOT_DIVISIBLE = "HL640", "Processes not divisible by TP × PP × CP"
    EXPERT_PROCESSES_NOT_DIVISIBLE = "HL641", "Processes not divisible by ETP × EP × PP"
    EXPERTS_NOT_DIVISIBLE = "HL642", "Experts not divisible by EP, or no experts"
    HEADS_NOT_DIVISIBLE = "HL643", "Attention heads not divisible by TP"
    QUERY_GROUPS_NOT_DIVISIBLE = "HL644", "Query groups do not divide", "either"
    LAYERS_NOT_DIVISIBLE = "HL645", "Layers not divisible by PP"
    STAGE_LAYERS_NOT_DIVISIBLE = "HL646", "Layers per stage not divisible by VPP"
    TOO_FEW_STAGES = "HL647", "Virtual stages without enough pipeline stages"
    MICRO_BATCHES_NOT_DIVISIBLE = "HL648", "Micro batches not divisible by PP"
    SEQUENCE_NOT_DIVISIBLE = "HL649", "Sequence length not divisible by 2 × CP or TP × CP"
    SEQUENCE_PARALLEL_WITHOUT_TP = "HL650", "Sequence parallelism without tensor parallelism"
    EXPERTS_NEED_SEQUENCE_PARALLEL = "HL651", "Experts and tensor parallelism without sequence parallelism", "warning"
    GLOBAL_BATCH_NOT_DIVISIBLE = "HL652", "Global batch not divisible by micro batch × replicas"
    IDLE_STAGES = "HL653", "Fewer micro batches than pipeline stages", "warning"
    TP_OVER_NODES = "HL654", "Tensor parallelism over several nodes", "warning"
    WRONG_MAX_CONNECTIONS = "HL655", "Wrong CUDA_DEVICE_MAX_CONNECTIONS", "either"
    SINGLE_REPLICA = "HL656", "Distributed optimizer with a single replica", "warning"
    HIDDEN_SIZE_NOT_DIVISIBLE = "HL657", "Hidden size not divisible by heads or TP"
    UNEVEN_STAGES = "HL658", "Pipeline stages cannot have these layers"
    INVALID_HOSTFILE = "HL660", "Invalid host list or suffix"
    INVALID_NODE_RANK = "HL661", "Invalid node rank"
    INVALID_RENDEZVOUS = "HL662", "Invalid rendezvous address"

    # Hosts without Slurm
    HOST_NOT_REACHABLE = "HL663", "Host not reachable over ssh"
    SSH_LOGIN_REFUSED = "HL664", "Login over ssh refused"
    SSH_HOST_KEY = "HL665", "Host key not accepted"

    # The strategy of a job
    CONFLICTING_STRATEGY_KEYS = "HL670", "Key without effect, or conflicting keys"
    NO_STRATEGY_CONFIG = "HL671", "No configuration for `${strategy.config}`"
    LAYOUT_MISSING = "HL672", "Megatron without a layout"
    CONFIG_CONTRADICTS_JOB = "HL673", "Your configuration contradicts the job"
    DUPLICATE_MEGATRON_FLAG = "HL674", "Duplicate Megatron flag"
    STRATEGY_NOT_ELASTIC = "HL675", "The strategy is not elastic"
    PRECISION_NOT_SUPPORTED = "HL676", "Precision not supported by the configuration"
    CONFIG_NOT_PASSED = "HL677", "Configuration not passed to the Trainer", "warning"

    # The model
    UNKNOWN_MODEL = "HL680", "Unknown model"
    MODEL_CONTRADICTS_ARGUMENTS = "HL681", "The model contradicts the arguments"

    STATES_TOO_LARGE = "HL685", "Parameters, gradients and optimizer states exceed the GPU"
    MEMORY_MAY_NOT_FIT = "HL686", "The training may not fit on the GPU", "warning"
    OVER_BUDGET = "HL687", "The job may cost more than your limit"

    # Rules of why
    INVALID_RULE = "HL690", "Invalid rule", "warning"


class Place(Struct, frozen=True):
    """Where a value was written: file, and line and column from 1. For an option, `file` is its name."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


class Finding(Struct, frozen=True):
    """One error (nothing is submitted) or warning. `code` has a section in docs/reference/findings.md."""

    code: FindingCode
    message: str
    place: Place | None = None
    hint: str | None = None
    severity: Severity = "error"

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        kind = "" if self.severity == "error" else "warning: "
        return f"{where}{self.code} {kind}{self.message}"

    def as_json(self) -> dict[str, object]:
        """The object of `validate --format json`: flat, with null for unknown values."""
        place = asdict(self.place) if self.place else {"file": None, "line": None, "column": None}
        return {"code": self.code.value, "severity": self.severity, "message": self.message, **place, "hint": self.hint}


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in the order of their places; files in the order of their first finding."""
    files: dict[str, int] = {}

    def key(finding: Finding) -> tuple[int, int, int]:
        place = finding.place or Place("")
        return files.setdefault(place.file, len(files)), place.line or 0, place.column or 0

    return sorted(findings, key=key)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that prevent submission."""
    return [finding for finding in findings if finding.severity == "error"]
