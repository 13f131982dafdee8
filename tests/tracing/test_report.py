"""The report in a real browser: complete, quiet, usable by hand, by keyboard and on a phone."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Keys

from autellix.errors import TraceError
from autellix.tracing.report import report_page, write_report
from autellix.tracing.report_data import lowest_lanes, report_data, seat_lanes
from autellix.tracing.trace import Trace
from autellix.tracing.trace_fields import trace_from_document
from autellix.tracing.trace_file import read_trace
from autellix.tracing.waiting import Waiting
from tests.tracing.browser import NoBrowser, Page, browser
from tests.tracing.simulated import document_of, repeated, simulated_run

SAMPLES = Path(__file__).parent / "samples"
AWKWARD = '</script><img src=x onerror="document.title=1">&amp;<!-- \u2028'


@pytest.fixture(scope="session")
def started() -> Iterator[Page]:
    """One browser for all."""
    try:
        opened = browser()
        page = opened.__enter__()
    except NoBrowser as missing:
        pytest.skip(str(missing))
    try:
        yield page
    finally:
        opened.__exit__(None, None, None)


@pytest.fixture
def page(started: Page) -> Iterator[Page]:
    """The browser; at the end its console must be empty."""
    started.complaints()
    yield started
    assert started.complaints() == []


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "react.html"
    write_report(read_trace(SAMPLES / "react_agent.v1.json"), "react_agent.json", path)
    return path


@pytest.fixture(scope="module")
def branching(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "tree.html"
    write_report(read_trace(SAMPLES / "tree_search.v1.json"), "tree_search.json", path)
    return path


def made(tmp_path: Path, document: dict, title: str = "t.json") -> Path:
    path = tmp_path / "report.html"
    write_report(trace_from_document(document, "t"), title, path)
    return path


# The file.


def test_the_page_is_whole_in_one_file_and_asks_for_nothing():
    text = report_page(read_trace(SAMPLES / "react_agent.v1.json"), "t")
    assert "{{" not in text
    assert not re.search(r'(src|href)="(?!#|data:)', text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "default-src 'none'" in text


def test_the_data_is_the_trace():
    trace = read_trace(SAMPLES / "react_agent.v1.json")
    text = report_page(trace, "t")
    found = re.search(r'<script type="application/json" id="trace">(.*?)</script>', text, re.S)
    assert found is not None
    data = json.loads(found[1])
    assert data == {**report_data(trace), "title": "t"}
    assert [call[0] for call in data["calls"]] == [call.id for call in trace.calls()]
    assert [p["response"] for p in data["programs"]] == [
        pytest.approx(p.response_s, abs=1e-6) for p in trace.programs
    ]


def test_seats_hold_one_call_at_a_time():
    for replicas in (1, 2):
        document = document_of(simulated_run(20, 8, replicas=replicas, every_s=0.2))
        waiting = Waiting(trace_from_document(document, "t"))
        stays: dict[tuple[int | None, int], list[tuple[float, float]]] = {}
        for id, lanes in seat_lanes(waiting).items():
            for lane, start_s, end_s in lanes:
                assert lane < waiting.trace.engine.seats
                place = waiting.trace.by_id[id].replica, lane
                stays.setdefault(place, []).append((start_s, end_s))
        for found in stays.values():
            found.sort()
            assert all(end <= start for (_, end), (start, _) in pairwise(found))
    assert lowest_lanes([(0, 4, "a"), (1, 2, "b"), (2, 3, "c"), (5, 6, "d")]) == {
        "a": [(0, 0, 4)],
        "b": [(1, 1, 2)],
        "c": [(1, 2, 3)],
        "d": [(0, 5, 6)],
    }


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    trace = read_trace(SAMPLES / "react_agent.v1.json")
    with pytest.raises(TraceError, match=r"no/r\.html cannot be written: No such file"):
        write_report(trace, "t", tmp_path / "no" / "r.html")


# In the browser.


def test_the_figures_of_the_run_are_there(page: Page, real: Path):
    page.open(real)
    tiles = page.text("#tiles")
    for words in ("8\nprograms", "22\nLLM calls, 14 tools", "136 s\nmakespan", "2\npreemptions"):
        assert words in tiles
    assert "policy atlas" in page.text("#facts")
    assert page.run("return document.title") == "react_agent.json · Autellix"
    assert page.run("return document.querySelectorAll('#table tbody tr').length") == 8
    for heading in ("Timeline", "DAG", "Waiting by cause", "Latency", "Table"):
        assert heading in page.text("main")


def test_the_timeline_is_drawn_in_the_colours_of_the_legend(page: Page, real: Path):
    page.open(real)
    drawn = page.run(
        """
        const done = document.querySelector("#gantt canvas");
        const pixels = done.getContext("2d").getImageData(0, 0, done.width, done.height).data;
        const found = new Set();
        for (let at = 0; at < pixels.length; at += 4) found.add(pixels.slice(at, at + 3).join());
        const wanted = [...document.querySelectorAll("#legend i")].map((mark) =>
          [mark.parentElement.innerText,
            getComputedStyle(mark).backgroundColor.match(/\\d+/g).slice(0, 3).join()]);
        return wanted.map(([name, colour]) => [name, found.has(colour)]);
        """
    )
    assert {"running", "waiting", "preempted", "in tool"} <= {name for name, _ in drawn}
    assert [name for name, is_there in drawn if not is_there] in ([], ["on its way"], ["in tool"])


def hover(page: Page, at_s: float, row: int) -> str:
    """Rest the pointer on the timeline; what the tip says."""
    place = page.run(
        """
        const box = document.querySelector("#gantt").getBoundingClientRect();
        const gutter = box.width < 560 ? 84 : 150;
        const across = gutter + (arguments[0] / run.end) * (box.width - 2 - gutter - 8);
        return [across - box.width / 2, 24 + arguments[1] * 24 + 7 - box.height / 2];
        """,
        at_s,
        row,
    )
    element = page.driver.find_element("id", "gantt")
    ActionChains(page.driver).move_to_element_with_offset(element, *map(round, place)).perform()
    hidden = page.run("return document.querySelector('#tip').hidden")
    return "" if hidden else page.text("#tip")


def test_resting_on_a_call_shows_it_and_a_click_tells_its_story(page: Page, real: Path):
    page.open(real)
    tip = hover(page, 40.0, 2)
    assert "act · react_agent-3/3" in tip
    assert "waiting 44.4 s, level 3" in tip
    assert hover(page, 100.0, 0) == ""
    hover(page, 40.0, 2)
    ActionChains(page.driver).click().perform()
    story = page.text("#details")
    assert "act · react_agent-3/3" in story
    assert "loses its seat, level 4: for call react_agent-6/5 at level 2: seats full" in story
    assert "react_agent-7/1 act (better placed)" in story
    assert page.run("return document.querySelector('#program').selectedOptions[0].text") == (
        "react_agent-3"
    )


def test_search_finds_programs_and_calls_and_leaves_the_rest_in_the_shade(page: Page, real: Path):
    page.open(real)
    page.keys("#query", "react_agent-7")
    options = page.run("return [...document.querySelectorAll('#matches li')].map(o => o.innerText)")
    assert options[0].startswith("react_agent-7 program, done, 5 calls")
    assert len(options) == 6
    page.keys("#query", Keys.ENTER)
    assert "react_agent-7" in page.text("#details")
    assert page.run("return document.querySelectorAll('#table tbody tr').length") == 1
    page.keys("#query", Keys.ESCAPE)
    assert page.run("return document.querySelectorAll('#table tbody tr').length") == 8
    page.keys("body", "/")
    assert page.run("return document.activeElement.id") == "query"
    page.keys("#query", "answer agent-2/", Keys.ARROW_DOWN, Keys.ENTER)
    assert "answer · react_agent-2/5" in page.text("#details")
    page.keys("#query", Keys.ESCAPE)
    page.keys("#query", "nobody at all")
    assert page.text("#matches") == "Nothing found"
    page.keys("#query", Keys.ESCAPE)


def test_the_keyboard_alone_reaches_every_call(page: Page, branching: Path):
    page.open(branching)
    chosen = set()
    page.keys("#gantt", Keys.ARROW_UP * 4, Keys.ARROW_LEFT * 14)
    for _ in range(4):
        for _ in range(14):
            chosen.add(page.text("#details p b + *, #details p"))
            page.keys("#gantt", Keys.ARROW_RIGHT)
        page.keys("#gantt", Keys.ARROW_DOWN, Keys.ARROW_LEFT * 14)
    assert len(chosen) == 56
    page.keys("#dag", Keys.ARROW_LEFT * 6)
    first = page.text("#details p")
    page.keys("#dag", Keys.ARROW_RIGHT)
    assert page.text("#details p") != first
    page.keys("#dag", Keys.ARROW_DOWN)
    # Everything that can be clicked can be reached with the tab key.
    unreachable = page.run(
        """
        return [...document.querySelectorAll("[onclick], button, select, input, a")]
          .filter((found) => found.tabIndex < 0 && found.getAttribute("role") !== "radio").length
        """
    )
    assert unreachable == 0


def test_zoom_by_key_button_and_wheel_changes_what_is_shown_and_0_shows_all(page: Page, real: Path):
    page.open(real)
    picture = "return document.querySelector('#gantt canvas').toDataURL()"
    frame = "return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"

    def drawn() -> str:
        page.run(frame)
        return page.run(picture)

    whole = drawn()
    page.keys("#gantt", "+")
    near = drawn()
    assert near != whole
    page.keys("#gantt", "0")
    assert drawn() == whole
    page.click("[data-zoom=in]")
    assert drawn() == near
    page.click("[data-zoom=all]")
    page.run(
        "document.querySelector('#gantt').dispatchEvent(new WheelEvent('wheel', "
        "{deltaY: -200, ctrlKey: true, clientX: 600, cancelable: true}))"
    )
    assert drawn() != whole
    page.click("[data-rows=replicas]")
    assert drawn() != whole
    page.keys("[data-rows=replicas]", Keys.ARROW_LEFT)
    page.click("[data-zoom=all]")
    assert drawn() == whole


def test_the_dag_has_a_node_for_each_call_and_marks_the_critical_path(page: Page, branching: Path):
    page.open(branching)
    trace = read_trace(SAMPLES / "tree_search.v1.json")
    program = max(trace.programs, key=lambda p: p.response_s)
    assert program.id in page.run(
        "return document.querySelector('#program').selectedOptions[0].text"
    )
    assert page.run("return document.querySelectorAll('#dag .node').length") == len(program.calls)
    marked = page.run("return document.querySelectorAll('#dag .node.critical').length")
    assert marked == len(program.critical_path)
    edges = sum(len(call.parents) for call in program.calls)
    assert page.run("return document.querySelectorAll('#dag path').length") == edges
    on_path = page.run("return document.querySelectorAll('#dag path.critical').length")
    assert on_path == len(program.critical_path) - 1


def test_the_table_sorts_by_any_column(page: Page, real: Path):
    page.open(real)

    def column(number: int) -> list[str]:
        return page.run(
            "return [...document.querySelectorAll('#table tbody tr')]"
            ".map(row => row.children[arguments[0]].innerText)",
            number,
        )

    waits = [float(text.removesuffix(" s")) for text in column(4)]
    assert waits == sorted(waits, reverse=True)
    page.click("#table th:first-child button")
    assert column(0) == sorted(column(0))
    page.click("#table th:first-child button")
    assert column(0) == sorted(column(0), reverse=True)
    page.click("[data-table=calls]")
    assert page.text("#pager").startswith("36 calls")
    page.click("#pager [aria-label='Next page']")
    assert len(column(0)) == 11


@pytest.mark.parametrize("width", [320, 375, 768, 1280, 1920])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_overflows_the_page_whatever_its_width(page: Page, real: Path, width, dark):
    page.open(real, width=width, height=812, dark=dark)
    assert page.run("return document.documentElement.scrollWidth") == width
    outside = page.run(
        """
        const edge = document.documentElement.clientWidth + 0.5;
        return [...document.querySelectorAll("main *")].filter((found) => {
          if (found.closest(".scroll, #dag, .hidden")) return false;
          return found.getBoundingClientRect().right > edge;
        }).map((found) => found.outerHTML.slice(0, 80));
        """
    )
    assert outside == []


CONTRAST = """
  const channel = (value) => {
    value /= 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some(
      (child) => child.nodeType === 3 && child.textContent.trim());
    const box = node.getBoundingClientRect();
    if (!own || !box.width || node.closest(".hidden, script, style, option, [hidden]")) continue;
    const style = getComputedStyle(node), isDrawn = node.namespaceURI.endsWith("svg");
    const front = light(parse(isDrawn ? style.fill : style.color)), back = light(behind(node));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (ratio < 4.5) found.push([node.outerHTML.slice(0, 80), ratio.toFixed(2)]);
  }
  return found;
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_can_be_read_in_the_light_and_in_the_dark(page: Page, branching: Path, dark):
    page.open(branching, dark=dark)
    background = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(246, 247, 249)") != dark
    assert page.run(CONTRAST) == []
    page.click("#theme")
    assert (
        page.run("return getComputedStyle(document.body).backgroundColor") == background
    ) is False
    assert page.run(CONTRAST) == []


