"""The wire format: pure functions that turn messages into byte frames and back. No sockets, and nothing is pickled.

- `messages`, `codec`: the messages of actors, relays and operators, and `encode` and `decode`.
- `thread_messages`: the same for the messages inside a learner. An actor does not import it.
- `segments`, `batch`: writing and reading of a `Submit`. `layout`: its columns. `coding`: its compression.
- `specs`: policy specs as documents.
- `rpc`, `trees`: the messages of services and their payloads.
- `frames`: the frames of every message, with a prefix of 48 bytes and a msgpack header in the first.
"""

from rl4sys_zmq.wire.batch import SegmentBatchReader, read_heads, read_segments, read_submit
from rl4sys_zmq.wire.codec import decode, encode
from rl4sys_zmq.wire.layout import SegmentSchema
from rl4sys_zmq.wire.segments import PackedSegment, join_submit, pack_segment, with_images
from rl4sys_zmq.wire.specs import blob_digest, spec_body, spec_from_document, spec_to_document, tensors_from_document

__all__ = [
    "SegmentBatchReader",
    "PackedSegment",
    "SegmentSchema",
    "blob_digest",
    "decode",
    "encode",
    "join_submit",
    "pack_segment",
    "read_heads",
    "read_segments",
    "read_submit",
    "spec_body",
    "spec_from_document",
    "spec_to_document",
    "tensors_from_document",
    "with_images",
]
