"""Environment variables that a profile may set or use without trust: by the name, and the value where it matters."""

from __future__ import annotations

import re
from typing import Any

_TUNING = {
    "NCCL": "ALGO ALLOC_P2P_NET_LL_BUFFERS ASYNC_ERROR_HANDLING BLOCKING_WAIT BUFFSIZE CGA_CLUSTER_SIZE CHECKS_DISABLE "
    "CHECK_POINTERS CROSS_NIC CTA_POLICY DEBUG DEBUG_SUBSYS DMABUF_ENABLE GRAPH_MIXING_SUPPORT GRAPH_REGISTER "
    "IGNORE_CPU_AFFINITY IGNORE_DISABLED_P2P LAUNCH_MODE LOCAL_REGISTER MAX_CTAS MAX_NCHANNELS MAX_NRINGS "
    "MAX_P2P_NCHANNELS MIN_CTAS MIN_NCHANNELS MIN_NRINGS MIN_P2P_NCHANNELS NCHANNELS_PER_NET_PEER NCHANNELS_PER_PEER "
    "NET NET_FORCE_FLUSH NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ NET_PLUGIN NET_SHARED_BUFFERS NET_SHARED_COMMS "
    "NSOCKS_PERTHREAD NTHREADS PROTO PXN_DISABLE RAS_ENABLE RUNTIME_CONNECT SET_STACK_SIZE SHM_DISABLE SHM_LOCALITY "
    "SOCKET_FAMILY SOCKET_IFNAME SOCKET_NTHREADS SOCKET_RETRY_CNT TOPO_RANK",
    "TORCH_NCCL": "ASYNC_ERROR_HANDLING AVOID_RECORD_STREAMS BLOCKING_WAIT CUDA_EVENT_CACHE DESYNC_DEBUG "
    "ENABLE_MONITORING ENABLE_TIMING HEARTBEAT_TIMEOUT_SEC HIGH_PRIORITY NAN_CHECK PROPAGATE_ERROR TRACE_BUFFER_SIZE "
    "USE_COMM_NONBLOCKING",
    "GLOO": "SOCKET_IFNAME",
    "UCX": "IB_GID_INDEX IB_GPU_DIRECT_RDMA IB_PCI_RELAXED_ORDERING IB_SL IB_TRAFFIC_CLASS LOG_LEVEL MAX_EAGER_RAILS "
    "MAX_RNDV_RAILS MEMTYPE_CACHE NET_DEVICES RC_TIMEOUT RNDV_SCHEME RNDV_THRESH TLS UD_TIMEOUT WARN_UNUSED_ENV_VARS",
    "UCC": "CL_BASIC_TLS LOG_LEVEL TLS",
    "FI": "LOG_LEVEL PROVIDER UNIVERSE_SIZE",
    "PSM2": "CUDA GPUDIRECT MULTIRAIL MULTI_EP",
    "PSM3": "CUDA GPUDIRECT MULTIRAIL NIC RDMA",
    "HFI": "NO_CPUAFFINITY UNIT",
    "IBV": "FORK_SAFE",
    "CXI": "FORK_SAFE FORK_SAFE_HP",
    "MPICH": "ENV_DISPLAY GPU_IPC_ENABLED GPU_SUPPORT_ENABLED MAX_THREAD_SAFETY NEMESIS_ASYNC_PROGRESS OFI_NIC_POLICY "
    "OFI_NUM_NICS OFI_STARTUP_CONNECT SMP_SINGLE_COPY_MODE VERSION_DISPLAY",
    "CUDA": "AUTO_BOOST CACHE_DISABLE CACHE_MAXSIZE DEVICE_MAX_CONNECTIONS DEVICE_ORDER LAUNCH_BLOCKING MODULE_LOADING "
    "VISIBLE_DEVICES",
    "CUBLAS": "WORKSPACE_CONFIG",
    "NVIDIA": "TF32_OVERRIDE",
    "NVTE": "ALLOW_NONDETERMINISTIC_ALGO BWD_LAYERNORM_SM_MARGIN FLASH_ATTN FUSED_ATTN FWD_LAYERNORM_SM_MARGIN "
    "UNFUSED_ATTN",
    "HSA": "ENABLE_PEER_SDMA ENABLE_SDMA FORCE_FINE_GRAIN_PCIE NO_SCRATCH_RECLAIM OVERRIDE_GFX_VERSION XNACK",
    "HIP": "FORCE_DEV_KERNARG LAUNCH_BLOCKING VISIBLE_DEVICES",
    "ROCR": "VISIBLE_DEVICES",
    "GPU": "DEVICE_ORDINAL MAX_HW_QUEUES",
    "MIOPEN": "DISABLE_CACHE FIND_ENFORCE FIND_MODE LOG_LEVEL",
    "AMD": "DIRECT_DISPATCH LOG_LEVEL SERIALIZE_COPY SERIALIZE_KERNEL",
    "ONEAPI": "DEVICE_SELECTOR",
    "ZE": "AFFINITY_MASK ENABLE_PCI_ID_DEVICE_ORDER FLAT_DEVICE_HIERARCHY",
    "CCL": "ALLGATHERV ALLREDUCE ATL_TRANSPORT KVS_IFACE KVS_MODE LOG_LEVEL REDUCE_SCATTER WORKER_AFFINITY "
    "WORKER_COUNT ZE_IPC_EXCHANGE",
    "KMP": "AFFINITY BLOCKTIME HW_SUBSET SETTINGS",
    "OMP": "DISPLAY_AFFINITY DISPLAY_ENV DYNAMIC MAX_ACTIVE_LEVELS NESTED NUM_THREADS PLACES PROC_BIND SCHEDULE "
    "STACKSIZE THREAD_LIMIT WAIT_POLICY",
    "MKL": "CBWR DYNAMIC NUM_THREADS THREADING_LAYER",
    "OPENBLAS": "NUM_THREADS",
    "NUMEXPR": "MAX_THREADS NUM_THREADS",
    "VECLIB": "MAXIMUM_THREADS",
    "MALLOC": "ARENA_MAX MMAP_THRESHOLD_ TRIM_THRESHOLD_",
    "TORCH": "ALLOW_TF32_CUBLAS_OVERRIDE CPP_LOG_LEVEL CUDA_ARCH_LIST DISTRIBUTED_DEBUG SHOW_CPP_STACKTRACES",
    "PYTORCH": "ALLOC_CONF CUDA_ALLOC_CONF HIP_ALLOC_CONF NO_CUDA_MEMORY_CACHING NVML_BASED_CUDA_CHECK "
    "TUNABLEOP_ENABLED TUNABLEOP_TUNING",
    "TOKENIZERS": "PARALLELISM",
    "SLURM": "CPUS_PER_TASK CPU_BIND MPI_TYPE NETWORK",
    "SRUN": "CPUS_PER_TASK",
    "WANDB": "MODE SILENT",
    "HF_HUB": "OFFLINE",
    "HF_DATASETS": "OFFLINE",
    "TRANSFORMERS": "OFFLINE",
}
HARMLESS_VARIABLES = frozenset(f"{prefix}_{name}" for prefix, names in _TUNING.items() for name in names.split())
"""Variables that tune communication, threads and numerics. Of the others of a library, some name a file to write or to
load: NCCL_DEBUG_FILE, MKL_VERBOSE_OUTPUT_FILE, PYTORCH_TUNABLEOP_FILENAME."""
_HARMLESS_GROUPS = re.compile(r"NCCL_(IB|P2P|NVLS|CUMEM)_[A-Z0-9_]+|FI_(CXI|EFA|MR|HMEM)_[A-Z0-9_]+")
_PYTHON = re.compile(r"PYTHON(UNBUFFERED|NOUSERSITE|HASHSEED|DONTWRITEBYTECODE|FAULTHANDLER|SAFEPATH)")
"""Switches of Python that are safer on than off."""
_WITHOUT_PROXY = frozenset({"no_proxy", "NO_PROXY"})
_LOCALE = frozenset({"TZ", "LANG", "LC_ALL"})
_FILE_PARTS = frozenset(
    "FILE FILENAME PATH DIR DIRECTORY DEST DUMP OUT OUTPUT PLUGIN LIB LIBRARY DRIVER TRACE COREDUMP INJECTION LOG "
    "LOGS PREFIX".split()
)
"""Parts of a name that stand for a file."""
_NAMES_SERVER = re.compile(r"(URL|URI|ENDPOINT|SERVER|HOST|ADDR|ADDRESS|COMM_ID)(E?S)?$|PROXY$")
_PLAIN = re.compile(r"(?:[A-Za-z0-9_,:=^+%@*{}-]|\.(?=\d)|;(?=\d))*")
"""A value that is no path, file, placeholder or command."""
PRINTS = re.compile(r"(?:\A|,)(?:help|list)(?:,|\Z)", re.IGNORECASE)
"""Values with which srun only prints something, starts nothing and ends with 0 (srun(1), --mpi, --cpu-bind)."""
_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS|_PWD|CREDENTIAL|COOKIE|AUTH|JWT|DSN|URL|URI|PROXY|SESSION|(^|_)PAT(_|$)", re.IGNORECASE
)
_PUBLIC = re.compile(
    r"USER|LOGNAME|HOME|HOSTNAME|OAK|BB|SLURM_[A-Z0-9_]+|HPC_LAUNCH_[A-Z0-9_]+|(LOCAL_|WORLD_|NODE_|GROUP_)?RANK"
    r"|(LOCAL_)?WORLD_SIZE|CRAY_(LD_)?LIBRARY_PATH"
    r"|([A-Z0-9]+_)*[A-Z0-9]*(SCRATCH|WORK|STORE|PROJECTS?|ROOT|DIR|ACCOUNT)"
)
"""Variables of folders, accounts and ranks."""
NUMBER = re.compile(r"\$\{(?:job\.id|shell\.(?:SLURM_\w*ID|SLURM_N\w+|\w*RANK))\}")
"""Placeholders that stand for numbers."""


