"""Tell the receivers of a run what happens to it: a webhook or a command, as `notify:` of the job file says.

    python3 -I agent.pyz notify job ATTEMPT_DIR PARENT   beside the job's script: start, first step, no progress
    python3 -I agent.pyz notify end ATTEMPT_DIR CODE     at the end of the job's script
    python3 -I agent.pyz notify deliver RUN_DIR          send what is due for a run or a sweep: any driver
    python3 -I agent.pyz notify test                     send the event on standard input; prints the results

Beside it lie notify_event.py (what is sent once) and notify_job.py (what the job sees). The address of a webhook is in
an environment variable that `notify:` names; it is never shown, on a command line or in an error.

Nothing here changes the outcome of a job or delays it: each message has LIMIT_S seconds in all, in a thread of its own,
with which the process does not wait for the look-up of a name or for an answer that never ends.

The text of a message, and the request that each kind of webhook expects, are here, too. Values come from logs, so they
are hostile: control and invisible characters are removed, lengths are limited, and each format shows them as plain
text, without mentions, links or markup.
"""

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import unicodedata
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Dict, List, Tuple

from hpc_launch.agent import notify_event as event_files
from hpc_launch.agent import write_atomic

LONGEST, LONGEST_TEXT = 400, 2500
TITLES = {
    "start": "started",
    "first_step": "reached its first step",
    "end": "ended",
    "stop": "stopped: a person must act",
    "left": "job ended, and nothing continues the run yet",
    "no_progress": "makes no progress",
    "test": "is a test message",
}
_FIELDS = (
    "state reason failure_class cause failed_first advice roles progress used points site job_id nodes look".split()
)
_LABELS = {"failure_class": "class", "failed_first": "failed first", "job_id": "job", "look": "look further"}
"""What is told of an event, in this order, and the labels of those that differ from their names."""


def plain(value: Any, longest: int = LONGEST) -> str:
    """A value as one line of visible characters. Spoofing characters, such as those that turn text around, go, too."""
    text = " ".join(str(value)[: 4 * longest].split())
    text = "".join(char for char in text if unicodedata.category(char)[0] != "C")
    return text if len(text) <= longest else text[: longest - 1] + "…"


def title(event: Dict[str, Any]) -> str:
    """One line: `hpc-launch: tiny-gpt-260101-120000-ab12 ended (COMPLETED)`."""
    kind = str(event.get("event"))
    state = " (%s)" % plain(event["state"], 40) if kind in ("end", "left") and event.get("state") else ""
    return "hpc-launch: %s %s%s" % (plain(event.get("run", "?"), 200), TITLES.get(kind, plain(kind, 40)), state)


def facts(event: Dict[str, Any]) -> List[Tuple[str, str]]:
    """What is known of it, by label."""
    known = dict(event)
    step, total, loss = (event.get(name) for name in ("step", "total", "loss"))
    if step is not None:
        known["progress"] = "step %s%s%s" % (
            step,
            " of %s" % total if total is not None else "",
            ", loss %s" % loss if loss is not None else "",
        )
    return [(_LABELS.get(name, name), plain(known[name])) for name in _FIELDS if known.get(name) not in (None, "", [])]


def text(event: Dict[str, Any]) -> str:
    """The whole message as plain text."""
    lines = [title(event)] + ["%s: %s" % fact for fact in facts(event)]
    return "\n".join(lines)[:LONGEST_TEXT]


def request(form: str, event: Dict[str, Any]) -> Tuple[Dict[str, str], str]:
    """Headers and body of the POST request for a webhook."""
    headers = {"Content-Type": "application/json", "User-Agent": "hpc-launch"}
    if form == "ntfy":
        # Headers must be ASCII without line breaks (docs.ntfy.sh/publish, "Message title").
        urgent = event.get("event") in ("stop", "left", "no_progress")
        headers["Content-Type"] = "text/plain; charset=utf-8"
        headers["Title"] = title(event).encode("ascii", "replace").decode("ascii")
        headers["Priority"] = "high" if urgent else "default"
        lines = ["%s: %s" % fact for fact in facts(event)]
        return headers, "\n".join(lines)[:LONGEST_TEXT] or title(event)
    return headers, json.dumps(_BODIES[form](event))


def _slack(event: Dict[str, Any]) -> Dict[str, Any]:
    # `&`, `<` and `>` are the control characters; a mention or a link needs `<` (docs.slack.dev, "Formatting message
    # text"). The rest is shown as it is, without previews of addresses in it.
    escaped = text(event).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": escaped, "mrkdwn": False, "unfurl_links": False, "unfurl_media": False}


def _mattermost(event: Dict[str, Any]) -> Dict[str, Any]:
    # Markdown: in a code block, nothing in it is a mention or a link. Backticks could end the block.
    return {"text": "```text\n%s\n```" % text(event).replace("`", "'").replace("@", "@\u200b")}


def _teams(event: Dict[str, Any]) -> Dict[str, Any]:
    # A TextBlock reads Markdown, a TextRun does not (adaptivecards.io/explorer/TextRun.html).
    lines = [{"type": "TextRun", "text": line} for line in text(event).splitlines()]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [{"type": "RichTextBlock", "inlines": [line]} for line in lines],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def public(event: Dict[str, Any]) -> Dict[str, Any]:
    """The event as programs get it."""
    known = {key: value for key, value in event.items() if key != "channels"}
    known["text"] = text(event)
    return {key: plain(value) if isinstance(value, str) and key != "text" else value for key, value in known.items()}


_BODIES = {"slack": _slack, "mattermost": _mattermost, "teams": _teams, "json": public}


LIMIT_S = 10.0
"""For one message, from its beginning to the receiver's answer."""

