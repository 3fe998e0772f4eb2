"""Give each system error its message, so that rules need to know only that."""

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
