"""``autellix trace report``: a trace as one page that needs nothing but a browser.

The page's parts lie in ``report_page/`` as plain HTML, CSS and JavaScript; they are put into one
file here, with the trace as JSON. The page fetches nothing: its own policy forbids it to.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from autellix.errors import TraceError

from .report_data import report_data
from .trace import Trace

_FOLDER = Path(__file__).with_name("report_page")
# In the order in which they need each other.
_SCRIPTS = (
    "data.js",
    "gantt_rows.js",
    "gantt.js",
    "dag.js",
    "charts.js",
    "table.js",
    "details.js",
    "main.js",
)


def report_page(trace: Trace, title: str) -> str:
    """The page.

    Args:
        trace: what it shows.
        title: its heading, e.g. the file's name.
    """
    parts = {
        "title": html.escape(title),
        "style": _read("style.css"),
        "data": _json_in_html({**report_data(trace), "title": title}),
        "script": "\n".join(_read(name) for name in _SCRIPTS),
    }
    page = _read("page.html")
    head, *pieces = page.split("{{")
    for piece in pieces:
        name, text = piece.split("}}", 1)
        head += parts[name] + text
    return head


def write_report(trace: Trace, title: str, path: Path) -> None:
    """Write the page.

    Raises:
        TraceError: the file cannot be written.
    """
    try:
        path.write_text(report_page(trace, title), encoding="utf-8", errors="replace")
    except OSError as error:
        raise TraceError(
            f"the report {path} cannot be written: {error.strerror}; name another file"
        ) from error


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _json_in_html(values: Any) -> str:
    """JSON that no text in it can end early: ``<`` starts every tag and comment."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
