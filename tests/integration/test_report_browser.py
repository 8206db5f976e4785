"""A report in a real browser: without a network, hovering tells the values behind a figure."""

from aaml.evaluation.evaluate import evaluate
from aaml.evolve.front import Evaluated
from aaml.evolve.page import write_page
from aaml.evolve.settings import EvolveConfig
from support.browser import needs_browser, opened

pytestmark = needs_browser
TIP = ".bk-tooltip-content"
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

PLOTS = "Bokeh.documents.flatMap((each) => each.roots()).flatMap((root) => root.children)"


def test_a_report_opens_without_a_network_and_tells_what_is_pointed_at(tmp_path):
    evaluate(["kube-scheduler", "least-variance"], seeds=[1, 2], nodes=4, pods=40, progress=False).save(tmp_path / "e")
    with opened(tmp_path / "profile") as (page, errors):
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.context.set_offline(True)
        page.goto((tmp_path / "e" / "report.html").as_uri())
        means, differences = page.locator("figure canvas").first, page.locator("figure canvas").last
        assert _pointed_at(page, means, "least-variance")
        told = _pointed_at(page, differences, "least-variance")
        assert "difference from kube-scheduler" in told
        assert "seeds" in told
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
        assert _names(page) == ["11px", "0px"], "the left figure has them for both"
        page.set_viewport_size({"width": 420, "height": 900})
        page.wait_for_function(f"() => {PLOTS}.every((plot) => plot.inner_width === {PLOTS}[0].inner_width)")
        assert _names(page) == ["11px", "11px"], "one stands below the other"
        assert errors == []


def test_a_click_on_a_dot_of_a_front_shows_its_formula(tmp_path):
    front = [
        Evaluated("-pair.variance_rank", 0.0, (0.0, 0.1)),
        Evaluated("node.empty - pair.cpu_after", -0.5, (-0.5, -0.4)),
    ]
    write_page(EvolveConfig(), tmp_path, front, front)
    with opened(tmp_path / "profile") as (page, errors):
        page.goto((tmp_path / "report.html").as_uri())
        code = page.locator("#size-3")
        assert not code.is_visible()
        canvas = page.locator("figure canvas").first
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        at = _dot(page, box, "node.empty - pair.cpu_after")
        page.mouse.click(*at)
        code.wait_for(state="visible")
        assert "def balance(context)" in code.inner_text()
        assert page.url.endswith("#size-3")
        page.get_by_text("size 2: -pair.variance_rank").click()
        assert page.locator("#size-2").is_visible()
        assert errors == []


def _names(page):
    """Return the sizes of the names at the left of the two figures."""
    return page.evaluate(f"{PLOTS}.map((plot) => plot.left[0].major_label_text_font_size)")


def _dot(page, box, text):
    """Return where the mouse is on a dot in the lower right corner that tells this."""
    for below in range(47, 70, 4):
        for before in range(43, 66, 4):
            at = box["x"] + box["width"] - before, box["y"] + box["height"] - below
            page.mouse.move(*at)
            page.evaluate(DRAWN)
            if any(text in told for told in page.locator(TIP).all_inner_texts()):
                return at
    raise AssertionError(f"no dot tells {text}")


def _pointed_at(page, canvas, policy):
    """Move the mouse over a figure until it tells of a policy; returns what it tells."""
    canvas.scroll_into_view_if_needed()
    box, tips = canvas.bounding_box(), page.locator(TIP)
    for place in range(10, int(box["width"]), 9):
        page.mouse.move(box["x"] + place, box["y"] + 0.32 * box["height"])  # the upper row: the best policy
        page.evaluate(DRAWN)
        for told in tips.all_inner_texts():
            if policy in told:
                return told
    return ""
