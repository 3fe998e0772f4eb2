"""Send one request to a webhook: `python3 -I notify_send.py`, which reads {url, headers, body, limit_s}.

Self-contained: standard library of Python 3.6 or later. A process of its own, so that whatever the other side does, the
kernel ends it after `limit_s` seconds, even during the look-up of the host's name. The address comes through standard
input and is never shown: not on a command line, in the environment, or in an error.

It prints `connected` once the request may have reached the webhook, then `sent`, or `failed` and why.
"""

import json
import os
import signal
import socket
import ssl
import sys
import urllib.error
import urllib.request
from typing import Any, List


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Nobody else gets the message."""


def send(url: str, headers: Any, body: str) -> str:
    """`sent`, or why not. A redirect is not followed. The answer is not read."""
    if not url.lower().startswith(("https://", "http://")):
        return "failed the secret holds no http:// or https:// address"
    request = urllib.request.Request
    try:
        urllib.request.build_opener(_NoRedirect).open(request(url, body.encode("utf-8"), headers, method="POST"))
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
    connect = socket.create_connection

    def connected(*words: Any, **options: Any) -> socket.socket:
        connection = connect(*words, **options)
        print("connected", flush=True)
        return connection

    socket.create_connection = connected  # in this process alone: http.client calls it
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, task["limit_s"])
    print(send(task["url"].strip(), task["headers"], task["body"]), flush=True)
    os._exit(0)
