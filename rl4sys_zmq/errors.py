"""The exceptions of this library, and the codes with which a message or a call is refused.

::

    RL4SysError
    ├── ConfigError                 a configuration key, file or argument is invalid (with the nearest valid key)
    ├── BadInput (ValueError)       the host passed a value that cannot be stored
    │   ├── ObservationError        wrong shape or dtype, or not finite
    │   ├── MaskError               wrong shape, or no action is allowed
    │   ├── RewardError             missing at the end, not finite, or too late: its segment was already sent
    │   ├── ActionError             an action of another agent, stored already, too late, or invalid in `override`
    │   └── DataError               data that do not fit a data store (with the key, and both shapes or dtypes)
    ├── CallError                   a call to a service returned no result
    │   ├── CallTimeout             no reply before the deadline (with the stage that was reached)
    │   ├── CallRefused             the server refused to run the call (with a `CallRefusalReason` code)
    │   ├── CallFailed              the server's callback raised an exception (with its type and text)
    │   └── CallLost                the server no longer has the session; the call may or may not have run
    ├── InvalidReply                 a server's callback returned an invalid result
    ├── CallbackStuck               a server was stopped while one of its callbacks was still running
    ├── PayloadError (TypeError)    a value that cannot be sent (with its path in the tree)
    ├── Closed                      the object was already closed
    ├── PolicyError                 a policy cannot compute an action
    ├── PolicyStale                 the policy is older than `policy_max_age_s`, with ``on_stale: raise``
    ├── LearnerUnavailable          no reply from the learner in time (with the stage that was reached)
    ├── HandshakeRefused            the learner refused the actor (with the field and both values)
    ├── ClientFailed                the learner thread of this client ended with an exception
    ├── TrainingDiverged            several updates in a row were not finite
    ├── TransportError              an address cannot be bound, connected to or parsed
    │   └── AddressInUse            another socket is already bound to the address
    ├── ProtocolError               bytes that are not a valid message (with a `RefusalReason` code)
    ├── WeightsError                a weight diff or snapshot does not fit, or its digest is wrong
    ├── WorkerDied                  a thread of this library ended with an exception
    ├── RankError                   a process that trains together with a learner thread has ended or does not answer
    │   └── RankLost                it was killed or does not answer
    ├── MemoryExceeded              the learner's process is over its memory limit
    ├── CheckpointError             a checkpoint cannot be written or read, or is damaged
    ├── PolicyFolderError           a policy folder is missing, damaged, of another format, or cannot be written
    ├── RunDirectoryError           the run directory cannot be created or written
    ├── JournalError                the journal cannot be opened or read (with the file and the remedy)
    │   └── JournalLost             the journal lacks segments that were acknowledged (with their number)
    ├── SpoolError                  an actor's spool is in use, unreadable, or belongs to another actor
    ├── StoreEmpty                  a data store holds nothing to sample
    └── StoreFileError              the files of a data store are in use, damaged, or belong to something else

The text of an exception is one line that names the problem and, where possible, the remedy. Limits and similar numbers are
usually attributes too. If another library raises, its exception becomes the ``__cause__`` of an exception of this list.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import StrEnum

from rl4sys_zmq.logs import printable

__all__ = [
    "ActionError",
    "AddressInUse",
    "InvalidReply",
    "BadInput",
    "CallError",
    "CallFailed",
    "CallLost",
    "CallRefusalReason",
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
    "PolicyError",
    "PolicyFolderError",
    "PolicyStale",
    "ProtocolError",
    "RL4SysError",
    "RankError",
    "RankLost",
    "RefusalReason",
    "RewardError",
    "RunDirectoryError",
    "SpoolError",
    "StoreEmpty",
    "StoreFileError",
    "TrainingDiverged",
    "TransportError",
    "WeightsError",
    "WorkerDied",
    "restart_command",
]


class RL4SysError(Exception):
    """The base class of all exceptions of this library. Control characters in its text, also from a peer, are escaped."""

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigError(RL4SysError):
    """An invalid configuration key, file or argument.

    Attributes:
        key: The invalid key as the user wrote it, dotted if nested; empty if the file itself is the problem.
        source: The file or object that was read.
    """

    def __init__(self, message: str, *, key: str = "", source: str = "") -> None:
        self.key = key
        self.source = source
        super().__init__(f"{source}: {message}" if source else message)


def config_error(key: str, problem: str) -> ConfigError:
    """Return the error of one key, with the key at the beginning of the message."""
    return ConfigError(f"{key}: {problem}", key=key)


class BadInput(RL4SysError, ValueError):
    """An invalid value, such as a reward, that the host program passed to this library. The value was not stored."""


class ObservationError(BadInput):
    """An observation with the wrong shape or dtype, or with values that are not finite."""


class MaskError(BadInput):
    """An action mask with the wrong shape, or that allows no action."""


class RewardError(BadInput):
    """A reward that is missing, not finite, or too late because its step was already queued for sending or dropped."""


class ActionError(BadInput):
    """An action that another agent chose, that is stored already or comes too late, or that `override` cannot record."""


class DataError(BadInput):
    """Data, indices or priorities that do not fit a data store.

    Attributes:
        key: The path of the invalid part, such as ``observations/camera``; empty if the whole value is invalid.
    """

    def __init__(self, key: str, problem: str) -> None:
        self.key = key
        super().__init__(f"{key}: {problem}" if key else problem)


class Closed(RL4SysError):
    """The use of an object that was already closed."""


class CallError(RL4SysError):
    """A call to a service that returned no result.

    Attributes:
        method: The name of the method.
        address: The address of the server.
    """

    def __init__(self, method: str, address: str, problem: str) -> None:
        self.method, self.address = method, address
        super().__init__(f"{method} at {address}: {problem}")


class CallTimeout(CallError):
    """A call without a reply before its deadline.

    The server may have run the call, or may still be running it.

    Attributes:
        stage: What the caller was waiting for, as text.
        timeout_s: The time limit, in seconds.
    """

    def __init__(self, method: str, address: str, stage: str, timeout_s: float) -> None:
        self.stage, self.timeout_s = stage, timeout_s
        super().__init__(method, address, f"no answer within {timeout_s:g} s (waiting for {stage})")


class CallRefusalReason(StrEnum):
    """The reason for which a server refused to run a call. The server has a counter for each reason."""

    UNKNOWN = "unknown"  # no such method, interface, key or request
    BUSY = "busy"  # the server's queue of calls is full
    EXPIRED = "expired"  # the deadline of the call passed before the server could run it
    TOO_LARGE = "too_large"  # the call is larger than the limit
    INVALID = "invalid"  # the method cannot use this payload
    MISMATCH = "mismatch"  # a configuration field differs between caller and server
    NO_SESSION = "no_session"  # the server has no session of this caller, or no longer has it
    FORBIDDEN = "forbidden"  # no role of this key allows the call
    OCCUPIED = "occupied"  # another caller holds the resource
    RATE = "rate"  # the calls exceed the rate limit
    GONE = "gone"  # the caller's resource no longer exists on the server: start again
    CLOSING = "closing"  # the server is stopping


class CallRefused(CallError):
    """A call that the server refused to run.

    Attributes:
        code: The reason, as a code.
        detail: The reason, as text from the server.
    """

    def __init__(self, method: str, address: str, code: CallRefusalReason, detail: str) -> None:
        self.code, self.detail = code, detail
        super().__init__(method, address, f"refused ({code.value}): {detail}")


class CallFailed(CallError):
    """A call whose callback on the server raised an exception.

    Attributes:
        kind: The name of the exception's class.
        detail: The exception's text.
    """

    def __init__(self, method: str, address: str, kind: str, detail: str) -> None:
        self.kind, self.detail = kind, detail
        super().__init__(method, address, f"the callback raised {kind}: {detail}")


class CallLost(CallError):
    """The error for a call that must run at most once, if the server has lost the caller's session.

    The server was restarted, or it discarded the session, for example because the caller was silent for too long. It is unknown
    whether the call ran, so the call is not sent again.
    """

    def __init__(self, method: str, address: str) -> None:
        super().__init__(method, address, "the server no longer has this session; the call may or may not have run")


class InvalidReply(RL4SysError):
    """An invalid result of a server's callback. The caller receives `CallFailed`."""


