"""The one thing that setup.cfg cannot say: the long description for an index page."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent

LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?://|mailto:)([^)\s]+)\)")
"""A link of Markdown that leads to a file beside it, or to a place on the page."""


def for_index_page(markdown: str) -> str:
    """Return the README with words in place of relative links, which lead nowhere on an index page."""

    def in_words(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        path = target.partition("#")[0]
        return "" if image else text if path in ("", text) else f"{text} ({path})"

    return LINK.sub(in_words, markdown)


setup(long_description=for_index_page((ROOT / "README.md").read_text(encoding="utf-8")))
