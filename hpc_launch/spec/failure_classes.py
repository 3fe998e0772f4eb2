"""The names of what can end a run: `retry:` of a job file and the diagnosis go by the same ones."""

from __future__ import annotations

FAILURE_CLASSES = (
    "cuda_oom", "host_oom", "nccl_timeout", "nccl_system_error", "rendezvous_failure", "port_in_use", "gpu_hardware",
    "gpu_driver", "cuda_assert_or_illegal_access", "node_failure", "preempted", "time_limit", "cancelled_by_user",
    "disk_full_or_quota", "filesystem_error", "shm_exhausted", "module_not_found", "container_error", "import_error",
    "user_code_error", "config_error", "checkpoint_error", "data_error", "network_download_error", "permission_denied",
    "submit_rejected", "loss_nan", "segfault_or_abort", "hang_no_progress", "success", "unknown",
)  # fmt: skip
