"""The documentation site: Sphinx, MyST for the Markdown pages, autodoc and napoleon for the Python reference.

Sphinx was chosen because autodoc is its own part and strict mode checks every reference; Zensical is at 0.1 and its Python
reference comes from a plugin of another tool. The theme and MyST had releases in the month of the choice (November 2026).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from rl4sys_zmq import __version__

project = "rl4sys_zmq"
author = "rl4sys_zmq contributors"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "generated"]
exclude_patterns = ["_build", "README.md"]

myst_enable_extensions = ["attrs_inline", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_attr_annotations = True

default_role = "py:obj"
nitpicky = True  # an unknown reference is a warning; `generated` lets names inside docstrings and signatures stay plain code

html_theme = "pydata_sphinx_theme"
html_title = "rl4sys_zmq"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_prev_next": True,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "glossary": []}
copyright = "the rl4sys_zmq contributors, MIT licence"
copybutton_prompt_text = "$ "

suppress_warnings = ["ref.python"]
"""An annotation `type` could mean the builtin or an option of that name. A name that leads nowhere has another category."""
