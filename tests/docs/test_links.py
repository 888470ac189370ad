"""Links of the documentation lead to existing files and headings."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TOP = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES = [*TOP, *sorted(DOCS.rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())

    for link in (link for link in links if not link.startswith("http")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_readme_links_every_page_of_the_documentation() -> None:
    linked = set(re.findall(r"\]\(docs/([A-Za-z-]+\.md)", (ROOT / "README.md").read_text()))

    assert {page.name for page in DOCS.glob("*.md")} <= linked
