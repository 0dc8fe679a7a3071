"""The page in a real browser: no errors, nothing fetched, readable at two widths in two themes, usable by keyboard."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reports.page.build import build, build_difference
from reports.runs import load_given
from reports.whatif import Answer
from tests.reports.browser import Browser, chromium
from tests.reports.test_figures import SECTIONS
from tests.reports.test_runs import recorded_run

pytestmark = pytest.mark.skipif(chromium() is None, reason="no chromium here: apt-get install chromium")

VIEWS = [(1280, False), (1280, True), (390, False), (390, True)]
views = pytest.mark.parametrize(("width", "dark"), VIEWS, ids=lambda value: str(value))

OVERFLOWING = """
[...document.querySelectorAll('body *')].filter(each => {
  const box = each.getBoundingClientRect();
  return box.width > 0 && box.right > document.documentElement.clientWidth + 1 && !each.closest('.scroll')
    && !each.closest('.skip');
}).map(each => each.outerHTML.slice(0, 80))
"""
SMALL = """
[...document.querySelectorAll('svg text')].map(each => {
  const shown = each.getBoundingClientRect();
  const turned = each.getScreenCTM();
  const size = parseFloat(getComputedStyle(each).fontSize) * Math.hypot(turned.a, turned.b);
  return [shown.height > 0 ? size : 99, each.textContent];
}).filter(pair => pair[0] < 8).map(pair => pair[1])
"""
OVERLAPPING = """
(() => {
  const found = [];
  for (const svg of document.querySelectorAll('svg')) {
    const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim());
    const boxes = texts.map(t => t.getBoundingClientRect());
    for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
      const a = boxes[i], b = boxes[j];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && tall > 4) found.push([texts[i].textContent, texts[j].textContent]);
    }
  }
  return found;
})()
"""
CONTRAST = """
(() => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(c => {
      c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll('p, li span, figcaption, td, th, a, summary, h1, h2')].map(each => {
    const ink = light(getComputedStyle(each).color);
    return [(Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05), each.textContent.slice(0, 40)];
  }).filter(pair => pair[0] < 4.5);
})()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    started = Browser()
    yield started
    started.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every figure: a training with a trace, scalars and devices."""
    folder = recorded_run(tmp_path_factory.mktemp("page") / "run", **SECTIONS)
    lines = [f'{{"step": {k}, "loss": {4 - k / 20}, "expected_accepted_length": {1 + k / 40}}}' for k in range(40)]
    lines += [f'{{"step": {k}, "held_out_loss": {4.1 - k / 20}}}' for k in (10, 30)]
    (folder / "scalars.jsonl").write_text("\n".join(lines))
    sample = '{{"time_s": {0}, "device": "cuda:{1}", "utilization": 0.{0}, "memory_bytes": {0}000000}}'
    (folder / "devices.jsonl").write_text("\n".join(sample.format(k, d) for k in range(1, 9) for d in range(2)))
    answers = {"run": [Answer("policy shared", 100.0, 0.2, free=True), Answer("one target more (3)", 90.0, 0.1)]}
    return build(load_given([folder]), folder.parent / "out", answers)


@views
def test_the_page_loads_without_errors_and_without_any_request(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.console == []
    assert [each for each in browser.requests if not each.startswith("data:")] == [page.resolve().as_uri()]


@views
def test_nothing_is_wider_than_the_window_or_too_small_to_read(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    browser.value("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(OVERFLOWING) == []
    assert browser.value(SMALL) == []


@pytest.mark.parametrize("width", [1280, 390])
def test_no_label_lies_over_another_in_any_figure(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    browser.value("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.value("document.querySelectorAll('svg').length") >= 12
    assert browser.value(OVERLAPPING) == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_the_ground_in_both_themes(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, width=1280, dark=dark)
    assert browser.value(CONTRAST) == []
    ink = browser.value("getComputedStyle(document.querySelector('svg text')).fill")
    assert ink == ("rgb(236, 236, 237)" if dark else "rgb(27, 27, 28)")


def test_every_figure_has_a_text_for_those_who_do_not_see_it(browser: Browser, page: Path) -> None:
    browser.open(page, width=1280)
    bare = "[...document.querySelectorAll('figure svg, figure canvas')].filter(each => !each.closest('[aria-label]'))"
    assert browser.value(f"{bare}.length") == 0
    named = browser.value("[...document.querySelectorAll('[role=img]')].map(each => each.getAttribute('aria-label'))")
    assert all(len(text) > 30 for text in named)
    assert browser.value("document.documentElement.lang") == "en"
    assert browser.value("document.querySelectorAll('h1').length") == 1


def test_the_keyboard_reaches_everything_that_scrolls_opens_or_zooms(browser: Browser, page: Path) -> None:
    browser.open(page, width=390)
    seen = set()
    for _ in range(200):
        browser.press("Tab")
        where = "document.activeElement"
        seen.add(browser.value(f"{where}.tagName + '.' + {where}.className"))
        if browser.value(f"{where} === document.body"):
            break
    assert {"A.skip", "DIV.scroll", "SUMMARY.", "CANVAS.", "BUTTON.", "A."} <= seen
    scrolling = "[...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth)"
    assert browser.value(f"{scrolling}.every(each => each.tabIndex === 0 && each.hasAttribute('aria-label'))")


def test_details_open_with_enter_and_the_skip_link_leads_to_the_figures(browser: Browser, page: Path) -> None:
    browser.open(page, width=1280)
    browser.press("Tab")
    browser.press("Enter")
    assert browser.value("location.hash") == "#main"
    browser.value("[...document.querySelectorAll('summary')].pop().focus()")
    browser.press("Enter")
    assert browser.value("[...document.querySelectorAll('details')].pop().open")
    assert browser.value("[...document.querySelectorAll('table')].pop().getBoundingClientRect().height") > 20


def test_the_timeline_zooms_by_keys_and_by_buttons(browser: Browser, page: Path) -> None:
    browser.open(page, width=1280)
    said = "document.querySelector('.zoom output').textContent"
    whole = browser.value(said)
    browser.value("document.querySelector('.zoom canvas').focus()")
    browser.press("+")
    browser.press("ArrowRight")
    assert browser.value(said) != whole
    browser.press("0")
    assert browser.value(said) == whole
    browser.value("document.querySelector('.zoom button').click()")
    assert browser.value(said) != whole
    assert browser.console == []


def test_a_script_that_got_into_the_page_does_not_run(browser: Browser, page: Path, tmp_path: Path) -> None:
    text = page.read_text().replace("</main>", "<script>document.title = 'taken'</script></main>")
    (tmp_path / "page.html").write_text(text)
    browser.open(tmp_path / "page.html", width=1280)
    assert browser.value("document.title") == "dflash report: run"
    assert len(browser.console) == 1 and "Content Security Policy" in browser.console[0]


def test_the_page_of_a_difference_is_sound_too(browser: Browser, page: Path, tmp_path: Path) -> None:
    slower = SECTIONS | {"timings": SECTIONS["timings"] | {"drafter": {"seconds": 2.5}}}
    before, after = load_given([page.parents[1] / "run", recorded_run(tmp_path / "slower", **slower)]).runs
    path = build_difference(before, after, tmp_path / "out")
    for width, dark in VIEWS:
        browser.open(path, width=width, dark=dark)
        assert browser.console == []
        assert browser.value(OVERFLOWING) == [] and browser.value(OVERLAPPING) == []


def test_long_names_of_runs_and_workers_wrap_at_both_widths(browser: Browser, tmp_path: Path) -> None:
    for name in ("n" * 180, "名前" * 40):
        folder = recorded_run(tmp_path / name, data={"batches": 12})
        summary = json.loads((folder / "summary.json").read_text())
        for worker in summary["workers"]:
            worker["name"] = f"target/{'w' * 200}/{worker['name']}"
        (folder / "summary.json").write_text(json.dumps(summary))
    runs = load_given([tmp_path / ("n" * 180), tmp_path / ("名前" * 40)])
    pages = [build(runs, tmp_path / "out", {}), build_difference(*runs.runs, tmp_path / "diff")]
    for path in pages:
        for width in (1280, 390):
            browser.open(path, width=width)
            assert browser.console == [] and browser.value(OVERFLOWING) == []
            assert browser.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
