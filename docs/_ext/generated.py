"""The Sphinx directive ``generated``: a part of a page that is made from the code."""

from __future__ import annotations

from typing import Any, ClassVar

import tables
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

__all__ = ["Generated", "setup"]


class Generated(SphinxDirective):
    """The Markdown that `tables.generate` returns for a kind and an argument."""

    required_arguments = 2
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """Parse the Markdown in the place of the directive."""
        kind, argument = self.arguments
        return self.parse_text_to_nodes(tables.generate(kind, argument), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("generated", Generated)
    return {"version": "1", "parallel_read_safe": True}
