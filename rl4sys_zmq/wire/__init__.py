"""The wire format: pure functions that turn values into frames and back. No sockets.

- `messages`: every message as a dataclass. `codec`: `encode` and `decode`.
- `segments`: packs segments and joins them into a `Submit`. `batch` and `columns`: read the segments of a `Submit` as views.
- `layout` and `schema`: the columns that a segment has, and those that a client requires. `specs`: policy specs as documents.
- `prefix`: the 48 fixed bytes of every message. `values`: the msgpack header and its strict decoder.

Nothing here is pickled or unpickled.
"""

from rl4sys_zmq.wire.batch import Batch, read_heads, read_submit
from rl4sys_zmq.wire.codec import decode, encode
from rl4sys_zmq.wire.layout import action_dtype
from rl4sys_zmq.wire.schema import SegmentSchema
from rl4sys_zmq.wire.segments import PackedSegment, join_submit, pack_segment, with_images
from rl4sys_zmq.wire.specs import blob_digest, spec_body, spec_from_document, spec_to_document

__all__ = [
    "Batch",
    "PackedSegment",
    "SegmentSchema",
    "action_dtype",
    "blob_digest",
    "decode",
    "encode",
    "join_submit",
    "pack_segment",
    "read_heads",
    "read_submit",
    "spec_body",
    "spec_from_document",
    "spec_to_document",
    "with_images",
]
