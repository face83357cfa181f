"""Encoding of weights for the actors: wire dtypes, digests, exact diffs, headers. Pure functions, no sockets.

- `round_to`, `choose_steps`: round the learner's weights to values of a `WireDtype`.
- `encode_update`, `apply_update`: convert a snapshot to bytes and back, with verification, as `EncodingOptions` specify.
- `WeightsHeader`: the 72 bytes before every payload.
- `encode_diff`, `decode_diff`: the coder alone. `digest`: the checksum over a state.

`coder` chooses the form of a diff. It uses `forms` (states as integers), `blocks`, `contexts` and `choice`. `integers`, `planes`,
`symbols` and `bits` write the bytes. `snapshots` codes whole states, `others` the tensors that are not float32.
"""

from rl4sys_zmq.weights.coder import DecodedState, Diff, DiffCodec, decode_diff, encode_diff
from rl4sys_zmq.weights.digest import digest
from rl4sys_zmq.weights.forms import BF16, FP32, Grid, IntegerForm, WireDtype, form_of
from rl4sys_zmq.weights.header import HEADER_BYTES, WeightsHeader
from rl4sys_zmq.weights.others import TRAILER_BYTES, verify_others
from rl4sys_zmq.weights.rounding import Steps, choose_steps, round_to
from rl4sys_zmq.weights.state import EncodingOptions, apply_update, encode_update

__all__ = [
    "BF16",
    "FP32",
    "HEADER_BYTES",
    "TRAILER_BYTES",
    "DiffCodec",
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
    "verify_others",
]