class CallbackStuck(RL4SysError):
    """A server's callback that did not return in the time allowed for stopping the server.

    Attributes:
        concurrency_group: The concurrency group of the callback, followed by the name of the method in brackets if the two
            names differ.
    """

    def __init__(self, server: str, concurrency_group: str, timeout_s: float) -> None:
        self.concurrency_group = concurrency_group
        super().__init__(
            f"{server}: the callback of {concurrency_group} still runs after {timeout_s:g} s; its thread ends when it returns"
        )


class PayloadError(RL4SysError, TypeError):
    """A value that cannot be sent. The sender raises this error before it sends anything.

    Attributes:
        path: The position of the value in the payload, such as ``payload['image'][0]``.
        problem: What is wrong with the value.
    """

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path}: {problem}")


class LearnerUnavailable(RL4SysError):
    """A learner that did not reply in time, or that replied but did not let the actor continue in time.

    Attributes:
        address: The learner's address.
        stage: What the actor was waiting for when the time limit passed, as text.
        timeout_s: The time limit, in seconds.
    """

    def __init__(self, address: str, stage: str, timeout_s: float, hint: str = "", *, answers: bool = False) -> None:
        """Create the error. `answers` is True if the learner is connected and answers; `hint` adds a reason and a remedy."""
        self.address = address
        self.stage = stage
        self.timeout_s = timeout_s
        tail = f"; {hint}" if hint else ""
        subject = f"the learner at {address} answers, but did not continue" if answers else f"no learner at {address}"
        super().__init__(f"{subject} within {timeout_s:g} s (waiting for {stage}){tail}")


