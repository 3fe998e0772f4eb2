"""Tell the receivers of a run what happens to it: a webhook or a command, as `notify:` of the job file says.

    python3 -I agent.pyz notify job ATTEMPT_DIR PARENT   beside the job's script: start, first step, no progress
    python3 -I agent.pyz notify end ATTEMPT_DIR CODE     at the end of the job's script
    python3 -I agent.pyz notify deliver RUN_DIR          send what is due for a run or a sweep: any driver
    python3 -I agent.pyz notify test                     send the event on standard input; prints the results

Self-contained: standard library of Python 3.6 or later, in the run's agent.pyz. Beside it lie
notify_event.py (what is sent once), notify_job.py (what the job sees) and notify_send.py. The address of a webhook is
in an environment variable that `notify:` names.

Nothing here changes the outcome of a job or delays it: each message has LIMIT_S seconds in all.

The text of a message, and the request that each kind of webhook expects, are here, too. Values come from logs, so they
are hostile: control and invisible characters are removed, lengths are limited, and each format shows them as plain
text, without mentions, links or markup.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import unicodedata
from typing import Any, Dict, List, Tuple

from hpc_launch.agent import notify_event as event_files
from hpc_launch.agent import program

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
    ("state", "state"),
    ("reason", "reason"),
    ("failure_class", "class"),
    ("cause", "cause"),
    ("advice", "advice"),
    ("progress", "progress"),
    ("points", "points"),
    ("site", "site"),
    ("job_id", "job"),
    ("nodes", "nodes"),
    ("look", "look further"),
)


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
    return [(label, plain(known[name])) for name, label in _FIELDS if known.get(name) not in (None, "", [])]


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
    runs = [[{"type": "TextRun", "text": title(event), "weight": "Bolder"}]]
    runs += [
        [{"type": "TextRun", "text": label + ": ", "weight": "Bolder"}, {"type": "TextRun", "text": value}]
        for label, value in facts(event)
    ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [{"type": "RichTextBlock", "inlines": inlines} for inlines in runs],
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


class Sender:
    """A process that tells one channel; `result` waits for it, at most until its limit."""

    def __init__(self, channel: str, receiver: Any, event: Dict[str, Any]) -> None:
        self.end = time.monotonic() + LIMIT_S
        self.webhook = channel == "webhook"
        if self.webhook:
            words = [sys.executable, *program("notify_send")]
            headers, body = request(receiver["format"], event)
            url = os.environ[receiver["secret"]]
            text = json.dumps({"url": url, "headers": headers, "body": body, "limit_s": LIMIT_S})
        else:
            words = [os.path.expanduser(receiver[0]), *receiver[1:]]
            text = json.dumps(public(event)) + "\n"
        self.text = text.encode("utf-8", "replace")
        self.problem = ""
        try:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self.webhook else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=None if self.webhook else environment(),
                start_new_session=True,
            )
        except OSError as error:
            self.problem = "cannot start: %s" % (error.strerror or type(error).__name__)

    def result(self) -> Result:
        """What became of the message."""
        if self.problem:
            return "failed", self.problem
        output, late = b"", False
        try:
            output = self.process.communicate(self.text, timeout=max(self.end + 1 - time.monotonic(), 0.1))[0] or b""
        except subprocess.TimeoutExpired:
            late = True
        finally:
            kill(self.process)
        if not self.webhook:
            if late:
                return "unknown", "stopped after %d s" % LIMIT_S
            code = self.process.returncode
            return ("sent", "") if code == 0 else ("failed", "the command ended with exit code %d" % code)
        state, _, why = (output.decode("utf-8", "replace").strip().splitlines() or [""])[-1].partition(" ")
        if state in ("sent", "failed"):
            return state, why[:200]
        if state == "connected":
            return "unknown", "no answer within %d s" % LIMIT_S
        return "failed", "no connection within %d s" % LIMIT_S


def kill(process: Any) -> None:
    """End what is left of a process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        pass


SECRETS = {""}
"""Variables with addresses that `notify:` names."""


def environment() -> Dict[str, str]:
    """The environment of a command: without such addresses."""
    return {name: value for name, value in os.environ.items() if name not in SECRETS}


def reachable(channel: str, receiver: Any) -> bool:
    """Whether this process can tell a channel: the address of a webhook may not be known here."""
    if channel == "webhook":
        if not isinstance(receiver, dict) or not {"secret", "format"} <= set(receiver):
            return False
        SECRETS.add(receiver["secret"])
        return bool(os.environ.get(receiver["secret"]))
    return isinstance(receiver, list) and bool(receiver) and all(isinstance(word, str) for word in receiver)


def deliver(run: str) -> int:
    """Send what is due for a run, all at the same time. Returns the number of messages."""
    senders = []  # type: List[Tuple[str, Sender]]
    for name, event in event_files.events(run):
        for channel in event_files.CHANNELS:
            receiver = event["channels"].get(channel)
            if receiver is None or not reachable(channel, receiver):
                continue
            path = event_files.claim(run, name, event, channel)
            if path is not None:
                senders.append((path, Sender(channel, receiver, event)))
    threads = [threading.Thread(target=finish, args=pair) for pair in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(senders)


def finish(path: str, sender: Sender) -> None:
    """Wait for a sender and record its result in its claim."""
    state, why = sender.result()
    try:
        event_files.replace(path, {"state": state, "time": time.time(), "why": why})
    except OSError:
        pass  # it stays as it is: the result is not known


def test(event: Dict[str, Any]) -> int:
    """Send an event that is not of a run, and print the result of each channel."""
    results = {}
    for channel, receiver in event["channels"].items():
        known = reachable(channel, receiver)
        sender = Sender(channel, receiver, event) if known else None
        state, why = sender.result() if sender is not None else ("failed", "the secret is not set")
        results[channel] = {"state": state, "why": why}
    print(json.dumps(results))
    return 0


def main(arguments: List[str]) -> int:
    """Do what the first argument says. Errors of files end it quietly: a message is not worth more."""
    os.umask(os.umask(0o022) | 0o022)
    task = arguments[0]
    if task == "test":
        return test(json.loads(sys.stdin.read()))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        if task == "deliver":
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
    return 0
