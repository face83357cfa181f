"""The two things that setup.cfg cannot say: which modules a wheel leaves out, and the long description for an index page."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent

LEFT_OUT = re.compile(r"rl4sys_zmq\.testing\.(sim_\w+|simulator|schedule|history)")
"""The simulator of delivery: only our own tests use it, so the sdist has it and the wheel does not."""

LINK = re.compile(r"(!?)\[([^\]]+)\]\((?!https?://|mailto:)([^)\s]+)\)")
"""A link of Markdown that leads to a file beside it, or to a place on the page."""


class BuildWithoutSimulator(build_py):
    """Builds the package without the modules in `LEFT_OUT`."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Return `(package, module, path)` for each module of a package that the wheel has."""
        found = super().find_package_modules(package, package_dir)
        return [entry for entry in found if not LEFT_OUT.fullmatch(f"{entry[0]}.{entry[1]}")]


def for_index_page(markdown: str) -> str:
    """Return the README with words in place of relative links, which lead nowhere on an index page."""

    def in_words(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        path = target.partition("#")[0]
        return "" if image else text if path in ("", text) else f"{text} ({path})"

    return LINK.sub(in_words, markdown)


setup(
    cmdclass={"build_py": BuildWithoutSimulator},
    long_description=for_index_page((ROOT / "README.md").read_text(encoding="utf-8")),
)
