"""The page in Chromium: each shows what it should, by mouse, keyboard and link, and runs nothing foreign."""

import asyncio
import queue
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from rocstar.engine.charts.drawing import Figure
from rocstar.engine.charts.row_chart import RowChart, row_chart
from rocstar.engine.types import Task
from rocstar.train.reading.view import change_events
from rocstar.train.reading.view.document import article_page
from rocstar.train.reading.view.export_page import export_page, report_page, write_eval_report
from rocstar.train.reading.view.reader import RunReader
from rocstar.train.reading.view.viewed_run import RunIndex
from rocstar.train.reading.view.web import PageServer

from ....needs import BROWSER, package
from ....patience import PATIENCE_S
from ...evaluation.eval_folders import MadeSet, make_folder
from .view_runs import (
    SIBLINGS,
    MadeSibling,
    groups_of,
    make_chart_run,
    make_forked_run,
    make_sick_run,
    make_view_run,
    write_step,
)

try:
    import axe_playwright_python
    from playwright.sync_api import Browser, Locator, Page, Route, expect, sync_playwright
except ModuleNotFoundError:
    pytest.skip(package("axe-playwright-python").reason, allow_module_level=True)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = BROWSER.unless(CHROMIUM is not None)

HOSTILE = "".join([
    "<script>globalThis.broken=1</script>",
    "<img src=x onerror='globalThis.broken=1'>",
    "<svg onload='globalThis.broken=1'>",
    "<a href='javascript:globalThis.broken=1'>go</a>",
    "</script><script>globalThis.broken=1</script>",
    "</pre></details></textarea></title></style><script>globalThis.broken=1</script>",
    "<iframe srcdoc='<script>parent.broken=1</script>'></iframe>",
    "<style>@import url(//evil.example/x.css)</style>",
    "<link rel=stylesheet href=//evil.example/y.css>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<base href=//evil.example/>",
    "<form action=//evil.example><input autofocus onfocus='globalThis.broken=1'></form>",
    "\" onmouseover=\"globalThis.broken=1\" x=\"",
    "' autofocus onfocus='globalThis.broken=1' x='",
    "{{constructor.constructor('globalThis.broken=1')()}}${globalThis.broken=1}`",
    "&lt;script&gt;globalThis.broken=1&lt;/script&gt;",
    "]]><!--<script>globalThis.broken=1</script>-->",
    "<math><mtext><script>globalThis.broken=1</script></mtext></math>",
    "‮txt.exe‬\x00\ud800\x1b]0;owned\x07",
    "\\u003cscript\\u003eglobalThis.broken=1\\u003c/script\\u003e",
])  # fmt: skip
"""Twenty payloads, which stand in every field of a run."""


INSTRUCTION = "End with <answer>\\boxed{}</answer>."
LARGE = 300_000
"""Lines of each text of the run `large`."""
INERT = "globalThis.broken === undefined && !document.querySelector('main script, main iframe, main img')"
MIN_TEXT_PX = 10.0
"""The smallest text of a drawing that a person still reads on a phone."""
TEXTS = """() => [...document.querySelectorAll("svg[viewBox]")]
  .filter((svg) => svg.getBoundingClientRect().width > 0)
  .flatMap((svg) => [...svg.querySelectorAll("text")].map((text) => {
    const around = svg.getBoundingClientRect(), box = text.getBoundingClientRect();
    const size = parseFloat(getComputedStyle(text).fontSize) * around.width / svg.viewBox.baseVal.width;
    return [size, Math.max(around.left - box.left, box.right - around.right)];
  }))"""
"""Size in pixels of each text of a drawing, and how far it reaches beyond."""


class ServedPage:
    """A server in a thread of its own, and a browser."""

    def __init__(self, *paths: Path) -> None:
        self._server = PageServer(RunReader(RunIndex(paths).runs, reveal=False))
        self._ports: queue.Queue[int] = queue.Queue()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._ports.get(timeout=PATIENCE_S)}/"

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await self._server.serve("127.0.0.1", 0, self._ports.put, self._stop)

    def end(self) -> None:
        assert self._loop is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an evaluation, one that grows, and one whose every text is hostile."""
    made = tmp_path_factory.mktemp("browser")
    make_view_run(made / "plain", steps=3)
    make_view_run(made / "growing", steps=1)
    make_view_run(made / "hostile", text=HOSTILE)
    make_sick_run(made / "sick")
    make_forked_run(made / "forked")
    make_forked_run(made / "forked hostile", text=HOSTILE)
    make_view_run(made / "other", steps=1)
    make_folder(made / "other" / "evaluations" / "step_1", MadeSet(name="puzzles", num=6, k=2), seed=2)
    instructed = Task(id="t", source="s", question=f"{INSTRUCTION} What is 0 + 0?", answer="0")
    write_step(made / "marked", 1, [(instructed, SIBLINGS)])
    large = MadeSibling(correct=False, calls=1, errors=1)
    write_step(made / "large", 1, [(replace(instructed, id="u"), (large,))], text="\u202e\x1b[31m" + "a\n" * LARGE)
    make_chart_run(made / "charts")
    for step in (1, 2):
        make_folder(made / "plain" / "evaluations" / f"step_{step}", MadeSet(name="puzzles", num=6, k=2))
    make_folder(made / "hostile" / "evaluations" / "step_1", MadeSet(name="set", num=3, k=2, text=HOSTILE))
    return made


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[ServedPage]:
    page = ServedPage(folder)
    yield page
    page.end()


@pytest.fixture(scope="module")
def browser(served: ServedPage, reports: dict[str, Path]) -> Iterator[Browser]:
    """Started last: its driver has an event loop of its own in this thread."""
    with sync_playwright() as playwright:
        # Without its sandbox, which root cannot have: the page is ours.
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser, served: ServedPage) -> Iterator[Page]:
    """A new page that fails the test for an error of a script, or a request to anywhere else."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith((served.address, "data:")) else wrong.append(request.url),
    )
    page.on("console", lambda told: wrong.append(told.text) if told.type == "error" else None)
    page.set_default_timeout(30_000)
    yield page
    context.close()
    assert not wrong