def test_no_text_of_a_trace_becomes_markup(page: Page, tmp_path: Path):
    document = document_of(simulated_run(2, 4))
    program = document["programs"][0]
    program["id"] = program["name"] = AWKWARD
    program["error"], program["status"] = AWKWARD, "failed"
    for call in program["calls"]:
        call["node"] = call["name"] = AWKWARD
        call["error"], call["status"] = AWKWARD, "failed"
        for event in call["events"]:
            event["reason"] = AWKWARD
    path = made(tmp_path, document, title=AWKWARD)
    assert html.escape(AWKWARD) in path.read_text()
    page.open(path)
    page.keys("#query", "onerror", Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    assert page.run("return document.querySelectorAll('img').length") == 0
    assert page.run("return document.querySelector('h1').textContent") == AWKWARD
    assert AWKWARD.strip() in page.run("return document.querySelector('#details').textContent")


@pytest.mark.parametrize("programs", [0, 1])
def test_a_run_without_programs_or_calls_has_a_report(page: Page, tmp_path: Path, programs):
    document = document_of(simulated_run(1, 1))
    document["programs"] = document["programs"][:programs]
    for program in document["programs"]:
        program["calls"], program["critical_path"] = [], []
    page.open(made(tmp_path, document))
    assert "No call waited." in page.text("#causes")


def test_a_run_that_lasts_and_what_was_lost_of_it_are_shown(page: Page, tmp_path: Path, small_run):
    trace = trace_from_document(document_of(small_run), "t")
    lost = Trace(**{**vars(trace), "losses": ("line 3 is cut off",)})
    write_report(lost, "t", tmp_path / "r.html")
    page.open(tmp_path / "r.html")
    assert page.text("#losses") == "Line 3 is cut off."
    page.keys("#query", "p/3", Keys.ENTER)
    page.keys("#query", Keys.ARROW_DOWN, Keys.ENTER)
    assert "still runs where the trace ends" in page.text("#details")


def test_five_thousand_calls_are_shown(page: Page, tmp_path: Path):
    document = repeated(document_of(simulated_run(10, 18, replicas=2, every_s=0.3)), 17)
    calls = sum(len(program["calls"]) for program in document["programs"])
    assert calls >= 5000
    path = made(tmp_path, document)
    page.open(path)
    ready_ms = page.run("return Number(document.documentElement.dataset.ready)")
    size = path.stat().st_size
    print(f"\n{calls} calls: {size / 1e6:.1f} MB, drawn {ready_ms:.0f} ms after it was asked for")
    assert f"{calls:,}" in page.run("return (calls.length).toLocaleString('en')")
    page.click("[data-table=calls]")
    assert f"{calls:,} calls" in page.text("#pager")


def test_a_program_of_thousands_of_calls_is_drawn(page: Page, tmp_path: Path):
    document = document_of(simulated_run(1, 1500))
    page.open(made(tmp_path, document))
    nodes = page.run("return document.querySelectorAll('#dag .node').length")
    assert nodes == len(document["programs"][0]["calls"])
