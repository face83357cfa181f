"""The Sphinx directive ``generated``: a part of a page that is made from the code."""

from __future__ import annotations

from typing import Any, ClassVar

import tables
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
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


def keep_as_code(app: Sphinx, env: BuildEnvironment, node: nodes.Element, content: nodes.Element) -> nodes.Element | None:
    """Return the plain text of an unknown name in a docstring or a signature; a reference of a page must lead somewhere.

    Docstrings put parameters, keys and inner names into the same backticks as public names, and signatures have types of
    numpy and of inner modules.
    """
    parent: nodes.Element | None = node.parent
    while parent is not None:
        if isinstance(parent, addnodes.desc):
            return content
        parent = parent.parent
    return None


class PlainAttributes:
    """Keeps the text under an attribute as it is: napoleon takes what stands before its first colon for a type."""

    def __init__(self) -> None:
        self._kept: dict[str, list[str]] = {}

    def before(self, app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
        """Remember the text, before napoleon has it."""
        if what == "attribute":
            self._kept[name] = list(lines)

    def after(self, app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
        """Put the text back."""
        if what == "attribute":
            lines[:] = self._kept.pop(name)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and the rules."""
    app.add_directive("generated", Generated)
    attributes = PlainAttributes()
    app.connect("autodoc-process-docstring", attributes.before, priority=100)
    app.connect("autodoc-process-docstring", attributes.after, priority=900)
    app.connect("missing-reference", keep_as_code)
    return {"version": "1", "parallel_read_safe": True}
