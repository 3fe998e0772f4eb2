"""Give error numbers and error names of CUDA and HIP their messages: rules need to know only those."""

from __future__ import annotations

import re

_MESSAGES = {
    1: ("EPERM", "Operation not permitted"),
    5: ("EIO", "Input/output error"),
    12: ("ENOMEM", "Cannot allocate memory"),
    13: ("EACCES", "Permission denied"),
    24: ("EMFILE", "Too many open files"),
    27: ("EFBIG", "File too large"),
    28: ("ENOSPC", "No space left on device"),
    30: ("EROFS", "Read-only file system"),
    37: ("ENOLCK", "No locks available"),
    98: ("EADDRINUSE", "Address already in use"),
    101: ("ENETUNREACH", "Network is unreachable"),
    104: ("ECONNRESET", "Connection reset by peer"),
    107: ("ENOTCONN", "Transport endpoint is not connected"),
    108: ("ESHUTDOWN", "Cannot send after transport endpoint shutdown"),
    112: ("EHOSTDOWN", "Host is down"),
    113: ("EHOSTUNREACH", "No route to host"),
    116: ("ESTALE", "Stale file handle"),
    121: ("EREMOTEIO", "Remote I/O error"),
    122: ("EDQUOT", "Disk quota exceeded"),
}
"""Linux, include/uapi/asm-generic/errno.h, with the messages of glibc."""
_NUMBER = re.compile(
    r"\[Errno (\d{1,3})\]|\(os error (\d{1,3})\)|\berrno[:=] ?(\d{1,3})\b|\b("
    + "|".join(name for name, _ in _MESSAGES.values())
    + r")\b"
)
"""As Python, Rust and C programs print it, or the name of the constant."""
_BY_KEY = {key: text for number, (name, text) in _MESSAGES.items() for key in (str(number), name)}


def with_errno_message(text: str) -> str:
    """The text, followed by the message of the error number in it where the text lacks that."""
    match = _NUMBER.search(text)
    if match is None:
        return text
    message = _BY_KEY.get(next(group for group in match.groups() if group is not None))
    return text if message is None or message.lower() in text.lower() else f"{text} [{message}]"


_NAME = re.compile(r"\b(?:(?:cuda|hip)Error|(?:CUDA|HIP)_ERROR_|(?:CU|HIP|ROC)[A-Z]{2,8}_STATUS_)(\w{3,40})")
"""As the runtime, the driver and the libraries spell them: cudaErrorIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS."""

_GPU_MESSAGES = {
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
_BY_NAME = {name.lower(): message for message, names in _GPU_MESSAGES.items() for name in names.split()}


def with_gpu_message(text: str) -> str:
    """The text, followed by the message of the error name in it."""
    match = _NAME.search(text)
    if match is None:
        return text
    message = _BY_NAME.get(match[1].replace("_", "").lower())
    return text if message is None else f"{text} [CUDA error: {message}]"