def go(page: Page, place: str) -> None:
    """To another place of the page, without loading its modules again."""
    page.evaluate("(hash) => { document.querySelector('main').replaceChildren(); location.hash = hash; }", place)
    page.wait_for_selector("main:not([aria-busy]) h1")


def test_from_the_list_of_runs_to_a_token(page: Page, served: ServedPage) -> None:
    page.goto(served.address)
    page.get_by_role("link", name="plain", exact=True).click()
    expect(page.locator(".charts figure").first).to_be_visible()
    page.keyboard.press("t")
    expect(page.locator("#counts")).to_contain_text("36 of 36")
    page.locator("#filter").fill("gcd kept")
    page.keyboard.press("Enter")
    expect(page.locator("#counts")).to_contain_text("12 of 36")
    row = page.locator(".rows .row").first
    expect(row.locator(".of-question")).to_have_text("gcd of 84 and 36? #0")
    assert row.locator(".of-question a").get_attribute("title") == "gcd of 84 and 36?"
    assert [row.locator(f".of-{name}").inner_text() for name in ("family", "expected", "given")] == [
        *("gcd", "12", "0")
    ]
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("main:not([aria-busy]) .turn")
    expect(page.locator("h1")).to_have_text("gcd of 84 and 36?")
    expect(page.locator(".outcome")).to_contain_text("expected 12given 0")
    expect(page.locator(".call .result").first).to_be_visible()
    expect(page.locator(".call .result").first).to_have_text("result 0")
    expect(page.locator("code.replay").first).to_contain_text("rocstar replay")
    page.keyboard.press("c")
    page.locator(".tok.policy").first.click()
    expect(page.locator("#token")).to_contain_text(
        re.compile(r"policy, log-prob -0\.\d+, .*advantage \+0\.30, carries loss.*; learner: log-prob -?0\.\d+")
    )
    expect(page.locator("#token")).to_contain_text("ratio 1.649, clipped, advantage above 0, entropy 1.0")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#token")).to_contain_text("token 5: ")
    here = page.url
    page.reload()
    expect(page.locator("#token")).to_contain_text("token 5: ")
    assert page.url == here, "an address is a page"
    page.keyboard.press("n")
    expect(page.locator(".above")).to_contain_text("sibling 1")
    page.keyboard.press("c")
    page.wait_for_selector("main:not([aria-busy]) [data-turn='2']")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert "turn=2" in page.url


def test_a_group_says_why_and_its_sums_are_the_ledgers(page: Page, served: ServedPage) -> None:
    page.goto(served.address + "#/list?run=plain&filter=gcd step=2")
    page.locator(".rows .row a").first.click()
    page.wait_for_selector("main:not([aria-busy]) .turn")
    page.keyboard.press("g")
    expect(page.locator("#ledger")).to_have_text("The sums of the rows equal metrics.jsonl.")
    expect(page.locator("h1")).to_have_text("gcd of 84 and 36?")
    assert page.locator("tr[data-sibling]").count() == 6
    expect(page.locator("tr.dropped_positive .why").first).to_contain_text(
        re.compile(r"2 of 3 correct siblings were drawn; this one has weight \d+\.\d+ of \d+\.\d+")
    )
    expect(page.locator("tr.inside")).to_contain_text("Call 0.")  # of the trajectory that led here
    page.get_by_role("button", name="read sibling 1", exact=True).click()
    expect(page.locator("tr.inside")).to_have_count(2)
    for sibling in (3, 0, 2):
        page.get_by_label(f"sibling {sibling} side by side").check()
    expect(page.locator("#reader .pair > div")).to_have_count(2)
    here = page.url
    assert "beside=0%2C2" in here and "open=0%2C1" in here
    page.reload()
    expect(page.locator("#reader .pair > div").first).to_contain_text("Call 0.")
    expect(page.locator("tr.inside")).to_have_count(2)
    assert page.url == here, "an address shows the same siblings"
    page.get_by_role("link", name="this task over the steps").click()
    expect(page.get_by_role("link", name="step 3")).to_be_visible()


