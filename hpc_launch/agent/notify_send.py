"""Send one request to a webhook: `python3 -I notify_send.py`, which reads {url, headers, body, limit_s}.

Self-contained: standard library of Python 3.6 or later. A process of its own, so that whatever the other side does, the
kernel ends it after `limit_s` seconds, even during the look-up of the host's name. The address comes through standard
input and is never shown: not on a command line, in the environment, or in an error.

It prints `connected` once the request may have reached the webhook, then `sent`, or `failed` and why.
"""

import http.client
import json
import os
import signal
import socket
import ssl
import sys
import urllib.error
import urllib.request
from typing import Any, List


def say(words: str) -> None:
    """Tell the parent process at once."""
    os.write(1, (words + "\n").encode("ascii", "replace"))


class _Plain(http.client.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        say("connected")


class _Secure(http.client.HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        say("connected")


class _PlainHandler(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_Plain, request)


class _SecureHandler(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_Secure, request, context=ssl.create_default_context())


def send(url: str, headers: Any, body: str) -> str:
    """`sent`, or why not. A redirect is not followed: nobody else gets the message. The answer is not read."""
    if not url.lower().startswith(("https://", "http://")):
        return "failed the secret holds no http:// or https:// address"
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),  # those of the environment
        _PlainHandler(),
        _SecureHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    try:
        opener.open(urllib.request.Request(url, body.encode("utf-8"), headers, method="POST"))  # noqa: S310 - checked above
    except urllib.error.HTTPError as error:
        redirected = ": a redirect, which is not followed" if 300 <= error.code < 400 else ""
        return "failed the webhook answered with HTTP status %d%s" % (error.code, redirected)
    except urllib.error.URLError as error:
        return "failed " + reason(error.reason)
    except Exception as error:
        return "failed " + reason(error)
    return "sent"


def reason(error: Any) -> str:
    """Why it failed, in words that do not repeat the address, as messages of exceptions do."""
    if isinstance(error, socket.gaierror):
        return "the host of the webhook cannot be found"
    if isinstance(error, ssl.SSLError):
        return "TLS error (%s)" % (error.reason or type(error).__name__)
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return "no valid answer (%s)" % type(error).__name__


def main(_: List[str]) -> None:
    """Read the task, send, and end without waiting for the connection to close."""
    task = json.loads(sys.stdin.read())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, task["limit_s"])
    say(send(task["url"].strip(), task["headers"], task["body"]))
    os._exit(0)
