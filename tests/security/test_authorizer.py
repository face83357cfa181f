"""Authorization: one object serves learners and services, and refuses with a code and a text."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.security.access import AccessList, Quota, User
from rl4sys_zmq.security.authorizer import Authorizer
from rl4sys_zmq.wire.messages import Hello

NOW = 100.0


def user(name: str = "edge-7", **fields: Any) -> User:
    given: dict[str, Any] = {
        "name": name,
        "key": f"key of {name}",
        "client_ids": frozenset({"luna"}),
        "roles": frozenset({"submit", "read_weights"}),
        "expires_unix_s": None,
        "quota": Quota(),
    }
    return User(**(given | fields))


def access(*users: User) -> AccessList:
    return AccessList({u.name: u for u in users}, {u.key: u for u in users})


def refused(check: Callable[[], object]) -> tuple[RefusalReason, str]:
    with pytest.raises(ProtocolError) as caught:
        check()
    return caught.value.code, caught.value.detail


def hello(client_id: str = "luna", *, submits: bool = True) -> Hello:
    return Hello(client_id, "actor", 1, 0, 0, 0, submits=submits)


def test_without_an_access_list_everything_is_allowed() -> None:
    authorizer = Authorizer(None)
    assert authorizer.admit("any key", 1 << 40, NOW) is None
    authorizer.check_role(None, "admin")
    authorizer.check_client(None, "luna")
    authorizer.check_hello(None, hello(), "another", 1000)
    authorizer.check_fetch(None, NOW)
    authorizer.check_steps(None, [1 << 40])
    assert authorizer.may_read("any key") and authorizer.may_read("any key", "luna")
    assert authorizer.lapsed(time.time()) == set()


def test_a_message_has_the_user_of_its_key() -> None:
    edge, over = user(), user("over", expires_unix_s=time.time() - 1)
    authorizer = Authorizer(access(edge, over))
    assert authorizer.admit(edge.key, 10, NOW) is edge
    assert refused(lambda: authorizer.admit("another key", 10, NOW))[0] is RefusalReason.FORBIDDEN
    assert refused(lambda: authorizer.admit(over.key, 10, NOW)) == (RefusalReason.FORBIDDEN, "the key of over has expired")


def test_roles_and_client_ids_are_refused_with_their_own_codes() -> None:
    edge, every = user(), user("every", client_ids=None, roles=frozenset({"call"}))
    authorizer = Authorizer(access(edge, every))
    authorizer.check_role(edge, "submit")
    assert refused(lambda: authorizer.check_role(edge, "admin")) == (
        RefusalReason.FORBIDDEN,
        "the key of edge-7 does not have the role admin",
    )
    authorizer.check_client(edge, "luna")
    authorizer.check_client(every, "mars")
    code, detail = refused(lambda: authorizer.check_client(edge, "mars"))
    assert (code, detail) == (RefusalReason.IDENTITY, "the key of edge-7 is not valid for client 'mars'")


@pytest.mark.parametrize(
    ("key", "client_id", "expected"),
    [
        ("key of edge-7", "luna", True),
        ("key of edge-7", "mars", False),
        ("key of edge-7", None, True),
        ("key of caller", None, False),
        ("key of over", None, False),
        ("key of over", "luna", False),
        ("another key", None, False),
    ],
)
def test_who_may_subscribe(key: str, client_id: str | None, expected: bool) -> None:
    caller, over = user("caller", roles=frozenset({"call"})), user("over", expires_unix_s=1.0)
    assert Authorizer(access(user(), caller, over)).may_read(key, client_id) is expected


@pytest.mark.parametrize(
    ("message", "owner", "live", "code"),
    [
        (hello(), "", 0, None),
        (hello(), "edge-7", 1, None),
        (hello("mars"), "", 0, RefusalReason.IDENTITY),
        (hello(), "another", 0, RefusalReason.IDENTITY),
        (hello(submits=False), "", 0, RefusalReason.FORBIDDEN),
        (hello(), "", 2, RefusalReason.QUOTA),
    ],
)
def test_which_actor_may_join(message: Hello, owner: str, live: int, code: RefusalReason | None) -> None:
    edge = user(roles=frozenset({"submit"}), quota=Quota(actors=2))
    authorizer = Authorizer(access(edge))
    if code is None:
        authorizer.check_hello(edge, message, owner, live)
    else:
        assert refused(lambda: authorizer.check_hello(edge, message, owner, live))[0] is code


def test_rates_are_those_of_the_user_and_come_back_with_time() -> None:
    edge = user(quota=Quota(messages_per_s=1, bytes_per_s=1e6, fetches_per_min=60, segment_steps=10))
    authorizer = Authorizer(access(edge, user("other")))
    for _ in range(2):  # the quota of two seconds
        authorizer.admit(edge.key, 10, NOW)
    assert refused(lambda: authorizer.admit(edge.key, 10, NOW)) == (RefusalReason.QUOTA, "more than 1 messages/s from edge-7")
    authorizer.admit("key of other", 10, NOW)
    authorizer.admit(edge.key, 2_000_000, NOW + 1)
    assert refused(lambda: authorizer.admit(edge.key, 1_500_000, NOW + 2))[0] is RefusalReason.QUOTA
    for _ in range(2):
        authorizer.check_fetch(edge, NOW)
    assert refused(lambda: authorizer.check_fetch(edge, NOW)) == (RefusalReason.QUOTA, "more than 60 fetches/min from edge-7")
    authorizer.check_steps(edge, [10, 3])
    authorizer.check_steps(edge, [])
    assert refused(lambda: authorizer.check_steps(edge, [3, 11]))[0] is RefusalReason.QUOTA


@pytest.mark.parametrize(
    ("after", "loses"),
    [
        (user(), False),
        (user(client_ids=None), False),
        (user(client_ids=frozenset({"luna", "mars"})), False),
        (user(client_ids=frozenset({"mars"})), True),
        (user(key="a new key"), True),
        (user(roles=frozenset({"submit"})), True),
        (user("renamed", key="key of edge-7"), True),
    ],
)
def test_a_new_list_says_who_may_read_less(after: User, loses: bool) -> None:
    authorizer = Authorizer(access(user()))
    assert authorizer.replace(access(after)) == ({"edge-7"} if loses else set())
    assert authorizer.admit(after.key, 1, NOW) is after


def test_a_new_list_begins_new_rates() -> None:
    edge = user(quota=Quota(messages_per_s=0.5))
    authorizer = Authorizer(access(edge))
    authorizer.admit(edge.key, 1, NOW)
    assert refused(lambda: authorizer.admit(edge.key, 1, NOW))[0] is RefusalReason.QUOTA
    authorizer.replace(access(edge))
    authorizer.admit(edge.key, 1, NOW)


def test_a_key_that_expires_is_named_once() -> None:
    authorizer = Authorizer(access(user(expires_unix_s=50.0), user("writes", expires_unix_s=50.0, roles=frozenset({"submit"}))))
    assert authorizer.lapsed(49.0) == set()
    assert authorizer.lapsed(50.0) == {"edge-7"}
    assert authorizer.lapsed(51.0) == set()
