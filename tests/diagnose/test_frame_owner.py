"""The code that raised an exception shows what it means."""

from __future__ import annotations

import pytest

from tests.diagnose.logs import why

PACKAGES = "/home/u/env/lib/python3.11/site-packages"


def log(path: str, function: str, exception: str) -> str:
    return (
        'Traceback (most recent call last):\n  File "/home/u/train.py", line 40, in <module>\n    main()\n'
        f'  File "{path}", line 77, in {function}\n    x()\n{exception}\n'
    )


@pytest.mark.parametrize(
    ("path", "function", "exception", "expected"),
    [
        (f"{PACKAGES}/deepspeed/runtime/config_utils.py", "get_scalar_param", "KeyError: 'optimizer'", "config_error"),
        (f"{PACKAGES}/omegaconf/base.py", "_raise", "ValueError: bad node", "config_error"),
        ("/home/u/utils/misc.py", "load_config", "KeyError: 'warmup'", "config_error"),
        ("/home/u/my_dataset.py", "__getitem__", "KeyError: 'caption'", "data_error"),
        (f"{PACKAGES}/datasets/formatting/formatting.py", "__getitem__", "KeyError: 'text'", "data_error"),
        ("/home/u/io/checkpoint.py", "restore", "KeyError: 'opt'", "checkpoint_error"),
        (f"{PACKAGES}/urllib3/connection.py", "_new_conn", "socket.timeout: timed out", "network_download_error"),
        ("/home/u/my_dataset.py", "__getitem__", "AttributeError: no such attribute", "user_code_error"),
        ("/home/u/my_dataset.py", "__getitem__", "NameError: name 'x' is not defined", "user_code_error"),
        ("/home/u/model.py", "forward", "KeyError: 'caption'", "user_code_error"),
        (f"{PACKAGES}/torch/nn/modules/module.py", "_call_impl", "KeyError: 'caption'", "user_code_error"),
    ],
)
def test_the_owner_of_the_failing_frame(path: str, function: str, exception: str, expected: str) -> None:
    assert why(log(path, function, exception)).failure_class == expected


def test_a_reader_of_options_below_json() -> None:
    text = log(f"{PACKAGES}/deepspeed/runtime/config.py", "__init__", "").rstrip("\n") + "\n"
    text += '  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\n    raise\n'
    assert (
        why(text + "json.decoder.JSONDecodeError: Expecting value: line 1 column 1\n").failure_class == "config_error"
    )


@pytest.mark.parametrize("prefix", ["", "2026-11-02T13:44:05.123456789Z stderr F "])
def test_two_ranks_that_write_the_same_at_once(prefix: str) -> None:
    frames = [f'  File "{PACKAGES}/omegaconf/base.py", line {number}, in _raise' for number in range(7)]
    frames += [f'  File "{PACKAGES}/{name}.py", line 1, in f' for name in ("x/a", "x/b", "x/c", "x/d")]
    lines = ["Traceback (most recent call last):", *frames, "KeyErrorKeyError: : 'a''a'"]
    assert why("".join(f"{prefix}{line}\n" * 2 for line in lines)).failure_class == "config_error"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("OSError: [Errno 28]", "disk_full_or_quota"),
        ("ERROR write failed: ENOSPC", "disk_full_or_quota"),
        ("SafetensorError: I/O error (os error 122)", "disk_full_or_quota"),
        ("OSError: [Errno 116]", "filesystem_error"),
        ("mkdir(): errno: 30", "filesystem_error"),
        ("bind() failed: EADDRINUSE", "port_in_use"),
    ],
)
def test_a_system_error_by_its_number_alone(line: str, expected: str) -> None:
    assert why(line + "\n").failure_class == expected
