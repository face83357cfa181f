"""How it is written: values to frames and back, pure functions without sockets.

- `messages`: every message as a dataclass; `codec`: `encode` and `decode`.
- `segments`: segments packed and joined to a `Submit`; `batch` and `columns`: those of a `Submit` read as views; `layout` and
  `schema`: what their columns look like, and what they must look like. `specs`: policy specs as documents.
- `prefix`: the 48 fixed bytes; `values`: the msgpack header, strictly read.

Nothing here is ever pickled or unpickled.
"""

from rl4sys_zmq.wire.batch import Batch, read_heads, read_submit
from rl4sys_zmq.wire.codec import decode, encode
from rl4sys_zmq.wire.layout import action_dtype
from rl4sys_zmq.wire.schema import SegmentSchema
from rl4sys_zmq.wire.segments import PackedSegment, join_submit, pack_segment, with_images
from rl4sys_zmq.wire.specs import spec_from_document, spec_to_document

__all__ = [
    "Batch",
    "PackedSegment",
    "SegmentSchema",
    "action_dtype",
    "decode",
    "encode",
    "join_submit",
    "pack_segment",
    "read_heads",
    "read_submit",
    "spec_from_document",
    "spec_to_document",
    "with_images",
]
