"""Error names of CUDA and HIP mean what their messages say, however a library spells them."""

from __future__ import annotations

import pytest

from hpc_launch.diagnose.log_line import with_gpu_message
from tests.diagnose.logs import why


@pytest.mark.parametrize("name", ["cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress"])
def test_one_error_in_every_spelling(name: str) -> None:
    assert why(f"what():  parallel_for failed: {name}\n").failure_class == "cuda_assert_or_illegal_access"


@pytest.mark.parametrize(
    ("name", "failure_class"),
    [
        ("cudaErrorMemoryAllocation", "cuda_oom"),
        ("HIPBLAS_STATUS_ALLOC_FAILED", "cuda_oom"),
        ("CUDA_ERROR_ECC_UNCORRECTABLE", "gpu_hardware"),
        ("CUDA_ERROR_NO_DEVICE", "gpu_driver"),
        ("cudaErrorSystemNotReady", "gpu_driver"),
        ("hipErrorNoBinaryForGpu", "gpu_driver"),
        ("cudaErrorAssert", "cuda_assert_or_illegal_access"),
    ],
)
def test_the_class_of_a_name(name: str, failure_class: str) -> None:
    assert why(f"RuntimeError: call failed: {name}\n").failure_class == failure_class


@pytest.mark.parametrize("text", ["cudaErrorNotReady", "CUDA_ERROR_", "loss 2.0"])
def test_other_text_stays(text: str) -> None:
    assert with_gpu_message(text) == text