class PolicyError(RL4SysError):
    """A policy that cannot compute an action, for example because its graph needs more memory than it may use."""


class PolicyStale(RL4SysError):
    """A policy that is older than the limit ``policy_max_age_s``. Raised only with the setting ``on_stale: raise``.

    The age is the time since the learner's last message. Since then, the learner can have published a newer policy.

    Attributes:
        age_s: The age of the policy, in seconds.
        max_age_s: The limit, in seconds.
    """

    def __init__(self, age_s: float, max_age_s: float) -> None:
        self.age_s, self.max_age_s = age_s, max_age_s
        super().__init__(f"the policy was last known to be current {age_s:.1f} s ago; policy_max_age_s is {max_age_s:g}")


class HandshakeRefused(RL4SysError):
    """A handshake that the learner refused.

    Attributes:
        code: The refusal code.
        field: The configuration field whose values differ between actor and learner; empty if there is another reason.
    """

    def __init__(self, code: RefusalReason, reason: str, field: str = "") -> None:
        self.code = code
        self.field = field
        super().__init__(f"the learner refused this actor ({code.value}): {reason}")


def restart_command(client_id: str) -> str:
    """Return the command with which an operator restarts the training of a client."""
    return f"rl4sys-learner client ADDRESS {shlex.quote(client_id)} restart"


class ClientFailed(RL4SysError):
    """A client whose training thread ended with an exception. Other clients continue.

    Attributes:
        client_id: The id of the client.
        error: The exception as the learner reported it, in one line.
    """

    def __init__(self, client_id: str, error: str) -> None:
        self.client_id = client_id
        self.error = error
        super().__init__(f"client {client_id!r} failed on the learner: {error}; restart it with: {restart_command(client_id)}")


