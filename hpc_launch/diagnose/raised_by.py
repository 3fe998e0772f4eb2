"""What an exception means by its type, its error number and the code that raised it, not by its words.

The same KeyError is an invalid configuration in a reader of options, and unusable data in a data set. The same refused
connection is a failed download below urllib, and the network between ranks anywhere else. With the name of a file in
it, the same time-out is storage.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence

_PLACE = re.compile(r'File "([^"]{1,400})", line \d+(?:, in (\S+))?')
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib\d*/python\d|^<frozen")
_DEEPEST = 6
"""How many frames, from the innermost outwards, are looked at."""

_DOWNLOADS = re.compile(
    r"/(?:urllib/request|http/client|ssl|ftplib)\.py$"
    r"|/(?:requests|urllib3|httpx|httpcore|aiohttp|huggingface_hub|botocore|boto3|gdown|fsspec|gcsfs|s3fs|wandb|mlflow)/"
)

_LIBRARIES = (
    ("import_error", re.compile(r"^<frozen importlib|/importlib/__init__\.py$|/ctypes/__init__\.py$")),
    (
        "config_error",
        re.compile(
            r"/(?:argparse|configparser|optparse|getopt)\.py$"
            r"|/(?:omegaconf|hydra|yaml|ruamel|tomllib|tomli|toml|jsonargparse|absl/flags|click|typer|fire|tyro|yacs|pydantic"
            r"|simple_parsing|jsonschema|ml_collections|draccus)/"
            r"|/transformers/(?:hf_argparser|training_args\w*|integrations/deepspeed)\.py$"
            r"|/deepspeed/(?:runtime/(?:\w+/)?config\w*\.py$|launcher/)|/megatron/(?:\w+/)*(?:arguments|yaml_arguments)\.py$"
            r"|/accelerate/(?:commands/|utils/dataclasses\.py$)|/torch/distributed/(?:run|launch)\.py$"
        ),
    ),
    (
        "checkpoint_error",
        re.compile(
            r"/torch/(?:serialization\.py$|distributed/checkpoint/)|/safetensors/|/orbax/|/flax/training/checkpoints\.py$"
            r"|/deepspeed/(?:checkpoint/|runtime/(?:checkpoint_engine/|state_dict_factory))"
            r"|/megatron/(?:\w+/)*(?:checkpointing\.py$|dist_checkpointing/)"
        ),
    ),
    ("network_download_error", _DOWNLOADS),
    (
        "data_error",
        re.compile(
            r"/(?:datasets|webdataset|torchvision/datasets|torchaudio/datasets|tensorflow_datasets|PIL|h5py|pandas/io|pyarrow"
            r"|netCDF4|nibabel|pydicom|decord|zarr|lmdb|streaming/base)/|/(?:tarfile|zipfile|gzip|csv)\.py$"
            r"|/megatron/(?:\w+/)*(?:data|datasets)/"
        ),
    ),
)
_OWN = (
    (
        "config_error",
        re.compile(
            r"(?:^|[/_])(?:configs?|configuration|arguments|args|options|opts|hparams|settings)\w*(?:\.py|/[^/]*)$"
        ),
    ),
    ("checkpoint_error", re.compile(r"(?:^|[/_])(?:checkpoint\w*|ckpt\w*)\.py$")),
    (
        "data_error",
        re.compile(r"(?:^|/)\w*(?:data_?sets?|data_?loaders?|data_?modules?)\w*(?:\.py|/[^/]*)$|/data\.py$"),
    ),
)
_FUNCTIONS = (
    (
        "config_error",
        re.compile(r"^_?(?:parse_args|get_args|(?:load|read|parse|get)_(?:config|cfg|options|hparams)\w*)$"),
    ),
    (
        "checkpoint_error",
        re.compile(r"^_?(?:load|resume|restore)_(?:from_)?(?:checkpoint|ckpt|state_dict|weights|lora)\w*$"),
    ),
    ("data_error", re.compile(r"^(?:__getitem__|collate_fn|\w*_collate)$")),
)

_MISSING = frozenset({"FileNotFoundError", "IsADirectoryError", "NotADirectoryError"})
_UNREADABLE = frozenset({"JSONDecodeError", "UnicodeDecodeError", "EOFError", "UnpicklingError", "BadZipFile", "error"})
_TYPES = {
    "import_error": frozenset({"OSError", "RuntimeError"}),
    "config_error": frozenset({"KeyError", "ValueError", "AssertionError", "TypeError"}) | _MISSING | _UNREADABLE,
    "checkpoint_error": frozenset({"KeyError", "ValueError", "AssertionError", "RuntimeError"})
    | _MISSING
    | _UNREADABLE,
    "network_download_error": frozenset({"OSError", "ConnectionError", "TimeoutError", "timeout", "gaierror"}),
    "data_error": frozenset({"KeyError", "OSError"}) | _MISSING | _UNREADABLE,
}
"""Exceptions that mean, in code of that kind, that what it reads is wrong; others are mistakes in the program."""

_MEANT = re.compile(r"(?:\w+\.)*(\w+)")


_CONNECTION = frozenset(
    {"ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError",
     "TimeoutError", "timeout", "gaierror", "herror"}
)  # fmt: skip
"""Types of an exception that only a connection raises."""
_UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ETIMEDOUT, errno.ECONNREFUSED})
_LOST = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ENOTCONN, errno.ESHUTDOWN})
_NUMBER = re.compile(r"\[Errno (-?\d{1,3})\]")
_WITH_FILE = re.compile(r"\[Errno \d{1,3}\] [^:]{1,80}: '")
"""Python adds the name of the file (Objects/exceptions.c, OSError)."""
_PACKAGE = re.compile(
    r"/(?:site|dist)-packages/(?!(?:torch|deepspeed|megatron|accelerate|lightning|horovod|mpi4py|ray)/)"
)
"""Packages that may speak to anything; the others connect ranks."""
PEER = "nccl_system_error"


def _of_connection(frames: Sequence[str], exception: str, kind: str) -> str:
    """The class of an exception of a connection; empty for another one."""
    number = _NUMBER.search(exception)
    code = int(number[1]) if number else 0
    if code not in _UNREACHABLE | _LOST and kind not in _CONNECTION:
        return ""
    if _WITH_FILE.search(exception):
        return "filesystem_error"
    paths = [match[1] for text in frames if (match := _PLACE.search(text))]
    if any(_DOWNLOADS.search(path) for path in paths):
        return "network_download_error"
    return "" if not paths or _PACKAGE.search(paths[-1]) else PEER


def owner(frames: Sequence[str], exception: str) -> str:
    """The failure class of an exception that this code raised; empty where type and frames do not show one.

    Args:
        frames: The lines `File "…", line N, in f` of the traceback, the innermost last.
        exception: The line that ends the traceback.
    """
    named = _MEANT.match(exception)
    if named is None:
        return ""
    if connection := _of_connection(frames, exception, named[1]):
        return connection
    for text in reversed(frames[-_DEEPEST:]):
        match = _PLACE.search(text)
        if match is None:
            continue
        path, function = match[1], match[2] or ""
        own = _INSTALLED.search(path) is None
        kind = _kind(path, function, own=own)
        if kind:
            return kind if named[1] in _TYPES[kind] else ""
        if own:
            return ""  # the program's own code raised it, or called what raised it
    return ""


def _kind(path: str, function: str, *, own: bool) -> str:
    for kind, pattern in _OWN if own else _LIBRARIES:
        if pattern.search(path):
            return kind
    return next((kind for kind, pattern in _FUNCTIONS if pattern.match(function)), "") if own else ""
