"""The text of a notification, and the request that each kind of webhook expects. For notify.py.

Self-contained: standard library of Python 3.6 or later.

Values come from logs, so they are hostile: control and invisible characters are removed, lengths are limited, and each
format shows them as plain text, without mentions, links or markup.
"""

import json
import unicodedata
from typing import Any, Dict, List, Tuple

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