class TrainingDiverged(RL4SysError):
    """A training in which several updates in a row gave infinite or NaN values, with different data each time.

    The cause is therefore not the data, but the algorithm or its parameters.

    Attributes:
        updates: The number of updates in a row that were undone.
        reason: The value that was infinite or NaN in the last update, as text.
    """

    def __init__(self, updates: int, reason: str) -> None:
        self.updates, self.reason = updates, reason
        super().__init__(
            f"{updates} updates in a row were undone, and no data was left to train on ({reason}); the weights before them are "
            "kept. A learning rate or max_magnitude may be too high: correct the parameters and restart the client"
        )


class TransportError(RL4SysError):
    """An address that cannot be parsed, bound or connected to, or a socket that cannot be used as requested."""


class AddressInUse(TransportError):
    """An address to which another process, or another socket of this process, is already bound."""

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(
            f"{address} is already in use; stop the process that uses it or choose another port (0 picks a free one)"
        )


class RefusalReason(StrEnum):
    """The reason for which a message, or one segment in the message, was refused. The receiver counts each reason."""

    FRAMES = "frames"  # the message has no frames, or more than the limit
    TOO_LARGE = "too_large"  # a frame, a message or a length is over its limit
    MAGIC = "magic"  # the prefix is not the prefix of this protocol
    VERSION = "version"  # another major version of the protocol
    FEATURE = "feature"  # an unknown must-understand flag, or coded images where Pillow is not installed
    KIND = "kind"  # an unknown message kind
    CHECKSUM = "checksum"  # the checksum is wrong: the bytes changed on the way
    MALFORMED = "malformed"  # the header is not the map that this message kind requires
    DTYPE = "dtype"  # the dtype of a column is not allowed
    SHAPE = "shape"  # dimensions are negative, too many, or do not match the number of bytes
    SPEC = "spec"  # columns do not fit the client's spaces
    RANGE = "range"  # a number is out of its range
    DIRECTION = "direction"  # only the other side may send this message
    STARTING = "starting"  # the client's learner thread is starting: the learner answers the handshake when it is ready
    NO_SESSION = "no_session"  # data before a handshake: send HELLO again
    FENCED = "fenced"  # another start of this actor is on record; if the reply names its incarnation, use a higher one
    CONFLICT = "conflict"  # another start of this actor has a session
    EXPIRED = "expired"  # the actor was silent beyond its lease, and its stream was discarded: use a new incarnation
    GAP = "gap"  # segments before this one were not received: resend from the expected sequence number
    EQUIVOCATION = "equivocation"  # this sequence number had different content before
    FORBIDDEN = "forbidden"  # no role of this key allows this
    IDENTITY = "identity"  # the key is not valid for this client or actor
    MISMATCH = "mismatch"  # a configuration field differs from the learner's
    CONFIG = "config"  # the learner cannot use this configuration
    QUOTA = "quota"  # a limit of the session, the user or the learner is exceeded
    FAILED = "failed"  # the client's learner thread has failed
    UPSTREAM = "upstream"  # the learner, or the relay, behind this relay does not answer or refuses
    CLOSING = "closing"  # the learner is shutting down
    INTERNAL = "internal"  # a bug on the side that refuses; its log has the traceback


class ProtocolError(RL4SysError):
    """A message that is invalid, or that its sender is not allowed to send.

    Attributes:
        code: The reason, as a code.
        detail: The reason, as text.
        incarnation: With the code ``FENCED``, the actor's incarnation in the learner's record, if the actor may try again with
            a higher one; else 0.
    """

    def __init__(self, code: RefusalReason, detail: str, *, incarnation: int = 0) -> None:
        self.code = code
        self.detail = detail
        self.incarnation = incarnation
        super().__init__(f"{code.value}: {detail}")