def is_public(name: str) -> bool:
    """Whether the value of a variable may appear in a script, a folder's name or an option."""
    # A list of secret ones is never complete: BW_SESSION and MONGODB_URI hold passwords.
    return _PUBLIC.fullmatch(name) is not None and not _SECRET.search(name)


def variable_requiring_trust(name: object, value: Any) -> str | None:
    """What setting a variable is, or unsetting it if `value` is None; None if it is harmless."""
    name = str(name)
    if _NAMES_SERVER.search(name.upper()) and name not in _WITHOUT_PROXY:
        return f"variable {name}, by which programs send keys and data to a server"
    # A list of harmful ones is never complete: GCC_EXEC_PREFIX, MAKEFLAGS and RDMAV_DRIVERS all lead to code.
    text = NUMBER.sub("", str(value))
    if name in HARMLESS_VARIABLES:
        prints = name.startswith("SLURM_") and PRINTS.search(text) is not None
        harmless = value is None or (_PLAIN.fullmatch(text) is not None and not prints)
    elif _PYTHON.fullmatch(name):
        harmless = value is not None and re.fullmatch(r"[a-z0-9]+", text) is not None
    elif name in _WITHOUT_PROXY:
        harmless = value is not None and re.fullmatch(r"[A-Za-z0-9.,:*-]*", text) is not None
    elif name in _LOCALE:
        harmless = re.fullmatch(r"[A-Za-z0-9_@+-]*(\.[Uu][Tt][Ff]-?8)?", text) is not None
    else:
        in_group = _HARMLESS_GROUPS.fullmatch(name) is not None and _FILE_PARTS.isdisjoint(name.split("_"))
        harmless = in_group and (value is None or _PLAIN.fullmatch(text) is not None)
    return None if harmless else f"variable {name}, by which programs may load code or write files"
