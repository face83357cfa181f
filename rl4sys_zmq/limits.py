"""Limits of messages and records that several rooms share. A limit that only one module uses is in that module."""

MAX_MESSAGE_FRAMES = 256
"""Frames of one message between actors, learner, relays, workers and operators."""
RELAY_MESSAGE_FRAMES = 16
"""Frames of one answer of a relay to an actor."""
SIDECAR_MESSAGE_FRAMES = 1024
"""Frames of one message through the pipe of a sidecar."""
MAX_REPORT_FRAMES = 257
"""Frames of one message from a learner thread to the gateway: a key, a header and the largest body."""
NO_FRAME_LIMIT = -1
"""The largest frame in bytes of a socket within one learner: no limit."""
MAX_SEGMENT_STEPS = 1 << 20
RECENT_EPISODES = 100
"""Episodes over which means of returns and lengths are shown."""