def test_a_token_is_shaded_by_what_the_learner_made_of_it(page: Page, served: ServedPage) -> None:
    page.goto(served.address + "#/list?run=plain&filter=kept")
    page.locator(".rows .row a").first.click()
    page.wait_for_selector("main:not([aria-busy]) .turn")
    page.keyboard.press("c")
    choice = page.get_by_label("shade of the tokens")
    expect(page.locator("#about")).to_contain_text("right to half a percent")
    for value, number in (("clip", 3), ("gap", 4), ("ratio", 3), ("entropy", 8)):
        choice.select_option(value)
        expect(page.locator(".of-policy").first.locator(".tok.policy[style]")).not_to_have_count(0)
        shaded = page.evaluate(
            "[...document.querySelectorAll('.tok.policy')].slice(0, 8)"
            ".filter((token) => token.style.background).length"
        )
        assert shaded == number, value
        assert page.locator("canvas.strip").get_attribute("data-painted") == value
    page.goto(served.address + "#/list?run=plain&filter=-kept -failed")
    page.locator(".rows .row a").first.click()
    page.wait_for_selector("main:not([aria-busy]) .turn")
    page.keyboard.press("c")
    expect(page.locator("#about")).to_contain_text("did not use this trajectory")
    expect(page.locator("option[value=clip]")).to_be_disabled()


def test_turns_and_calls_have_their_times(page: Page, served: ServedPage) -> None:
    page.goto(served.address + "#/trajectory?run=plain&file=step_000002&row=0")
    expect(page.locator("[data-turn='1'] .who").first).to_contain_text("turn 1: policy · 1.0 s")
    expect(page.locator("[data-turn='1'] .callhead")).to_contain_text("500 ms")


def test_a_turn_shows_the_command_that_begins_before_it(page: Page, served: ServedPage) -> None:
    page.goto(served.address + "#/trajectory?run=plain&file=step_000001&row=0")
    expect(page.locator("#try")).to_have_text(re.compile(r"rocstar chat MODEL --from \S+/step_000001\.columns:0"))
    page.get_by_label("try turn 2 again").click()
    expect(page.locator("[data-turn='2'] .who .replay")).to_have_text(re.compile(r"step_000001\.columns:0@2$"))


def test_a_run_says_what_stands_and_which_families_it_has(page: Page, served: ServedPage) -> None:
    page.goto(served.address + "#/run?run=sick")
    page.get_by_role("link", name="1 active alarm").click()
    expect(page.locator("#alarms .alarm")).to_contain_text("truncation")
    page.locator("#alarms .alarm a").first.click()
    page.wait_for_selector("main:not([aria-busy]) .turn")
    page.locator("main summary", has_text="facts").click()
    expect(page.locator("dl.facts")).to_contain_text("max tokens")
    page.goto(served.address + "#/run?run=growing&tab=alarms")
    expect(page.locator("#alarms")).to_contain_text("No active alarms")
    page.goto(served.address + "#/run?run=plain&tab=alarms")
    expect(page.locator("#alarms")).to_contain_text("failures, steps 2 to 3")
    page.get_by_role("link", name="Families").click()
    page.get_by_role("link", name="sum", exact=True).click()
    expect(page.locator("#counts")).to_contain_text("9 of 36")


COLOR_OF = """(element) => {
    const named = document.createElement("span");
    named.className = element.dataset.expected;
    document.querySelector("main").append(named);
    const equal = getComputedStyle(element).color === getComputedStyle(named).color;
    named.remove();
    return equal;
}"""


@pytest.mark.parametrize(("sibling", "style"), [(0, "good"), (3, "bad"), (5, "quiet")])
def test_the_answer_has_the_colour_of_its_verdict_and_the_prompt_has_none(
    page: Page, served: ServedPage, sibling: int, style: str
) -> None:
    page.goto(f"{served.address}#/trajectory?run=marked&file=step_000001&row={sibling}")
    page.locator("summary", has_text="prompt").click()
    expect(page.locator(".folds pre").first).to_contain_text("<answer>")
    mark = page.locator("main mark")
    expect(mark).to_have_count(1)
    assert mark.inner_text() == f"<answer>{sibling}</answer>"
    mark.evaluate("(element, style) => { element.dataset.expected = style; }", style)
    assert mark.evaluate(COLOR_OF)


def test_a_large_output_is_cut_and_shown_on_request(page: Page, served: ServedPage) -> None:
    page.goto(f"{served.address}#/trajectory?run=large&file=step_000001&row=0")
    result = page.locator(".call .result")
    expect(result).to_have_count(2)
    assert page.evaluate("document.documentElement.outerHTML.length") < 100_000
    more = page.locator(".call .more").last
    expect(more).to_have_text(f"{LARGE - 38:,} more lines")
    more.press("Enter")
    expect(more).to_be_focused()
    assert len(result.last.text_content() or "") > 2 * LARGE - 2
    more.press("Enter")
    expect(result).to_have_count(2)
    page.goto(f"{served.address}#/list?run=large")
    expect(page.locator(".rows .row .of-question")).to_contain_text("What is 0 + 0?")
    assert page.evaluate("document.documentElement.outerHTML.length") < 100_000


