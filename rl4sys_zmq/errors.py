"""Every way this library can fail, drawn once.

::

    RL4SysError
    ├── ConfigError                 a key, a file or an argument is wrong (names the key and the nearest valid name)
    ├── BadInput (ValueError)       the host handed over something that cannot be stored
    │   ├── ObservationError        wrong shape or dtype, or not finite
    │   ├── MaskError               wrong shape, or it forbids every action
    │   ├── RewardError             missing at the end, not finite, or after the segment left
    │   ├── ActionError             an action of another agent, or one already stored
    │   └── DataError               data that do not fit their store (names the key, with both shapes or dtypes)
    ├── CallError                   a call of a service that brought no answer
    │   ├── CallTimeout             none came within the time (names the stage that was reached)
    │   ├── CallRefused             the server would not run it (carries a `CallRefusal` code)
    │   ├── CallFailed              the callback raised; its type and text
    │   └── CallLost                the server forgot the session: whether it ran the call is unknown
    ├── AnswerError                 a callback of a server answered something else than it was asked for
    ├── CallbackStuck               a server was stopped while a callback of its user still ran
    ├── PayloadError (TypeError)    a value that cannot travel (names its path in the tree)
    ├── Closed                      the object was closed before the call
    ├── PolicyStale                 the policy is older than the host allows, and it asked to be told
    ├── LearnerUnavailable          no learner within the timeout (names the stage that was reached)
    ├── HandshakeRefused            the learner said no (names the field and both values)
    ├── ClientFailed                this client's learner thread stopped on an exception
    ├── TrainingDiverged            each of several updates in a row was not finite (says how many, and what)
    ├── TransportError              an address cannot be bound, dialled or parsed
    │   └── AddressInUse
    ├── ProtocolError               bytes that are not a message of ours (carries a `Refusal` code)
    ├── WeightsError                a diff or a snapshot that does not fit or does not verify
    ├── WorkerDied                  a thread of ours ended with an exception
    ├── MemoryExceeded              a learner's process holds more memory than it may, and nothing helped (names both)
    ├── CheckpointError             a checkpoint cannot be written or read, or is not what was written
    ├── RunDirectoryError           the run directory cannot be written
    ├── JournalError                the journal cannot be opened or read (names the file and the remedy)
    │   └── JournalLost             it lacks what marks or checkpoints know of it (says how much)
    ├── SpoolError                  an actor's spool is in use, cannot be opened, or is another actor's
    ├── StoreEmpty                  a data store holds nothing that could be sampled yet
    └── StoreError                  a data store's files are in use, damaged, or not its own (names the path and the remedy)

Errors carry their numbers as attributes and say in one line what to do. Foreign exceptions stop at our border: they are
the ``__cause__`` of one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

__all__ = [
    "ActionError",
    "AddressInUse",
    "AnswerError",
    "BadInput",
    "CallError",
    "CallFailed",
    "CallLost",
    "CallRefusal",
    "CallRefused",
    "CallTimeout",
    "CallbackStuck",
    "CheckpointError",
    "ClientFailed",
    "Closed",
    "ConfigError",
    "DataError",
    "HandshakeRefused",
    "JournalError",
    "JournalLost",
    "LearnerUnavailable",
    "MaskError",
    "MemoryExceeded",
    "ObservationError",
    "PayloadError",
    "PolicyStale",
    "ProtocolError",
    "RL4SysError",
    "Refusal",
    "RewardError",
    "RunDirectoryError",
    "SpoolError",
    "StoreEmpty",
    "StoreError",
    "TrainingDiverged",
    "TransportError",
    "WeightsError",
    "WorkerDied",
]


class RL4SysError(Exception):
    """The root of the tree: catch this to catch everything of ours."""


class ConfigError(RL4SysError):
    """A configuration key, file or argument is wrong.

    Attributes:
        key: the offending key as the user wrote it, dotted when nested; empty when the file itself is the problem.
        source: the file or the object that it was read from.
    """

    def __init__(self, message: str, *, key: str = "", source: str = "") -> None:
        self.key = key
        self.source = source
        super().__init__(f"{source}: {message}" if source else message)


class BadInput(RL4SysError, ValueError):
    """The host handed over something that cannot be used; nothing was stored."""


class ObservationError(BadInput):
    """An observation has the wrong shape or dtype, or is not finite."""


class MaskError(BadInput):
    """An action mask has the wrong shape, or forbids every action."""


class RewardError(BadInput):
    """A reward is missing, not finite, or came after its segment had left."""


class ActionError(BadInput):
    """An action belongs to another agent, or is already stored in a trajectory."""


class DataError(BadInput):
    """Data, indices or priorities do not fit the store that they were handed to.

    Attributes:
        key: which, as a path like ``observations/camera``; empty when it is all of it.
    """

    def __init__(self, key: str, problem: str) -> None:
        self.key = key
        super().__init__(f"{key}: {problem}" if key else problem)


class Closed(RL4SysError):
    """The object was closed before this call."""


class CallError(RL4SysError):
    """A call of a service brought no answer.

    Attributes:
        method: what was called.
        address: where.
    """

    def __init__(self, method: str, address: str, problem: str) -> None:
        self.method, self.address = method, address
        super().__init__(f"{method} at {address}: {problem}")


class CallTimeout(CallError):
    """No answer came in time. A call of a service that executes each call once may have run, or may run yet.

    Attributes:
        stage: what was being waited for.
        timeout_s: the time that was allowed, in seconds.
    """

    def __init__(self, method: str, address: str, stage: str, timeout_s: float) -> None:
        self.stage, self.timeout_s = stage, timeout_s
        super().__init__(method, address, f"no answer within {timeout_s:g} s (waiting for {stage})")


class CallRefusal(StrEnum):
    """Why a server did not run a call. Each is a counter on the server."""

    UNKNOWN = "unknown"  # no such method, interface, key or request
    BUSY = "busy"  # more calls wait than the server takes
    EXPIRED = "expired"  # the caller's time was over before its turn came
    TOO_LARGE = "too_large"  # of a size beyond the limit
    INVALID = "invalid"  # a payload that the method cannot use
    MISMATCH = "mismatch"  # a configuration field that differs
    NO_SESSION = "no_session"  # the server does not know this caller (any more)
    FORBIDDEN = "forbidden"  # the key has no role that allows this
    OCCUPIED = "occupied"  # somebody else holds what was asked for
    RATE = "rate"  # more often than the rate limit allows
    GONE = "gone"  # what the caller had here is no more: begin anew
    CLOSING = "closing"  # the server is stopping


class CallRefused(CallError):
    """The server would not run the call.

    Attributes:
        code: why.
        detail: the server's words.
    """

    def __init__(self, method: str, address: str, code: CallRefusal, detail: str) -> None:
        self.code, self.detail = code, detail
        super().__init__(method, address, f"refused ({code.value}): {detail}")


class CallFailed(CallError):
    """The server's callback raised.

    Attributes:
        kind: the name of the exception's class.
        detail: its text.
    """

    def __init__(self, method: str, address: str, kind: str, detail: str) -> None:
        self.kind, self.detail = kind, detail
        super().__init__(method, address, f"the callback raised {kind}: {detail}")


class CallLost(CallError):
    """The server was started again, or has forgotten this caller, while a call was under way that must run at most once.

    Whether it ran is unknown; it is not sent again.
    """

    def __init__(self, method: str, address: str) -> None:
        super().__init__(method, address, "the server has forgotten this session; whether the call ran is unknown")


class AnswerError(RL4SysError):
    """A callback of a server answered something else than it was asked for; its caller gets a `CallFailed` that says so."""


class CallbackStuck(RL4SysError):
    """A server was stopped, and a callback did not return in time.

    Attributes:
        concurrency_group: which callback: its concurrency group, and the method in brackets where a concurrency group has
            several.
    """

    def __init__(self, server: str, concurrency_group: str, timeout_s: float) -> None:
        self.concurrency_group = concurrency_group
        super().__init__(
            f"{server}: the callback of {concurrency_group} still runs after {timeout_s:g} s; its thread ends when it returns"
        )


class PayloadError(RL4SysError, TypeError):
    """A value that cannot travel; nothing was sent.

    Attributes:
        path: where in the tree, like ``payload['image'][0]``.
        problem: what is wrong with the value there.
    """

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path}: {problem}")


class LearnerUnavailable(RL4SysError):
    """No learner answered in time.

    Attributes:
        address: the address that was dialled.
        stage: what was being waited for when the time ran out.
        timeout_s: the time that was allowed, in seconds.
    """

    def __init__(self, address: str, stage: str, timeout_s: float, hint: str = "") -> None:
        self.address = address
        self.stage = stage
        self.timeout_s = timeout_s
        tail = f"; {hint}" if hint else ""
        super().__init__(f"no learner at {address} within {timeout_s:g} s (waiting for {stage}){tail}")


class PolicyStale(RL4SysError):
    """The learner has not been heard for longer than ``policy_max_age_s``, with ``on_stale: raise``.

    Attributes:
        age_s: for how long, in seconds.
        max_age_s: what is allowed.
    """

    def __init__(self, age_s: float, max_age_s: float) -> None:
        self.age_s, self.max_age_s = age_s, max_age_s
        super().__init__(f"the policy was last known to be current {age_s:.1f} s ago; policy_max_age_s is {max_age_s:g}")


class HandshakeRefused(RL4SysError):
    """The learner refused this actor.

    Attributes:
        code: the refusal code.
        field: the configuration field that differs, when one does.
    """

    def __init__(self, code: Refusal, reason: str, field: str = "") -> None:
        self.code = code
        self.field = field
        super().__init__(f"the learner refused this actor ({code.value}): {reason}")


class ClientFailed(RL4SysError):
    """The learner thread of this client stopped on an exception; other clients go on.

    Attributes:
        client_id: the client that failed.
        error: the exception as the learner reported it, in one line.
    """

    def __init__(self, client_id: str, error: str) -> None:
        self.client_id = client_id
        self.error = error
        super().__init__(f"client {client_id!r} failed on the learner: {error}; restart it with Learner.restart({client_id!r})")


class TrainingDiverged(RL4SysError):
    """Updates come out not finite whatever they are made of: the parameters are to blame, or the algorithm, and not the data.

    Attributes:
        updates: how many in a row were undone.
        reason: what was not finite in the last one.
    """

    def __init__(self, updates: int, reason: str) -> None:
        self.updates, self.reason = updates, reason
        super().__init__(
            f"{updates} updates in a row were undone, and nothing was left to train on ({reason}); the weights before them are "
            "kept. Is a learning rate too high, or max_magnitude? Remedy the parameters and restart the client"
        )


class TransportError(RL4SysError):
    """An address cannot be parsed, bound or dialled."""


class AddressInUse(TransportError):
    """Another process (or another socket of this one) already binds this address."""

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(
            f"{address} is already in use; stop the process that holds it or choose another port (0 picks a free one)"
        )


class Refusal(StrEnum):
    """Why a message or an item was refused. Each is a counter on the side that refuses."""

    FRAMES = "frames"  # no frames, or more than the limit
    TOO_LARGE = "too_large"  # a frame, a message or a length over its limit
    MAGIC = "magic"  # the prefix does not start with ours
    VERSION = "version"  # another major version of the protocol
    FEATURE = "feature"  # a must-understand flag that this side does not know, or images where there is no Pillow
    KIND = "kind"  # an unknown message kind
    CHECKSUM = "checksum"  # the bytes are not those that were sent
    MALFORMED = "malformed"  # the header is not the map that this kind requires
    DTYPE = "dtype"  # a column dtype outside the allow-list
    SHAPE = "shape"  # dimensions that are negative, too many, or do not match the bytes
    SPEC = "spec"  # columns that do not fit the client's spaces
    RANGE = "range"  # a number outside its range
    DIRECTION = "direction"  # a message that only the other side may send
    NO_SESSION = "no_session"  # data before a handshake: say HELLO again
    FENCED = "fenced"  # an incarnation below the one on record: take one above it if that is named
    CONFLICT = "conflict"  # two live incarnations of one actor
    EXPIRED = "expired"  # an incarnation whose mark ran out with its lease: take a new one
    GAP = "gap"  # a sequence number beyond the mark
    EQUIVOCATION = "equivocation"  # a sequence number that had another content before
    FORBIDDEN = "forbidden"  # the key has no role that allows this
    IDENTITY = "identity"  # the key is not this client's
    MISMATCH = "mismatch"  # a configuration field that differs from the learner's
    CONFIG = "config"  # a configuration that the learner cannot use
    QUOTA = "quota"  # more than the session's limits allow
    FAILED = "failed"  # the client's learner thread has stopped
    CLOSING = "closing"  # the learner is shutting down
    INTERNAL = "internal"  # a fault of the side that refuses; its log has the trace


class ProtocolError(RL4SysError):
    """Bytes that are not a valid message.

    Attributes:
        code: which rule they break.
        incarnation: with ``FENCED``: the one on record, if the actor may take one above it; else 0.
    """

    def __init__(self, code: Refusal, detail: str, *, incarnation: int = 0) -> None:
        self.code = code
        self.detail = detail
        self.incarnation = incarnation
        super().__init__(f"{code.value}: {detail}")


class WeightsError(RL4SysError):
    """A diff or a snapshot does not fit the policy, or its digest does not verify.

    Attributes:
        reason: ``payload`` (damaged or malformed bytes), ``size`` (of another policy's size), ``gap`` (not from the version
            that is held), ``digest`` (the result is not the learner's state) or ``finite`` (infinities or NaN).
    """

    def __init__(self, message: str, *, reason: str = "payload") -> None:
        self.reason = reason
        super().__init__(message)


class MemoryExceeded(RL4SysError):
    """A learner's process holds more memory than it may, and to end its connections has not helped.

    Attributes:
        resident_bytes: what it holds.
        limit_bytes: what it may hold.
    """

    def __init__(self, resident_bytes: int, limit_bytes: int) -> None:
        self.resident_bytes, self.limit_bytes = resident_bytes, limit_bytes
        super().__init__(
            f"the process holds {resident_bytes >> 20} MiB, its limit is {limit_bytes >> 20} MiB (max_memory_bytes); to end all "
            "connections has not helped. What was acknowledged is safe in the journal: start it again. If no peer floods it, its "
            "clients need more: raise --max-memory, or lower buffer_size and batch sizes"
        )


class WorkerDied(RL4SysError):
    """A thread of ours ended with an exception (its ``__cause__``)."""


class RunDirectoryError(RL4SysError):
    """The run directory cannot be created or written."""


class CheckpointError(RL4SysError):
    """A checkpoint cannot be written or read, or is not what was written.

    Attributes:
        path: the file or folder, or the place in a state that cannot be stored.
        damaged: what lies on the disk is not what was written; False when it may be whole and the reason is another one
            (no permission, no space, another version of the library).
    """

    def __init__(self, path: object, problem: str, *, damaged: bool = False) -> None:
        self.path = str(path)
        self.damaged = damaged
        super().__init__(f"{path}: {problem}")


class JournalError(RL4SysError):
    """The journal cannot be opened or read.

    Attributes:
        path: the file.
    """

    def __init__(self, path: str, problem: str, remedy: str) -> None:
        self.path = path
        super().__init__(f"{path}: {problem}; {remedy}")


class JournalLost(JournalError):
    """The journal, or a part of it, is gone: its file of marks, or checkpoints, know of more than it does.

    Nothing was changed. A learner's start with ``resume: accept-loss`` goes on without what is gone, and counts it.

    Attributes:
        segments: by client, how many acknowledged segments the journal does not know.
    """

    def __init__(self, path: str, problem: str, remedy: str, segments: Mapping[str, int]) -> None:
        self.segments = dict(segments)
        super().__init__(path, problem, remedy)


class SpoolError(RL4SysError):
    """An actor's spool is in use, cannot be read or written, or belongs to another client, actor or version of the library."""


class StoreEmpty(RL4SysError):
    """A data store holds nothing that could be sampled yet; try again when more was inserted."""


class StoreError(RL4SysError):
    """The files of a data store cannot be opened or written, are in use or damaged, or belong to something else.

    Attributes:
        path: the file or folder.
    """

    def __init__(self, path: object, problem: str) -> None:
        self.path = str(path)
        super().__init__(f"{path}: {problem}")
