"""RL4Sys's own forms: its sections become keys of ours."""

from __future__ import annotations

from collections.abc import Mapping

from rl4sys_zmq.config.options import Unfit, check_value, mapping, text, unknown_key
from rl4sys_zmq.errors import ConfigError

__all__ = ["algorithm_name", "expand_sections", "translate_global"]

_SECTIONS: dict[str, dict[str, str]] = {
    "network_architecture": {"hidden_sizes": "algorithm_parameters", "activation": "algorithm_parameters"},
    "training": {"batch_size": "algorithm_parameters", "epochs": "algorithm_parameters"},
    "communication": {"server_address": "", "timeout": ""},
}
"""Section, its keys, and where each goes: into the algorithm's parameters or to the top."""

_NO_MEANING_HERE = ("ensemble_algorithms", "max_traj_length", "model_paths", "tensorboard")


def algorithm_name(value: object) -> str:
    """An algorithm's name; case does not matter, so it is kept in capitals."""
    return text(value).upper()


def expand_sections(given: Mapping[str, object], sections: tuple[str, ...] = tuple(_SECTIONS)) -> dict[str, object]:
    """Moves the keys of ``network_architecture``, ``training`` and ``communication`` to where the first form has them.

    Raises:
        ConfigError: for a section that is no mapping, an unknown key in one, or a key that is also said elsewhere
            with another value.
    """
    out = {key: value for key, value in given.items() if key not in sections}
    if "algorithm_parameters" in given:
        out["algorithm_parameters"] = check_value("algorithm_parameters", given["algorithm_parameters"], mapping)
    for section in sections:
        for key, value in check_value(section, given.get(section, {}), mapping).items():
            if key not in _SECTIONS[section]:
                raise unknown_key(key, _SECTIONS[section], section)
            place = _SECTIONS[section][key]
            target = out if not place else out.setdefault(place, {})
            assert isinstance(target, dict)
            if key in target and target[key] != value:
                where = f"{place}.{key}" if place else key
                raise ConfigError(f"{section}.{key}: {value!r} contradicts {where!r}: {target[key]!r}", key=f"{section}.{key}")
            target[key] = value
    return out


def translate_global(given: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
    """Turns what is RL4Sys's in a learner's file into our keys; returns them and the keys that have no meaning here.

    ``server.training_server`` becomes ``bind``, unless that is given. Ours are passed on as they are.
    """
    out = {key: value for key, value in given.items() if key not in (*_NO_MEANING_HERE, "server")}
    ignored = [key for key in _NO_MEANING_HERE if key in given]
    servers = check_value("server", given.get("server", {}), mapping)
    for name, server in servers.items():
        if name == "training_server" and "bind" not in given:
            out["bind"] = check_value(f"server.{name}", server, _server_address)
        elif name in ("training_server", "trajectory_server"):
            ignored.append(f"server.{name}")
        else:
            raise unknown_key(name, ("training_server", "trajectory_server"), "server")
    return out, tuple(ignored)


def _server_address(value: object) -> str:
    parts = mapping(value)
    valid = ("prefix", "host", "port")
    for key in parts:
        if key not in valid:
            raise unknown_key(key, valid)
    prefix, host, port = parts.get("prefix", "tcp://"), parts.get("host", "localhost"), parts.get("port", 50051)
    if not isinstance(prefix, str) or not isinstance(host, str) or isinstance(port, bool) or not isinstance(port, int | str):
        raise Unfit('{"prefix": text, "host": text, "port": number or text}')
    return f"{prefix}{host}:{str(port).removeprefix(':')}"
