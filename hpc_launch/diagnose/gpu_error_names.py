"""Give each error name of the CUDA and HIP libraries its message, so that rules need to know only that."""

from __future__ import annotations

import re

_NAME = re.compile(r"\b(?:(?:cuda|hip)Error|(?:CUDA|HIP)_ERROR_|(?:CU|HIP|ROC)[A-Z]{2,8}_STATUS_)(\w{3,40})")
"""As the runtime, the driver and the libraries spell them: cudaErrorIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS."""

_MESSAGES = {
    "out of memory": "OutOfMemory MemoryAllocation AllocFailed",
    "an illegal memory access was encountered": "IllegalAddress",
    "an illegal instruction was encountered": "IllegalInstruction",
    "misaligned address": "MisalignedAddress",
    "unspecified launch failure": "LaunchFailure LaunchFailed",
    "the launch timed out and was terminated": "LaunchTimeout",
    "device-side assert triggered": "Assert",
    "uncorrectable ECC error encountered": "EccUncorrectable",
    "uncorrectable NVLink error detected during the execution": "NvlinkUncorrectable",
    "hardware stack error": "HardwareStackError",
    "unknown error": "Unknown",
    "no CUDA-capable device is detected": "NoDevice",
    "invalid device ordinal": "InvalidDevice",
    "initialization error": "InitializationError Initialization",
    "CUDA-capable device(s) is/are busy or unavailable": "DevicesUnavailable DeviceUnavailable",
    "CUDA driver version is insufficient for CUDA runtime version": "InsufficientDriver",
    "no kernel image is available for execution on the device": "NoKernelImageForDevice NoBinaryForGpu",
    "the provided PTX was compiled with an unsupported toolchain": "UnsupportedPtxVersion",
    "device kernel image is invalid": "InvalidKernelImage InvalidImage InvalidKernelFile",
    "invalid device function": "InvalidDeviceFunction",
    "system has unsupported display driver / cuda driver combination": "SystemDriverMismatch",
    "forward compatibility was attempted on non supported HW": "CompatNotSupportedOnDevice CompatNotSupported",
    "system not yet initialized": "SystemNotReady",
}
"""CUDA Toolkit, cudaGetErrorString; HIP has the same names."""
_BY_NAME = {name.lower(): message for message, names in _MESSAGES.items() for name in names.split()}


def with_gpu_message(text: str) -> str:
    """The text, followed by the message of the error name in it."""
    match = _NAME.search(text)
    if match is None:
        return text
    message = _BY_NAME.get(match[1].replace("_", "").lower())
    return text if message is None else f"{text} [CUDA error: {message}]"