def test_questions_about_a_run_take_three_clicks(page: Page, served: ServedPage) -> None:
    def run_page() -> None:
        page.goto("about:blank")
        page.goto(served.address + "#/run?run=plain")
        page.wait_for_selector("main:not([aria-busy]) h1")

    run_page()  # a wrong answer after a tool error
    page.get_by_role("link", name="Trajectories", exact=True).click()
    page.get_by_role("button", name="wrong, with a tool error").click()
    page.locator(".rows .row .q").first.click()
    expect(page.locator(".outcome")).to_contain_text("wrong")
    error = page.locator(".call.error pre.result")
    expect(error).to_be_in_viewport()
    error.evaluate("(element) => { element.dataset.expected = 'bad'; }")
    assert error.evaluate(COLOR_OF)

    run_page()  # the reason why a correct sibling was dropped
    page.get_by_role("link", name="Trajectories", exact=True).click()
    page.get_by_role("button", name="dropped (correct)").click()
    page.locator(".rows .row .of-decision a").first.click()
    opened = page.locator("tr.dropped_positive:has(+ tr.inside)")
    expect(opened).to_contain_text("2 of 3 correct siblings were drawn; this one has weight")

    run_page()  # the answers of two runs to one question
    page.get_by_role("link", name="Evaluations", exact=True).click()
    page.get_by_label("compare with").select_option("other:1")
    page.get_by_role("button", name="compare").click()
    question = page.locator(".question").first
    expect(question).to_contain_text(re.compile(r"Question \d of puzzles.*expected"))
    expect(question.locator(".side code.answer")).not_to_have_count(0)
    hrefs = [link.get_attribute("href") or "" for link in question.locator(".cells a").all()]
    assert ["run=plain" in href for href in hrefs] == [False] * 2 + [True] * 2


@pytest.mark.parametrize("only", ["never", "always"])
def test_questions_are_filtered_by_how_often_they_are_solved(page: Page, served: ServedPage, only: str) -> None:
    page.goto(f"{served.address}#/evaluation?run=plain&only={only}")
    expect(page.locator(".quick button.on")).to_contain_text(only)
    cells = page.locator(".question .cells")
    for one in cells.all():
        assert one.locator(".k").count() == (2 if only == "always" else 0)
    page.get_by_role("button", name="all", exact=False).first.click()
    expect(cells).to_have_count(6)
    page.get_by_role("searchbox").fill("question 3 of")
    expect(cells).to_have_count(1)
    assert "only=all&find=question" in page.url


def test_a_search_shows_where_the_text_stands(page: Page, served: ServedPage) -> None:
    page.goto(served.address + "#/list?run=plain&text=result 1")
    expect(page.locator("#hits")).to_contain_text("6 hits of “result 1” in 36 of 36")
    assert page.locator("#hits b").all_inner_texts() == ["result 1"] * 6


def test_evaluations_are_a_forest_a_grid_and_a_pair(page: Page, served: ServedPage) -> None:
    page.goto(served.address + "#/evaluation?run=plain")
    expect(page.locator("figure svg").first).to_be_visible()
    expect(page.locator(".cells a")).to_have_count(12)
    page.get_by_role("button", name="compare").click()
    expect(page.locator("h1")).to_contain_text("Compared")
    expect(page.locator(".question").first.locator(".side")).to_have_count(2)
    page.go_back()
    page.locator(".cells a").first.click()
    expect(page.locator("h1")).to_contain_text("Question")


def test_a_new_step_appears_by_itself(page: Page, served: ServedPage, folder: Path) -> None:
    page.goto(served.address + "#/list?run=growing")
    expect(page.locator("#counts")).to_contain_text("12 of 12 in 1 file")
    write_step(folder / "growing", 2, groups_of())
    expect(page.locator("#counts")).to_contain_text("24 of 24 in 2 files")


def test_chosen_trajectories_are_one_file_that_opens_alone(
    page: Page, served: ServedPage, browser: Browser, tmp_path: Path
) -> None:
    page.goto(served.address + "#/list?run=plain&filter=gcd")
    page.locator(".rows .row a").first.wait_for()
    for key in ("j", "x", "j", "x"):
        page.keyboard.press(key)
    with page.expect_download() as download:
        page.get_by_role("link", name="export 2 as one HTML file").click()
    path = tmp_path / "export.html"
    download.value.save_as(path)
    with opened_alone(browser, path) as alone:
        expect(alone.locator(".rows .row .q")).to_have_count(2)
        expect(alone.locator("#bar")).to_contain_text("exported 20")
        assert not alone.locator("form, .heading button").count(), "nothing asks a server"
        alone.keyboard.press("j")
        alone.keyboard.press("Enter")
        expect(alone.locator("h1")).to_contain_text("gcd of 84 and 36?")
        alone.keyboard.press("c")
        alone.locator(".tok.policy").first.click()
        expect(alone.locator("#token")).to_contain_text("carries loss")
        expect(alone.locator("canvas[data-painted]")).to_be_visible()
        alone.keyboard.press("g")
        expect(alone.locator("#ledger")).to_have_text("The sums of the rows equal metrics.jsonl.")
        alone.keyboard.press("o")
        expect(alone.locator(".charts figure").first).to_be_visible()
        alone.keyboard.press("e")
        expect(alone.locator(".cells span")).to_have_count(12)
        assert not alone.locator(".cells a").count(), "the file has none of these attempts"


