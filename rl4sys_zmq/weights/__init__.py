"""Weights on their way to the actors: digests, exact diffs, headers. Pure functions of values, no sockets.

- `encode_update`, `apply_update`: from snapshot to wire bytes and back, verified; `merge_updates` joins consecutive ones.
- `WeightsHeader`: the 72 bytes in front of every payload.
- `encode_diff`, `decode_diff`, `merge_diffs`: the coder alone; `digest`: the identity of a state.
"""

from rl4sys_zmq.weights.coder import Codec, decode_diff, encode_diff, merge_diffs
from rl4sys_zmq.weights.digest import digest
from rl4sys_zmq.weights.header import HEADER_BYTES, WeightsHeader, WireDtype
from rl4sys_zmq.weights.state import apply_update, encode_update, merge_updates

__all__ = [
    "HEADER_BYTES",
    "Codec",
    "WeightsHeader",
    "WireDtype",
    "apply_update",
    "decode_diff",
    "digest",
    "encode_diff",
    "encode_update",
    "merge_diffs",
    "merge_updates",
]