class WeightsError(RL4SysError):
    """A weight diff or snapshot that does not fit the policy, or whose digest is wrong.

    Attributes:
        reason: One of the following.

            - ``payload``: The bytes are damaged or malformed.
            - ``size``: The weights have the size of another policy.
            - ``gap``: The diff applies to another version than the current one.
            - ``digest``: The resulting weights differ from the learner's.
            - ``finite``: A weight is infinite or NaN.
    """

    def __init__(self, message: str, *, reason: str = "payload") -> None:
        self.reason = reason
        super().__init__(message)


class MemoryExceeded(RL4SysError):
    """A learner's or relay's process that uses more memory than its limit, even after it closed all connections.

    Attributes:
        resident_bytes: The resident memory of the process, in bytes.
        limit_bytes: The memory limit, in bytes.
    """

    def __init__(self, resident_bytes: int, limit_bytes: int) -> None:
        self.resident_bytes, self.limit_bytes = resident_bytes, limit_bytes
        super().__init__(
            f"the process uses {resident_bytes >> 20} MiB, its limit is {limit_bytes >> 20} MiB (max_memory_bytes), and ending "
            "all connections did not help. Acknowledged segments are safe in the learner's journal: start the process again. If "
            "no peer floods it, its clients need more memory: raise --max-memory, or lower buffer_size and batch sizes"
        )


class WorkerDied(RL4SysError):
    """The error for a thread of this library that ended with an exception. That exception is the ``__cause__``."""


class RunDirectoryError(RL4SysError):
    """A run directory that cannot be created or written."""


class RankError(RL4SysError):
    """A rank of a client that could not be started, has ended or does not answer. The client's learner thread then ends."""


class RankLost(RankError):
    """A rank that was killed or does not answer. The learner starts the client again from its checkpoint."""


class CheckpointError(RL4SysError):
    """A checkpoint that cannot be written or read, or that is damaged.

    Attributes:
        path: The file or folder; or the client, or the part of the training state, that has the problem.
        damaged: True if the files on disk differ from what was written. False for another problem, such as no permission, no
            disk space or another version of the library; the files can then be intact.
    """

    def __init__(self, path: object, problem: str, *, damaged: bool = False) -> None:
        self.path = str(path)
        self.damaged = damaged
        super().__init__(f"{path}: {problem}")


class PolicyFolderError(RL4SysError):
    """A policy folder that is missing, damaged, too large or of another format, or that cannot be written.

    Attributes:
        path: The file or folder.
    """

    def __init__(self, path: object, problem: str) -> None:
        self.path = str(path)
        super().__init__(f"{path}: {problem}")


class JournalError(RL4SysError):
    """A journal that cannot be opened or read.

    Attributes:
        path: The path of the journal's file.
    """

    def __init__(self, path: str, problem: str, remedy: str) -> None:
        self.path = path
        super().__init__(f"{path}: {problem}; {remedy}")


class JournalLost(JournalError):
    """A journal that lacks segments which the learner has acknowledged.

    The file ``journal.marks`` or a checkpoint shows that these segments were acknowledged. No file was changed. To start the
    learner without the missing segments, use ``resume: accept-loss``. The learner then counts them as lost.

    Attributes:
        segments: A dict from the id of each affected client to the number of its missing segments.
    """

    def __init__(self, path: str, problem: str, remedy: str, segments: Mapping[str, int]) -> None:
        self.segments = dict(segments)
        super().__init__(path, problem, remedy)


class SpoolError(RL4SysError):
    """An actor's spool that cannot be used.

    Another process uses the spool, it cannot be read or written, or it belongs to another client, actor or version of the
    library.
    """


class StoreEmpty(RL4SysError):
    """The error for sampling from a data store that has nothing to sample. Try again after an insert."""


class StoreFileError(RL4SysError):
    """Files of a data store that cannot be opened or written, are in use or damaged, or belong to something else.

    Attributes:
        path: The file or folder.
    """

    def __init__(self, path: object, problem: str) -> None:
        self.path = str(path)
        super().__init__(f"{path}: {problem}")
