"""Weights on their way to the actors: what travels, digests, exact diffs, headers. Pure functions of values, no sockets.

- `round_to`, `choose_steps`: from the learner's weights to the values that travel (`WireDtype`).
- `encode_update`, `apply_update`: from snapshot to wire bytes and back, verified, written as a `EncodingOptions` says.
- `WeightsHeader`: the 72 bytes in front of every payload.
- `encode_diff`, `decode_diff`: the coder alone; `digest`: the identity of a state.

Below them: `coder` chooses how a diff is written, over `forms` (states as integers), `blocks`, `contexts` and `choice`;
`integers`, `planes`, `symbols` and `bits` write them.
"""

from rl4sys_zmq.weights.coder import Codec, DecodedState, Diff, decode_diff, encode_diff
from rl4sys_zmq.weights.digest import digest
from rl4sys_zmq.weights.forms import BF16, FP32, Grid, IntegerForm, WireDtype, form_of
from rl4sys_zmq.weights.header import HEADER_BYTES, WeightsHeader
from rl4sys_zmq.weights.rounding import Steps, choose_steps, round_to
from rl4sys_zmq.weights.state import EncodingOptions, apply_update, encode_update

__all__ = [
    "BF16",
    "FP32",
    "HEADER_BYTES",
    "Codec",
    "DecodedState",
    "Diff",
    "IntegerForm",
    "Grid",
    "Steps",
    "WeightsHeader",
    "WireDtype",
    "EncodingOptions",
    "apply_update",
    "choose_steps",
    "decode_diff",
    "digest",
    "encode_diff",
    "encode_update",
    "form_of",
    "round_to",
]
