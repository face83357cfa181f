"""The extension module: native/src/python."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from rl4sys_zmq.wire.messages import AnyBytes

Bytes = bytes | bytearray | memoryview | NDArray[Any]

VERSION: str

def missing() -> str:
    """Return the library that is missing in this process, as text; empty if all are here."""

def xxh3_64(data: Bytes, /) -> int:
    """Return the xxh3-64 of a buffer."""

class Policy:
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def head(self) -> list[Any]:
        """Return the key while it is in memory, the generation, the version, the digest, and the bytes that are not float32."""
    def bind(self, sampler: Sampler, explore: bool, /) -> Chooser:
        """Return a chooser for the thread of a sampler."""

class Chooser:
    def choose(self, observation: Any, mask: Any, /) -> tuple[Any, Any, float]:
        """Choose for features or an index, and a mask: integers of a Discrete, or the float32 and float64 bytes of a Box."""

class Sampler:
    def __init__(self, seed: bytes, place: float, /) -> None: ...
    def uniform(self) -> float:
        """Return the next number in [0, 1)."""
    def random_bytes(self, count: int, /) -> bytes:
        """Return the next random bytes, eight for each of the given count."""
    def normals(self, count: int, /) -> bytes:
        """Return the next standard normal numbers, as the bytes of float32."""

class IoThread:
    def __init__(self, settings: dict[str, Any], context: Any, has_cache: bool, /) -> None: ...
    def start(self) -> None:
        """Start the thread."""
    def request_stop(self) -> None:
        """Ask the thread to send Bye and to end."""
    def join(self) -> None:
        """Stop the thread, and wait for its end."""
    def next_event(self, seconds: float, /) -> tuple[str, int, str] | None:
        """Return the next kind, level and text, or None after the given seconds."""
    def changes(self) -> int:
        """Return the number of changes for which waiting host threads are woken."""
    def wait_change(self, seen: int, seconds: float, /) -> int:
        """Wait for a change after the given number, for at most the given seconds."""
    def notify(self) -> None:
        """Wake the waiting host threads."""
    def wake(self) -> None:
        """Wake the thread."""
    def wake_unless_resting(self) -> None:
        """Wake the thread, unless it reads the outbox soon anyway."""
    def put(self, *numbers_layout_columns: Any) -> None:
        """Pack a finished segment, and queue it: the numbers of its head, its layout, and its columns."""
    def put_dropped(self, reason: str, steps: int, /) -> None:
        """Count a finished segment as dropped."""
    def status(self) -> dict[str, Any]:
        """Return all numbers of the session and the outbox at one moment."""
    def alarms(self) -> dict[str, int]:
        """Return the alarms that the learner's last beacon reports."""
    def put_steps(self) -> int:
        """Return the number of finished steps."""
    def current_at(self) -> float:
        """Return the monotonic time of the learner's last message."""
    def set_current_at(self, seconds: float, /) -> None: ...
    def starting_at(self) -> float:
        """Return the monotonic time at which the learner last answered that it starts."""
    def want_steps(self) -> int:
        """Return the steps for which host threads ask credit, since the start."""
    def set_want_steps(self, steps: int, /) -> None: ...
    def count_waiting(self, more: int, /) -> int:
        """Add host threads that wait for credit. Return their number."""
    def count_flushing(self, more: int, /) -> int:
        """Add host threads that wait for acknowledgements. Return their number."""
    def set_leaving(self, leaving: bool, /) -> None:
        """Say whether segments without credit are sent too."""
    def gate(self) -> tuple[int, int, int, str, bool, list[str] | None]:
        """Return the limit, generation, least version, stage, whether it joined, and the error (kind, code, text, field)."""
    def parameters(self) -> dict[str, Any] | None:
        """Return the session parameters."""
    def set_parameters(self, parameters: dict[str, Any], /) -> None:
        """Set the session parameters, before the start."""
    def policy_key(self) -> int:
        """Return the key of the current policy; 0 without one."""
    def policy(self) -> Policy | None:
        """Return the current policy."""
    def document(self) -> dict[str, Any] | None:
        """Return the policy spec as the last Welcome had it."""
    def document_key(self) -> int:
        """Return a number that changes with the document."""
    def roll_back(self, bad: Policy, /) -> bool:
        """Go back from a policy. Return False if there is no earlier one."""
    def was_rolled_back(self, generation: int, version: int, /) -> bool:
        """Return True if this version was found to be bad."""
    def take_up(
        self, document: dict[str, Any], generation: int, version: int, digest: int, weights: Any, others: bytes, /
    ) -> None:
        """Start with a policy of an earlier start, or of the parent of this process."""

class Steps:
    def __init__(self, fields: tuple[Any, ...], start: int, elements: int, item: int, action_size: int, /) -> None: ...
    def request(self, traj: Any, obs: object, mask: object, /) -> tuple[Any, Any]:
        """Choose an action."""
    def add(self, traj: Any, action: Any, /) -> None:
        """Store an action as the next step."""

# For tests, which run the Python form beside them. Only an extension that is built in place has these.

class Session:
    def __new__(cls, hello: dict[str, Any], seed: int, coded: bool, /) -> Session: ...
    def call(self, name: str, arguments: list[Any], /) -> list[list[Any]]:
        """Call a method by its name. Return the actions as rows."""
    def look(self) -> dict[str, Any]:
        """Return all that a caller can read, by name."""

def read_message(frames: list[bytes], max_bytes: int, /) -> list[Any]:
    """Decode and check a message. Return its kind, header, first_seq and count."""

def bad_heads(frames: list[bytes], /) -> list[int]:
    """Check a Submit without codings. Return the indices of contradictory heads."""

def read_weights_header(data: Bytes, /) -> list[Any]:
    """Return the fields of the header of a weight update."""

# messages
def read_submit(
    frames: Sequence[Bytes], max_bytes: int, verify: bool, /
) -> tuple[int, int, int, str, AnyBytes, list[int], list[int]] | None:
    """Return the fields of a simple, valid Submit; None for any other message."""

def join_bodies(layout: str, heads: Sequence[bytes], bodies: Sequence[Bytes], /) -> bytes:
    """Return the body of one message for those of several messages of a layout."""

# Weights: states are float32 ``[n]``; `dtype` is a `WireDtype`, and `exponents` are those of `IntegerMapping`.
def encode_diff(
    base: Bytes, new: Bytes, before: Bytes | None, dtype: int, exponents: Bytes | None, prefix: bytes, /
) -> tuple[int, bytes, bool]:
    """Return the encoding, the payload, and whether it is predicted."""

def decode_diff(codec: int, payload: Bytes, base: Bytes, before: Bytes | None, dtype: int, exponents: Bytes | None, /) -> bytes:
    """Return the bytes of the state to which a diff leads."""

def encode_snapshot_planes(flat: Bytes, dtype: int, /) -> bytes | None:
    """Return the planes of a whole state, or None if they are long."""

def decode_snapshot_planes(payload: Bytes, size: int, dtype: int, /) -> bytes:
    """Return the bytes of a whole state."""
