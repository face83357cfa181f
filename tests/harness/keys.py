"""A folder of keys with its access list, for tests that add, change and remove users."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl4sys_zmq.security.keys import KeyPair, UserKeys, new_key_pair, write_server_keys, write_user_keys


class KeyRing:
    """A folder of keys like one of ``rl4sys-learner keys``, with its access list."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = new_key_pair()
        self.peers: dict[str, dict[str, Any]] = {}
        self._pairs: dict[str, KeyPair] = {}
        write_server_keys(folder / "learner.secret", self.server)

    @property
    def list_file(self) -> Path:
        return self.folder / "users.toml"

    def pair(self, name: str) -> KeyPair:
        if name not in self._pairs:
            self._pairs[name] = new_key_pair()
        return self._pairs[name]

    def client(self, name: str) -> UserKeys:
        return UserKeys(self.pair(name), self.server.public)

    def file(self, name: str) -> Path:
        path = self.folder / f"{name}.keys"
        if not path.exists():
            write_user_keys(path, name, self.client(name))
        return path

    def new_pair(self, name: str) -> None:
        self._pairs[name] = new_key_pair()
        (self.folder / f"{name}.keys").unlink(missing_ok=True)

    def allow(
        self, name: str, roles: Sequence[str] = ("submit", "read_weights"), ids: Sequence[str] = ("lab",), **more: Any
    ) -> None:
        """Add a name to the list. `more` can be ``expires`` and ``quota``."""
        self.peers[name] = {"key": self.pair(name).public, "client_ids": list(ids), "roles": list(roles), **more}

    def write(self) -> None:
        """Replace the list file by one rename."""
        text = "".join(_table(name, {**peer, "key": self.pair(name).public}) for name, peer in self.peers.items())
        self.replace(text)

    def replace(self, text: str) -> None:
        fresh = self.list_file.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(self.list_file)


def _table(name: str, peer: Mapping[str, Any]) -> str:
    lines = [f"[{name}]", f"key = '{peer['key']}'", f"client_ids = {peer['client_ids']}", f"roles = {peer['roles']}"]
    if "expires" in peer:
        lines.append(f"expires = {peer['expires']}")
    if quota := peer.get("quota"):
        lines += [f"[{name}.quota]", *(f"{key} = {value}" for key, value in quota.items())]
    return "\n".join(lines) + "\n"
