"""Markdown for the reference pages, made from the code: options, parameters, codes, commands and public names.

Everything here is a function of the package's own objects and source, so that nothing is typed twice. `tests/docs` calls
the same functions without Sphinx.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from rl4sys_zmq.config import AgentConfig, ClientConfig, LearnerConfig, RelayConfig
from rl4sys_zmq.config.options import OBSERVATION_SPACE, SPACE, InvalidValue
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.like import our_name
from rl4sys_zmq.resource import Resource

__all__ = ["PUBLIC", "api", "codes", "command_paths", "commands", "figures", "generate", "like", "options", "parameters"]

PUBLIC = (
    "rl4sys_zmq",
    "rl4sys_zmq.config",
    "rl4sys_zmq.learner",
    "rl4sys_zmq.algorithms",
    "rl4sys_zmq.relay",
    "rl4sys_zmq.actor",
    "rl4sys_zmq.policies",
    "rl4sys_zmq.values",
    "rl4sys_zmq.serving",
    "rl4sys_zmq.serving.data",
    "rl4sys_zmq.testing",
    "rl4sys_zmq.compat",
    "rl4sys_zmq.errors",
)
"""The modules whose `__all__` is the public interface. A name that two of them export is described at the first."""


CONFIGURATIONS = (AgentConfig, ClientConfig, LearnerConfig, RelayConfig)
"""Classes with so many keywords that a signature hides what follows; the page of options lists them."""


def generate(kind: str, argument: str) -> str:
    """Return the Markdown that a page asks for, for example ``options rl4sys_zmq.config:AgentConfig``."""
    made: dict[str, Callable[[Any], str]] = {
        "options": options, "parameters": parameters, "like": like, "codes": codes, "commands": commands, "figures": figures
    }  # fmt: skip
    return made[kind](_resolve(argument)) if kind in made else api(argument)


def options(cls: type[Any]) -> str:
    """Return the table of a configuration class: key, what it accepts, default and meaning."""
    meanings = _field_docs(cls)
    rows = []
    for field in dataclasses.fields(cls):
        if "check" not in field.metadata or field.name == "ignored":
            continue
        accepts = f"{_accepts(field.metadata['check'])}<br>default {_default(field)}".replace("default required", "required")
        rows.append((_key(field.name, field.metadata["names"]), accepts, meanings[field.name]))
    return _table(("key", "accepts", "meaning"), rows)


def parameters(cls: type[Any]) -> str:
    """Return the table of an algorithm's parameters: name, what it accepts, default, synonyms and meaning."""
    rows = []
    for field in dataclasses.fields(cls):
        accepts = f"{_accepts(field.metadata['check'])}<br>default {_default(field)}"
        rows.append((_key(field.name, field.metadata["names"]), accepts, field.metadata["doc"]))
    return _table(("parameter", "accepts", "meaning"), rows)


def like(cls: type[Any]) -> str:
    """Return the tables of other libraries' parameters for an algorithm: name there, default there, name here, rule."""
    parts = []
    for key, library in cls.libraries.items():
        rows = [(name, library.row(name), our_name(cls, library, name)) for name in library.names]
        table = _table(
            ("name there", "default there", "here", "rule"),
            [(f"`{name}`", _literal(row.default), f"`{ours.replace(', ', '`, `')}`", row.note) for name, row, ours in rows],
        )
        rules = ", ".join(f"`{name}: {_literal(value).strip('`')}`" for name, value in library.rules.items())
        parts.append(f"**`like: {key}`** ({library.title})\n\n{table}\nBesides: {rules}.\n\nDifferent: {library.differences}\n")
    return "\n".join(parts)


def _literal(value: object) -> str:
    """Return a value as a file has it; nothing for `...`."""
    return "" if value is ... else f"`{json.dumps(value)}`"


def codes(cls: type[enum.Enum]) -> str:
    """Return the table of an enumeration: each value with the comment behind it in the source."""
    source = inspect.getsource(cls)
    found = re.findall(r'^    [A-Z_]+ = "([a-z_]+)"  # (.*)$', source, re.MULTILINE)
    assert [code for code, _ in found] == [member.value for member in cls], f"{cls.__name__} has a member without a comment"
    return _table(("code", "meaning"), [(f"`{code}`", meaning) for code, meaning in found])


def figures(groups: Sequence[tuple[Sequence[str], Sequence[Any]]]) -> str:
    """Return the table of the figures that the page exports: name, kind, labels and meaning."""
    rows = [
        (f"`{f.full_name}`", f.kind, ", ".join(f"`{label}`" for label in (*labels, *f.labels)), f.help)
        for labels, found in groups
        for f in found
    ]
    return _table(("name", "kind", "labels", "meaning"), rows)


