"""A report in a real browser: without a network, hovering tells the values behind a figure."""

from aaml.evaluation.evaluate import evaluate
from support.browser import needs_browser, opened

pytestmark = needs_browser
TIP = ".bk-tooltip-content"
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


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
        assert errors == []


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
