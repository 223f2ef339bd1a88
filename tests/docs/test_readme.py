"""The Python blocks of the pages that a newcomer follows run as they stand, in their order, in one namespace."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/quickstart.md",
    "docs/concepts.md",
    "docs/consuming.md",
    "docs/publishing.md",
    "docs/retries.md",
    "docs/transactions.md",
)
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[int, str]]:
    """Return the line number and the text of each Python block of a page."""
    text = (ROOT / page).read_text("utf-8")
    return [(text.count("\n", 0, found.start(1)), found[1]) for found in _BLOCK.finditer(text)]


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks__run_in_their_order__do_what_the_page_says(page, dsn, monkeypatch):
    monkeypatch.setenv("COORDINATOR_DSN", dsn)
    monkeypatch.delenv("COORDINATOR_SCHEMA", raising=False)
    found = blocks(page)
    assert found, f"{page} has no Python blocks"
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, text in found:
        # The newlines before it make a traceback show the line of the page.
        exec(compile("\n" * line + text, str(ROOT / page), "exec"), namespace)


def test_links_of_the_pages__files_of_this_tree__exist():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert missing == []