@contextmanager
def opened_alone(browser: Browser, path: Path) -> Iterator[Page]:
    """A file from the disk, which asks for nothing and has no error."""
    alone, wrong = browser.new_page(), []
    alone.on("request", lambda request: None if request.url == path.as_uri() else wrong.append(request.url))
    alone.on("pageerror", lambda error: wrong.append(str(error)))
    alone.on("console", lambda told: wrong.append(told.text) if told.type == "error" else None)
    alone.goto(path.as_uri())
    yield alone
    alone.close()
    assert not [one for one in wrong if not one.startswith("data:")]


@pytest.fixture(scope="module")
def reports(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each kind of file: of harmless and of hostile texts."""
    out, found = tmp_path_factory.mktemp("reports"), {}
    for kind, run, text in (("", "plain", "plain"), ("hostile ", "hostile", HOSTILE)):
        reader = RunReader(RunIndex([folder / run]).runs, reveal=False)
        evaluation = make_folder(out / run, MadeSet(name="set", num=3, k=2, text=text))
        figure = Figure(partial(row_chart, RowChart(title=text, rows=[], ticks={0: "0", 1: "1"})), text)
        sections = [
            {"heading": text, "facts": [[text, text]], "notes": [text], "list": [text]},
            {"figures": [figure.as_json()], "table": {"head": [text, text], "rows": [[text, [[text, text]]]]}},
            {
                "texts": [
                    {"title": text, "chip": text, "blocks": [["policy", [[text, 1, 0.5]]], ["tool", [[text, 0, 0]]]]}
                ]
            },
        ]
        pages = {
            "run": report_page(folder / run),
            "evaluation": write_eval_report(evaluation).read_text(),
            "article": article_page(text, sections),
            "export": export_page(reader, run, "steps", reader.sample(run, "steps", 2), made="now", start="list"),
        }
        for name, page in pages.items():
            found[kind + name] = out / f"{kind}{name}.html"
            found[kind + name].write_text(page, encoding="utf-8")
    return found


def test_a_report_leads_to_tokens_and_groups(browser: Browser, reports: dict[str, Path]) -> None:
    with opened_alone(browser, reports["run"]) as alone:
        alone.get_by_role("link", name="to the content").press("Enter")
        expect(alone.locator("#main")).to_be_focused()
        alone.locator(".charts .chart svg.rc").first.hover()
        expect(alone.locator(".tip")).to_contain_text("step")
        alone.get_by_role("link", name="Metrics").click()
        alone.get_by_label("search metrics").fill("mean reward")
        expect(alone.get_by_role("button", name="reward/mean")).to_be_visible()
        alone.get_by_role("link", name="Overview").click()
        alone.get_by_role("link", name="gcd of 84 and 36? #").first.click()
        expect(alone.locator("h1")).to_contain_text("gcd of 84 and 36?")
        expect(alone.get_by_role("link", name="over the steps")).to_have_count(0)
        alone.keyboard.press("c")
        expect(alone.locator("canvas[data-painted]")).to_be_visible()
        alone.keyboard.press("g")
        expect(alone.locator("#ledger")).to_have_text("The sums of the rows equal metrics.jsonl.")
        alone.get_by_role("link", name="plain", exact=True).click()
        expect(alone.locator(".charts figure").first).to_be_visible()
        alone.keyboard.press("t")
        expect(alone.locator(".rows .row .q")).to_have_count(10)
        alone.keyboard.press("e")
        expect(alone.locator(".cells .kept").first).to_have_count(0)
        expect(alone.locator(".cells span").first).to_be_visible()


def test_a_report_of_an_evaluation_leads_to_its_attempts(browser: Browser, reports: dict[str, Path]) -> None:
    with opened_alone(browser, reports["evaluation"]) as alone:
        expect(alone.locator("h1")).to_contain_text("models/tiny-135m")
        expect(alone.locator(".cells a.kept")).not_to_have_count(0)
        expect(alone.locator(".question")).to_have_count(3)
        alone.locator(".cells a.kept").first.click()
        expect(alone.locator("h1")).to_contain_text("Question 0 of set")
        alone.go_back()
        alone.get_by_role("link", name="attempts to read").click()
        expect(alone.locator(".rows .row a").first).to_be_visible()


@pytest.mark.parametrize("name", ["run", "evaluation", "article", "export"])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_a_file_fits_and_axe_finds_nothing(
    browser: Browser, reports: dict[str, Path], name: str, width: int, scheme: Literal["dark", "light"]
) -> None:
    axe = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()
    with opened_alone(browser, reports[name]) as alone:
        alone.set_viewport_size({"width": width, "height": 844})
        alone.emulate_media(color_scheme=scheme)
        alone.wait_for_selector("main:not([aria-busy]) h1")
        for fold in alone.locator("details").all():
            fold.evaluate("(fold) => { fold.open = true; }")
        assert alone.evaluate("document.documentElement.scrollWidth") <= width
        assert all(size >= 0.99 * MIN_TEXT_PX and out <= 1 for size, out in alone.evaluate(TEXTS))
        told = alone.evaluate(f"{axe}; axe.run().then((told) => told.violations)")
        assert not [one["id"] for one in told]


@pytest.mark.parametrize("name", ["run", "evaluation", "article", "export"])
def test_a_file_runs_nothing_foreign(browser: Browser, reports: dict[str, Path], name: str) -> None:
    with opened_alone(browser, reports[f"hostile {name}"]) as alone:
        alone.wait_for_selector("main:not([aria-busy]) h1")
        for fold in alone.locator("details").all():
            fold.evaluate("(fold) => { fold.open = true; }")
        if name in ("evaluation", "article"):
            expect(alone.locator("main")).to_contain_text("<script>globalThis.broken=1</script>")
        assert alone.evaluate(INERT)
        if (link := alone.locator("main table a, main .kept, main .row a").first).count():
            link.click()
            expect(alone.locator(".turn").last).to_contain_text("<script>globalThis.broken=1</script>")
            assert alone.evaluate(INERT)


@pytest.mark.parametrize("name", ["run", "evaluation", "article", "export"])
def test_a_table_is_read_without_a_script(browser: Browser, reports: dict[str, Path], name: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    for kind in (name, f"hostile {name}"):
        page = context.new_page()
        page.goto(reports[kind].as_uri())
        expect(page.locator("main table tr").nth(1)).to_be_visible()
        assert page.locator("main table *:not(tr, td, th, tbody)").count() == 0
    context.close()


UPDATES, COLLECTIONS = 16, 6


def test_a_tab_does_not_grow_with_updates(
    page: Page, served: ServedPage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as large after many as after a few: nodes, listeners, and what its scripts hold."""
    monkeypatch.setattr(change_events, "PERIOD_S", 0.01)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    metrics = folder / "plain" / "metrics.jsonl"
    rows = metrics.read_bytes()

    def held() -> tuple[float, ...]:
        session.send("HeapProfiler.collectGarbage")
        measured = session.send("Performance.getMetrics")["metrics"]
        found = {one["name"]: one["value"] for one in measured}
        return tuple(found[name] for name in ("Nodes", "JSEventListeners", "JSHeapUsedSize"))

    for place in ("#/run?run=plain", "#/list?run=plain", "#/"):
        page.goto("about:blank")
        page.goto(served.address + place)
        page.wait_for_selector("main:not([aria-busy]) h1")
        few: tuple[float, ...] = ()
        for number in range(UPDATES):
            shown = page.get_attribute("main", "data-updates")
            written = folder.with_suffix(".metrics")
            written.write_bytes(rows + b" " * (number % 2))
            written.replace(metrics)  # whole: a page of half a file has other elements
            page.wait_for_selector(f"main:not([data-updates='{shown}'])")
            if number == 3:
                few = min(held() for _ in range(COLLECTIONS))
        # What was dropped may take more than one collection to go; what is held stays after all of them.
        many = [held() for _ in range(COLLECTIONS)]
        assert min(nodes for nodes, _, _ in many) <= few[0] + 8, (place, few, many)
        assert min(listeners for _, listeners, _ in many) <= few[1] + 4, (place, few, many)
        assert min(heap for _, _, heap in many) <= 1.1 * few[2], (place, few, many)
    metrics.write_bytes(rows)


def test_what_is_hostile_in_every_field_does_nothing(page: Page, served: ServedPage) -> None:
    """The page of each kind is opened, all that folds is unfolded, and all that can be pointed at is."""
    run = "#/{page}?run=hostile"
    page.goto(served.address + run.format(page="list"))
    trajectory = page.locator(".rows .row .q").first.get_attribute("href") or ""
    group = page.locator(".rows .row .of-decision a").first.get_attribute("href") or ""
    places = [run.format(page=name) for name in ("run", "list", "evaluation")]
    places += ["#/paired?a=hostile:1&b=hostile:1", group + "&beside=0,1", group.replace("group", "task")]
    places += ["#/", trajectory, trajectory + "&tab=tokens"]
    places += [
        run.format(page="list") + "&text=script",
        run.format(page="list") + "&text=<img src=x onerror=broken=1>",
    ]
    for place in places:
        go(page, place)
        for key in ("f", "j", "g"):
            page.keyboard.press(key)
        page.wait_for_selector("main:not([aria-busy])")
        assert page.evaluate("globalThis.broken === undefined && !document.querySelector('main script, main iframe')")
    expect(page.locator("#hits, table.group").first).to_be_visible()
    go(page, trajectory)
    expect(page.locator(".turn").last).to_contain_text("<script>globalThis.broken=1</script>")


@pytest.mark.parametrize(
    ("run", "width", "scheme"), [("forked", 1280, "light"), ("forked", 390, "dark"), ("forked hostile", 390, "dark")]
)
def test_branches_stand_below_their_parents_and_lead_there_and_back(
    page: Page, served: ServedPage, run: str, width: int, scheme: Literal["dark", "light"]
) -> None:
    def fits() -> bool:
        return bool(page.evaluate(f"document.documentElement.scrollWidth <= {width} && {INERT}"))

    def facts() -> str:
        return " ".join(page.locator("dl.facts dd").all_text_contents())

    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{served.address}#/list?run={run}")
    page.locator(".rows .row .of-decision a").first.click()
    rows = page.locator("tr[data-sibling]")
    expect(rows.locator(".which a")).to_have_text(["#0", "↳ #0~1.1", "↳ ↳ #0~1.1/2.1", "#1"])
    assert fits()
    rows.nth(2).get_by_role("button").click()
    rows.nth(0).get_by_role("checkbox").check()
    rows.nth(1).get_by_role("checkbox").check()
    expect(page.locator(".pair .turn").first).to_be_visible()
    assert fits()
    rows.locator(".which a").nth(2).click()
    own = {}
    for attempt, parent in (("0~1.1/2.1", "0~1.1"), ("0~1.1", "0"), ("0", "")):
        expect(page.locator(".above")).to_contain_text(re.compile(f"sibling {re.escape(attempt)}(,|$)"))
        expect(page.locator(".turn").last).to_be_visible()
        own[attempt] = facts()
        assert fits()
        if parent:
            page.locator(".above").get_by_role("link", name=parent, exact=True).click()
    assert [re.findall(r"(\d+), of these (\d+) by the policy", told) for told in own.values()] == [
        [("8", "1")],
        [("8", "3")],
        [("8", "5")],
    ], "of 15 tokens of the policy, the nine that were sampled are counted"
    expect(page.locator(".above")).not_to_contain_text("continues")
    page.get_by_role("link", name="sibling 0~1.1: correct", exact=True).click()
    expect(page.locator(".above")).to_contain_text("continues 0 from turn 1")


def test_a_phone_shows_how_a_call_with_a_long_name_went(page: Page, served: ServedPage) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(served.address + "#/trajectory?run=plain&file=step_000001&row=0")
    page.locator(".callhead b").first.evaluate(
        "(element) => { element.textContent = 'python_code_with_standard_io_and_much_more_than_that'; }"
    )
    fits = """(head) => [...head.querySelectorAll('.chip, .took, button')].map((one) =>
        one.scrollWidth <= one.offsetWidth
        && one.getBoundingClientRect().right <= head.getBoundingClientRect().right)"""
    assert page.locator(".callhead").first.evaluate(fits) == [True] * 4


PAGES = (
    "#/",
    "#/run?run=plain",
    *(f"#/run?run=plain&tab={tab}" for tab in ("metrics", "alarms", "time", "groups", "families", "recipe", "log")),
    "#/list?run=plain&text=result",
    "#/evaluation?run=plain",
    "#/overlay?run=plain&run=growing",
    "#/trajectory?run=plain&file=step_000001&row=0",
    "#/trajectory?run=plain&file=step_000001&row=0&tab=tokens",
    "#/paired?a=plain:1&b=plain:2",
    "#/run?run=sick",
    "#/group?run=plain&step=1&task={task}",
    "#/task?run=plain&task={task}",
)


CURVE = "path => path.getAttribute('d')"


def chart_of(page: Page, title: str) -> Locator:
    return page.locator("figure.chart").filter(has=page.get_by_role("heading", name=title, exact=False)).first


def test_a_chart_shows_exact_numbers_smooths_all_runs_alike_and_zooms(page: Page, served: ServedPage) -> None:
    page.goto(served.address + "#/run?run=charts")
    reward = chart_of(page, "Reward")
    expect(reward.locator(".keys")).to_contain_text("training 0.41")
    svg = reward.locator("svg.rc")
    svg.focus()
    page.keyboard.press("End")
    expect(reward.locator(".tip")).to_have_text("step 30training 0.4123457")
    page.keyboard.press("ArrowLeft")
    expect(reward.locator(".tip")).to_contain_text("step 29")
    assert reward.locator(".curve").evaluate(CURVE).count("M") == 2, "a gap breaks the line"
    short, long = (chart_of(page, name).locator(".curve") for name in ("SFT loss", "Reward"))
    smooth = [curve.evaluate(CURVE) for curve in (short, long)]
    page.get_by_label("smoothing").fill("0")
    raw = [curve.evaluate(CURVE) for curve in (short, long)]
    assert all(a != b for a, b in zip(smooth, raw, strict=True)), "two points are smoothed as thirty are"
    assert raw[0].count(",") == 2
    box = svg.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=3)
    page.mouse.up()
    reset = reward.get_by_role("button", name="show all steps")
    expect(reset).to_be_visible()
    expect(svg).not_to_contain_text("30")
    reward.get_by_role("button", name="logarithmic").click()
    expect(reward.get_by_role("button", name="logarithmic")).to_have_attribute("aria-pressed", "true")
    reset.click()
    expect(reset).to_be_hidden()
    with page.expect_download() as download:
        reward.get_by_role("button", name="save").click()
    assert "var(" not in download.value.path().read_text() and download.value.suggested_filename == "reward.svg"