Result = Tuple[str, str]
"""`sent`, `failed` or `unknown`, and why."""


Message = Tuple[str, Any, Dict[str, Any], str]
"""The channel and its receiver, the event, and the file of the claim, or ''."""


def tell_all(messages: List[Message]) -> List[Result]:
    """Tell the receivers at the same time. Returns the results: of one that hangs, that it is not known."""
    tasks = [(one, ThreadPoolExecutor(1).submit(tell, *one)) for one in messages]
    wait([task for _, task in tasks], LIMIT_S + 1)
    late = "unknown", "no answer within %d s" % LIMIT_S
    return [task.result() if task.done() else note(message[3], late) for message, task in tasks]


def tell(channel: str, receiver: Any, event: Dict[str, Any], path: str) -> Result:
    """Tell one receiver."""
    return note(path, (tell_webhook if channel == "webhook" else tell_command)(receiver, event))


def note(path: str, result: Result) -> Result:
    """Keep a result in the file of its claim."""
    with contextlib.suppress(OSError):  # it stays as it is: the result is not known
        if path:
            write_atomic(path, json.dumps({"state": result[0], "time": time.time(), "why": result[1]}))
    return result


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Nobody else gets the message."""


def tell_webhook(receiver: Dict[str, str], event: Dict[str, Any]) -> Result:
    """Send a request. A redirect is not followed, and the answer is not read."""
    url = os.environ[receiver["secret"]].strip()
    if not url.lower().startswith(("https://", "http://")):
        return "failed", "the secret holds no http:// or https:// address"
    headers, body = request(receiver["format"], event)
    try:
        body_bytes = body.encode("utf-8", "replace")
        task = urllib.request.Request(url, body_bytes, headers, method="POST")  # noqa: S310 - the scheme is known
        urllib.request.build_opener(_NoRedirect).open(task, timeout=LIMIT_S).close()
    except urllib.error.HTTPError as error:
        redirected = ": a redirect, which is not followed" if 300 <= error.code < 400 else ""
        return "failed", "the webhook answered with HTTP status %d%s" % (error.code, redirected)
    except urllib.error.URLError as error:  # before the request was sent
        return "failed", reason(error.reason)
    except socket.timeout:
        return "unknown", "no answer within %d s" % LIMIT_S
    except Exception as error:
        return "failed", reason(error)
    return "sent", ""


def reason(error: Any) -> str:
    """Why it failed, in words that do not repeat the address, as messages of exceptions do."""
    if isinstance(error, socket.gaierror):
        return "the host of the webhook cannot be found"
    if isinstance(error, socket.timeout):
        return "no connection within %d s" % LIMIT_S
    if isinstance(error, ssl.SSLError):
        return "TLS error (%s)" % (error.reason or type(error).__name__)
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return "no valid answer (%s)" % type(error).__name__


def tell_command(words: List[str], event: Dict[str, Any]) -> Result:
    """Run a command with the event on its standard input, and without addresses in its environment."""
    try:
        process = subprocess.Popen(
            [os.path.expanduser(words[0]), *words[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: value for name, value in os.environ.items() if name not in SECRETS},
            start_new_session=True,
        )
    except OSError as error:
        return "failed", "cannot start: %s" % (error.strerror or type(error).__name__)
    try:
        process.communicate((json.dumps(public(event)) + "\n").encode("utf-8", "replace"), timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return "unknown", "stopped after %d s" % LIMIT_S
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    code = process.returncode
    return ("sent", "") if code == 0 else ("failed", "the command ended with exit code %d" % code)


SECRETS = {""}
"""Variables with addresses that `notify:` names."""


def reachable(channel: str, receiver: Any) -> bool:
    """Whether this process can tell a channel: the address of a webhook may not be known here."""
    if channel == "webhook":
        name = (receiver or {}).get("secret", "")
        SECRETS.add(name)
        return bool(os.environ.get(name))
    return bool(receiver)


def deliver(run: str) -> None:
    """Send what is due for a run, all at the same time."""
    messages = []  # type: List[Message]
    for name, event in event_files.events(run):
        for channel, receiver in event["channels"].items():
            path = event_files.claim(run, name, event, channel) if reachable(channel, receiver) else None
            if path is not None:
                messages.append((channel, receiver, event, path))
    tell_all(messages)


def test(event: Dict[str, Any]) -> None:
    """Send an event that is not of a run, and print the result of each channel."""
    results = {}
    for channel, receiver in event["channels"].items():
        known = reachable(channel, receiver)
        state, why = tell_all([(channel, receiver, event, "")])[0] if known else ("failed", "the secret is not set")
        results[channel] = {"state": state, "why": why}
    print(json.dumps(results))


def main(arguments: List[str]) -> None:
    """Do what the first argument says. Errors of files end it quietly: a message is not worth more."""
    os.umask(os.umask(0o022) | 0o022)
    task = arguments[0]
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        if task == "test":
            test(json.loads(sys.stdin.read()))
        elif task == "deliver":
            deliver(arguments[1])
        else:
            from hpc_launch.agent.notify_job import JobNotices

            notices = JobNotices(arguments[1], deliver)
            if task == "end":
                until = time.monotonic() + LIMIT_S
                notices.end(int(arguments[2]))
                # Slurm ends what is left of the job, also a process that is sending.
                while event_files.sending(notices.run) and time.monotonic() < until:
                    time.sleep(0.1)
            else:
                notices.follow(int(arguments[2]))
    except OSError as error:
        print("[hpc-launch] cannot notify: %s" % (error.strerror or type(error).__name__))
    sys.stdout.flush()
    os._exit(0)  # a thread may hang