def command_paths(group: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each command below a group with the words that call it, in alphabetical order."""
    if isinstance(group, click.Group):
        for name, command in sorted(group.commands.items()):
            yield from command_paths(command, f"{path} {name}")
    else:
        yield path, group


def commands(group: click.Command) -> str:
    """Return a section for each command: its usage, its help and its options."""
    parts = []
    for path, command in command_paths(group, str(group.name)):
        context = click.Context(command, info_name=path)
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        parts.append(f"## {path}\n\n```text\n{usage}\n```\n\n{_reflow(command.help or '')}\n")
        found = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
        if found:
            parts.append(_table(("option", "meaning"), [_option(option, context) for option in found]))
            name = max(found[0].opts, key=len).lstrip("-")
            variable = "_".join([path, str(found[0].name)]).upper().replace("-", "_").replace(" ", "_")
            parts.append(f"In the environment `--{name}` is `{variable}`, and so on.\n")
    return "\n".join(parts)


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    words = ", ".join(option.opts)
    value = "" if option.is_flag else " " + option.make_metavar(context).replace(" RANGE", "")
    text = re.sub(r"  \[default: (.*)\]", r" Default: \1.", option.help or "")
    default = option.get_default(context, call=False)
    if not option.is_flag and isinstance(default, str | int | float | Path):
        text += f" Default: `{default}`."
    return f"`{words}{value}`", text + (" Required." if option.required else "")


def api(module_name: str) -> str:
    """Return the reStructuredText directives that describe each public name of a module."""
    module = importlib.import_module(module_name)
    lines = ["```{eval-rst}"]
    for name in module.__all__:
        found = getattr(module, name)
        home = _home(name, found)
        if name.startswith("__"):
            continue
        if home != module_name:
            lines += [f"``{name}``", f"    The same as :py:obj:`{home}.{name}`.", ""]
        elif inspect.isclass(found):
            signature = "(**options)" if issubclass(found, CONFIGURATIONS) else ""
            kind = "autoexception" if issubclass(found, Exception) else "autoclass"
            lines += [f".. {kind}:: {module_name}.{name}{signature}", "   :members:"]
            if not issubclass(found, Exception) and _is_internal(found.__mro__[1]):  # describe its methods here
                described = next(base for base in found.__mro__[1:] if not _is_internal(base))
                lines.append(f"   :inherited-members: {described.__name__}")
            lines += [""] if found.__bases__ == (object,) else ["   :show-inheritance:", ""]
        elif inspect.isroutine(found):
            lines += [f".. autofunction:: {module_name}.{name}", ""]
        else:
            doc = _data_docs().get(name) or f"``{found!r}``"
            lines += [f".. py:data:: {name}", f"   :module: {module_name}", "", f"   {doc}", ""]
    return "\n".join([*lines, "```", ""])


def _is_internal(cls: type[Any]) -> bool:
    """Return True for a base class of this package that no page describes."""
    own = cls.__module__.startswith("rl4sys_zmq") and cls is not Resource
    return own and not any(getattr(importlib.import_module(module), cls.__name__, None) is cls for module in PUBLIC)


def _home(name: str, found: object) -> str:
    for candidate in PUBLIC:
        module = importlib.import_module(candidate)
        if name in module.__all__ and getattr(module, name) is found:
            return candidate
    raise LookupError(name)


@functools.cache
def _data_docs() -> dict[str, str]:
    """Return the text under each assignment of the package, by the name that is assigned."""
    docs = {}
    for path in sorted(Path(str(importlib.import_module("rl4sys_zmq").__file__)).parent.rglob("*.py")):
        body = ast.parse(path.read_text()).body
        for line, below in itertools.pairwise(body):
            target = line.targets[0] if isinstance(line, ast.Assign) else line.target if isinstance(line, ast.AnnAssign) else None
            if isinstance(target, ast.Name) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                docs[target.id] = " ".join(str(below.value.value).partition("\n\n")[0].split())
    return docs


def _resolve(argument: str) -> Any:
    module, _, name = argument.partition(":")
    return getattr(importlib.import_module(module), name)


def _field_docs(cls: type[Any]) -> dict[str, str]:
    """Return the text that stands under each field of a class in the source."""
    docs = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        (body,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(body, ast.ClassDef)
        for field, below in itertools.pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                assert isinstance(below.value, ast.Constant)
                docs[field.target.id] = " ".join(str(below.value.value).split())
    return docs


def _key(name: str, synonyms: tuple[str, ...]) -> str:
    return f"`{name}`" + (f"<br>also {' '.join(f'`{synonym}`' for synonym in synonyms)}" if synonyms else "")


def _accepts(check: Any) -> str:
    """Return what a check accepts, in the words with which it refuses something else."""
    if check in (SPACE, OBSERVATION_SPACE):
        return "a space of Gymnasium or its JSON form, or null"
    try:
        check(object())
    except InvalidValue as exc:
        return str(exc)
    except ConfigError as exc:
        return str(exc).partition(", not ")[0].removeprefix("expected ")
    raise AssertionError(f"{check} accepts anything")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else f"`{field.default_factory()}`"
    value = field.default
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int):
        return f"`{value}`" + (f" ({value >> 20} MiB)" if value >= 1 << 20 and not value % (1 << 20) else "")
    if dataclasses.is_dataclass(value):
        return "`{}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _reflow(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.replace("\b", "").split("\n\n"))


def _table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    plain = " ".join(text.split()).replace("``", "`")
    return plain.replace("|", "\\|").replace("*", "\\*") if "`" not in plain else re.sub(r"(?<!\\)\|", r"\\|", plain)
