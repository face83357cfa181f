"""How it is written: values to frames and back, pure functions without sockets.

- `messages`: every message as a dataclass; `codec`: `encode` and `decode`.
- `segments`: columns packed into blobs and read as views; `specs`: policy specs as documents.
- `prefix`: the 48 fixed bytes; `values`: the msgpack header, strictly read.

Nothing here is ever pickled or unpickled.
"""

from rl4sys_zmq.wire.codec import decode, encode
from rl4sys_zmq.wire.segments import (
    PackedSegment,
    SegmentSchema,
    action_dtype,
    join_submit,
    pack_segment,
    read_submit,
    segment_steps,
    submit_checksums,
)
from rl4sys_zmq.wire.specs import spec_from_document, spec_to_document

__all__ = [
    "PackedSegment",
    "SegmentSchema",
    "action_dtype",
    "decode",
    "encode",
    "join_submit",
    "pack_segment",
    "read_submit",
    "segment_steps",
    "spec_from_document",
    "spec_to_document",
    "submit_checksums",
]
