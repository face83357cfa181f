"""The wire format: pure functions that turn messages into byte frames (parts of a ZeroMQ message) and back. No sockets.

- `messages`: the messages of actors, relays and operators as dataclasses. `codec`: `encode` and `decode`, which convert them to
  frames and back.
- `thread_messages`, `thread_codec`: the same for the messages between the threads of a learner. An actor does not import them.
- `segments`: packs segments and joins them into the message `Submit`. `batch` and `columns`: read the segments of a `Submit`.
- `layout`: the columns that a segment has. `schema`: the columns that a client's segments must have.
- `coding`: compression of the body of a `Submit`.
- `specs`: conversion of policy specs (from which an actor builds its policy) to documents and back.
- `rpc` and `trees`: the messages of services (remote calls and publications), and their payloads.
- `prefix`: the first 48 bytes of every message. `values`: the msgpack header and its strict decoder.

Nothing here is pickled or unpickled.
"""

from rl4sys_zmq.wire.batch import SegmentBatchReader, read_heads, read_submit
from rl4sys_zmq.wire.codec import decode, encode
from rl4sys_zmq.wire.layout import action_dtype
from rl4sys_zmq.wire.schema import SegmentSchema
from rl4sys_zmq.wire.segments import PackedSegment, join_submit, pack_segment, with_images
from rl4sys_zmq.wire.specs import blob_digest, spec_body, spec_from_document, spec_to_document, tensors_from_document

__all__ = [
    "SegmentBatchReader",
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
    "tensors_from_document",
    "with_images",
]