def test_a_route_change_leaves_nothing_behind(page: Page, served: ServedPage) -> None:
    """No tooltip, no dialog, no element beside the page, no listener and no node that outlives its page."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    page.goto(served.address)
    told = page.evaluate("fetch('/api/list?run=plain&filter=gcd&num=1').then((answer) => answer.json())")
    beside = "[...document.body.children].map((one) => one.tagName + one.id).join()"
    clean = page.evaluate(beside)

    def held() -> list[float]:
        session.send("HeapProfiler.collectGarbage")
        found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        return [found["JSEventListeners"], found["Nodes"]]

    def tour() -> list[float]:
        for number, name in enumerate((*PAGES, "#/run?run=plain")):
            page.evaluate("(hash) => { location.hash = hash; }", name.format(task=told["rows"][0]["task"]))
            # A locator: an element that wait_for_selector returns would hold the whole page.
            page.locator("main:not([aria-busy]) h1").first.wait_for()
            for curve in page.locator("figure.chart svg.rc").all()[:2]:
                curve.hover()
                expect(page.locator(".tip")).to_have_count(1)
            if number % 2 == 0:  # it ends a hover, so that the tooltip is left at the other pages
                page.keyboard.press("?")
                expect(page.locator("dialog")).to_be_visible()
        page.evaluate("location.hash = '#/nothing'")
        expect(page.locator("h1")).to_have_text("There is no such page")
        assert page.locator(".tip, dialog").count() == 0
        assert page.evaluate(beside) == clean
        return [min(counts) for counts in zip(*(held() for _ in range(COLLECTIONS)), strict=True)]

    first = tour()
    assert all(after <= before + 4 for before, after in zip(first, tour(), strict=True))


def test_runs_are_sorted_filtered_tagged_and_compared(page: Page, served: ServedPage) -> None:
    page.goto(served.address)
    names = page.locator("table.runs").first.locator("tbody td.c-name")
    page.get_by_role("button", name="sort training by steps").click()
    expect(names.first).to_have_text("charts")
    page.get_by_role("button", name="sort training by steps").click()
    expect(names.first).not_to_have_text("charts")
    page.get_by_label("add a tag to plain").fill("baseline")
    page.keyboard.press("Enter")
    page.get_by_label("filter runs").fill("baseline")
    expect(names).to_have_text(["plain"])
    page.reload()
    expect(page.get_by_label("filter runs")).to_have_value("baseline")
    expect(names).to_have_text(["plain"])
    page.get_by_label("filter runs").fill("")
    for name in ("plain", "charts"):
        page.get_by_label(f"choose {name}").check()
    page.get_by_role("button", name="delete").click()
    expect(page.get_by_role("dialog")).to_contain_text(re.compile(r"rm -r -- '\S+/(plain|charts)' '\S+'"))
    page.get_by_role("button", name="close").click()
    page.get_by_role("button", name="compare 2 runs").click()
    expect(page.locator("h1")).to_have_text("Comparison of 2 runs")
    expect(page.locator("#bar")).to_contain_text("plain")
    expect(chart_of(page, "Reward").locator(".key")).to_have_count(2)
    page.locator("main").get_by_role("link", name="charts", exact=True).click()
    expect(page.locator("h1")).to_contain_text("charts")


def test_the_learning_rate_and_the_console_are_two_clicks_from_the_run(page: Page, served: ServedPage) -> None:
    page.goto(served.address + "#/run?run=charts")
    page.get_by_role("link", name="recipe charts").click()
    page.get_by_label("search fields").fill("rl.lr")
    expect(page.get_by_role("region", name="fields of the recipe")).to_contain_text("rl.lr0.5")
    expect(page.get_by_role("region", name="differences")).to_contain_text("rl.lr0.5")
    page.keyboard.press("Escape")
    page.keyboard.press("3")
    expect(page).to_have_url(re.compile("tab=alarms"))
    page.get_by_role("link", name="Console").click()
    page.get_by_label("search the console").fill("ended")
    expect(page.locator(".log")).to_have_text(re.compile("ended: interrupted"))
    expect(page.locator("#reason")).to_have_text("Stopped: interrupted")


def test_the_page_works_below_a_path_prefix(browser: Browser, served: ServedPage) -> None:
    """As a proxy serves it."""
    page, wrong = browser.new_page(), []
    page.on("requestfailed", lambda request: wrong.append(request.url))
    page.on("response", lambda response: wrong.append(response.url) if response.status >= 400 else None)

    def forward(route: Route) -> None:
        if not route.request.url.startswith(served.address + "x/y/"):
            return route.abort()
        if route.request.url.endswith("/events"):
            return route.fulfill(body=": open\n\n", content_type="text/event-stream")
        return route.fulfill(response=route.fetch(url=route.request.url.replace("/x/y/", "/", 1)))

    page.route("**/*", forward)
    page.goto(served.address + "x/y/#/run?run=plain")
    expect(page.locator("figure.chart").first).to_be_visible()
    page.get_by_role("link", name="trajectories", exact=True).click()
    expect(page.locator("#counts")).to_contain_text("36 of 36")
    page.get_by_role("link", name="Runs").click()
    expect(page.locator("table.runs").first).to_be_visible()
    page.close()
    assert not wrong


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (400, "light")])
def test_every_page_fits_and_axe_finds_nothing(
    page: Page, served: ServedPage, width: int, scheme: Literal["dark", "light"]
) -> None:
    axe = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    page.goto(served.address)
    page.evaluate(axe)
    told = page.evaluate("fetch('/api/list?run=plain&filter=gcd&num=1').then((answer) => answer.json())")
    found = {}
    for name in PAGES:
        place = name.format(task=told["rows"][0]["task"])
        go(page, place)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        violations = page.evaluate("axe.run().then((told) => told.violations)")
        found[place] = [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in violations]
    assert not any(found.values()), found
