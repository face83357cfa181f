"""Keys, rights and quotas: access, the reasons of refusals, and changes without a restart. No user loses data."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness.keys import KeyRing
from kit import play, until

from rl4sys_zmq import RL4SysAgent
from rl4sys_zmq.errors import ConfigError, HandshakeRefused, LearnerUnavailable, WorkerDied
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.security.authenticator import AccessListWatcher
from rl4sys_zmq.security.keys import UserKeys, new_key_pair, write_user_keys
from rl4sys_zmq.testing import ChaosProxy, NetworkFaults
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.weights import WeightsHeader
from rl4sys_zmq.wire.messages import Bye, FetchWeights, Heartbeat, Refused, StatusReply, StatusRequest, Welcome

from .conftest import PATIENCE_S, SOAK, Spawn, agent_options, check_law, join
from .siege import ALGORITHM, STEPS, AtLeast, Attacker, Siege, hello, submit

pytestmark = pytest.mark.timeout(600 if SOAK else 120)

REVOKED_S = 1.0
HUNG_UP = ("connections.handshake_failed.no_detail",)
"""The counter for an actor that is refused. It closes its sockets, perhaps in the middle of its next handshake."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timers that are not tested. The long tier keeps their values."""
    if not SOAK:
        monkeypatch.setattr("rl4sys_zmq.learner.gateway.gateway.BEACON_S", 0.05)
        monkeypatch.setattr("rl4sys_zmq.security.authenticator.POLL_S", 0.02)
        monkeypatch.setattr("rl4sys_zmq.delivery.session.REFUSED_RETRY_S", 0.1)


@pytest.fixture
def siege(tmp_path: Path, stack: ExitStack) -> Siege:
    return Siege(tmp_path, stack, keys=True)


def ring(siege: Siege) -> KeyRing:
    assert siege.ring is not None
    return siege.ring


def reload(siege: Siege) -> None:
    loads = siege.status()["security"]["loads"]
    ring(siege).write()
    until(lambda: siege.status()["security"]["loads"] > loads, "the new list")


def settled(agent: RL4SysAgent, refused: int = 0) -> dict[str, Any]:
    """Wait until the learner has all finished segments of the actor, and check its law. Return its statistics."""
    until(lambda: not agent.stats()["error"], "the end of a refusal")
    agent.flush(PATIENCE_S)
    stats = agent.stats()
    check_law(stats)
    assert stats["accepted"] + refused == stats["submitted"] > 0, stats
    return stats


def refuses(code: str, match: str, siege: Siege, name: str, **options: Any) -> None:
    with pytest.raises(HandshakeRefused, match=match) as caught:
        siege.agent(name, connect_timeout_s=PATIENCE_S, **options)
    assert caught.value.code == code


def test_a_key_that_is_not_listed_is_named(siege: Siege) -> None:
    refuses("forbidden", "does not accept our key; have it listed", siege, "nobody")
    refuses("forbidden", "does not accept our key; have it listed", siege, "late")
    siege.check(
        {
            "connections.handshake_failed.auth": AtLeast(2),
            "security.denied.unlisted": AtLeast(1),
            "security.denied.expired": AtLeast(1),
        },
        besides=HUNG_UP,
    )


def test_a_wrong_learner_key_is_named(siege: Siege) -> None:
    path = ring(siege).folder / "astray.keys"
    write_user_keys(path, "astray", UserKeys(ring(siege).pair("mallory"), new_key_pair().public))
    said = ""
    for timeout_s in (0.3, 1.0, 10.0):  # the actor tries until the time is over, and then reports what it saw
        if "copy learner.public again" not in said:
            with pytest.raises(LearnerUnavailable) as caught:
                siege.agent(keys=path, connect_timeout_s=timeout_s)
            said = str(caught.value)
    assert "copy learner.public again" in said
    siege.check({"connections.handshake_failed.protocol": AtLeast(1)}, besides=HUNG_UP)


def test_keys_on_one_side_only_are_named(siege: Siege, stack: ExitStack) -> None:
    refuses("forbidden", "one side uses keys and the other does not", siege, "good", keys=None)
    open_learner = stack.enter_context(Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None)))
    with pytest.raises(HandshakeRefused, match="one side uses keys and the other does not"):
        join(open_learner.address, algorithm_name=ALGORITHM, keys=ring(siege).file("good"))
    siege.check({"connections.handshake_failed.protocol": AtLeast(1)}, besides=HUNG_UP)


def test_rights_are_named(siege: Siege) -> None:
    refuses("forbidden", "not have the role submit", siege, "reader")
    refuses("forbidden", "not have the role read_weights", siege, "writer", explore=False, report_returns=False)
    refuses("forbidden", "not have the role submit", siege, "operator")
    refuses("identity", "for client 'lab'", siege, "foreign")
    refuses("identity", "belongs to another key", siege, "mallory", actor_id="good")
    reader = siege.agent("reader", explore=False, report_returns=False)
    reader.wait_version(reader.version + 2, PATIENCE_S)
    siege.check({"refused.forbidden": AtLeast(3), "refused.identity": AtLeast(2)})


def test_status_is_for_admins(siege: Siege) -> None:
    mallory = siege.attacker("mallory")
    mallory.say(StatusRequest())
    rights = mallory.hear(StatusReply).report
    assert set(rights) == {"limited", "client_ids", "version", "pub", "clients"} and not any(rights["clients"].values())
    operator = siege.attacker("operator")
    operator.say(StatusRequest())
    report = operator.hear(StatusReply).report
    assert report["security"]["listed"] == len(ring(siege).peers) and "lab" in report["clients"]
    for message in (Heartbeat(0), FetchWeights(0, 0), Bye()):
        assert operator.refused(message) == "no_session"
    siege.check({"refused.no_session": 3})


def test_an_admin_of_one_client_sees_its_status_alone(siege: Siege) -> None:
    siege.agent("mallory", client_id="wide", actor_id="other")
    for ids, seen in ((["lab"], {"lab"}), (["none"], set()), (["*"], {"lab", "wide"})):
        ring(siege).allow("warden", ["admin"], ids)
        reload(siege)
        warden = siege.attacker("warden")
        warden.say(StatusRequest())
        assert set(warden.hear(StatusReply).report["clients"]) == seen


def test_a_restarted_learner_knows_whose_an_actor_is(tmp_path: Path, stack: ExitStack) -> None:
    with ExitStack() as first:
        siege = Siege(tmp_path, first, keys=True, run_dir=tmp_path / "run")
        victim = siege.attacker("victim")
        victim.join(actor_id="theirs", spooled=True)
        victim.send(submit(0))
        victim.acked(lambda ack: ack.durable == 1)
        keys = ring(siege)
    learner = stack.enter_context(Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=tmp_path / "run", keys=keys.folder)))
    attacker = Attacker(learner.address, keys.client("mallory"))
    stack.callback(attacker.close)
    attacker.say(hello(actor_id="theirs", incarnation=99, origin=5, spooled=True))
    answer = until(lambda: attacker.listen(PATIENCE_S), "an answer")
    assert isinstance(answer, Refused) and answer.code == "identity"


def streams(siege: Siege, name: str, episodes: int, steps: int = 3, **options: Any) -> RL4SysAgent:
    agent = siege.agent(name, **options)
    for _ in range(episodes):
        play(agent, steps)
    return agent


@pytest.mark.parametrize("quota", [{"messages_per_s": 2}, {"bytes_per_s": 1_000}], ids=["messages", "bytes"])
def test_who_sends_too_much_waits_and_loses_nothing(siege: Siege, quota: dict[str, Any]) -> None:
    ring(siege).allow("hasty", quota=quota)
    reload(siege)
    agent = streams(siege, "hasty", 80)
    until(lambda: agent.stats()["counters"].get("refused_by_learner.quota"), "a refusal")
    stats = settled(agent)
    assert stats["dropped_at_source"] == stats["in_doubt"] == 0 and stats["error"] == ""
    moved = siege.moved()
    siege.check({key: AtLeast(n) for key, n in moved.items() if key in ("refused.quota", "refused.gap", "lab.duplicate")})
    assert moved["refused.quota"] >= 1


def test_actors_of_a_key_are_counted(siege: Siege) -> None:
    first = siege.agent("crowded")
    refuses("quota", "its quota is 1", siege, "crowded")
    first.close()
    second = siege.agent("crowded", connect_timeout_s=PATIENCE_S)
    play(second, 3)
    settled(second)
    siege.check({"refused.quota": AtLeast(1)}, besides=["refused.no_session"])  # actors that end may have messages on their way


def test_fetches_are_counted(siege: Siege) -> None:
    """A peer that fetches again and again is refused. An actor of the same key that needs weights gets them a little later."""
    ring(siege).allow("fetcher", quota={"fetches_per_min": 60})
    reload(siege)
    agent = siege.agent("fetcher")
    attacker = siege.attacker("fetcher")
    attacker.join(actor_id="another")
    for _ in range(10):
        attacker.say(FetchWeights(0, 0))
    assert attacker.hear(Refused).code == "quota"
    agent.wait_version(agent.version + 3, PATIENCE_S)
    play(agent, 3)
    settled(agent)
    siege.check({"refused.quota": AtLeast(5)})


def test_a_key_is_added_for_an_actor_that_waits(siege: Siege, tmp_path: Path) -> None:
    """The actor starts from its cache. It is admitted as soon as its key is listed."""
    ring(siege).allow("patient")
    reload(siege)
    options = {"policy_cache": tmp_path / "policy"}
    siege.agent("patient", **options).close()
    del ring(siege).peers["patient"]
    reload(siege)
    agent = siege.agent("patient", **options)
    play(agent, 3)
    until(lambda: "have it listed" in agent.stats()["error"], "the refusal to show")
    ring(siege).allow("patient")
    reload(siege)
    settled(agent)
    assert agent.stats()["error"] == ""


def test_a_key_is_revoked_while_its_actor_streams(siege: Siege) -> None:
    ring(siege).allow("leaver")
    reload(siege)
    spy = siege.attacker("leaver")
    welcome = spy.join(actor_id="spy", submits=False)
    subscriber = siege.subscriber("leaver")
    subscriber.subscribe(b"W" + welcome.topic)
    until(subscriber.recv, "a diff")
    leaver = siege.agent("leaver", actor_id="leaver")
    play(leaver, STEPS)
    settled(leaver)
    del ring(siege).peers["leaver"]
    began = time.monotonic()
    ring(siege).write()
    refusals: list[str] = []

    def refused() -> bool:
        spy.say(Heartbeat(0))
        message = spy.listen(0.02)
        refusals.extend([message.code] if isinstance(message, Refused) else [])
        return "forbidden" in refusals

    until(refused, "the refusal")
    took = time.monotonic() - began
    assert not SOAK or took < REVOKED_S, f"refused after {took:.2f} s"
    until(lambda: isinstance(leaver._io.host.credit_gate.error, HandshakeRefused), "the actor to hear of it")
    assert "no longer in the list" in leaver.stats()["error"]
    accepted = siege.status()["clients"]["lab"]["actors"]["leaver"]["received"]
    last = siege.status()["clients"]["lab"]["version"]
    play(leaver, 3)
    siege.good.served(3)
    while (diff := subscriber.recv()) is not None:  # diffs that were published before may still be on their way
        assert WeightsHeader.unpack(diff[1]).new_version <= last, "it still hears the diffs"
    assert siege.status()["clients"]["lab"]["actors"]["leaver"]["received"] == accepted
    ring(siege).allow("leaver")
    reload(siege)
    settled(leaver)
    good_goes_on(siege)


def good_goes_on(siege: Siege) -> None:
    """Check that the good client, which had to send HELLO again, has lost nothing."""
    siege.good.served(2)
    siege.good.stop()
    stats = settled(siege.good.agent)
    assert stats["submitted"] == siege.good.rounds and stats["dropped_at_source"] == stats["in_doubt"] == 0


def test_a_key_is_replaced_under_its_name(siege: Siege) -> None:
    """The old key is refused, although it is connected and the name is still listed."""
    old = siege.attacker("victim")
    old.join(actor_id="theirs")
    ring(siege).new_pair("victim")
    reload(siege)
    assert until(lambda: old.refused(hello(actor_id="theirs")) == "forbidden", "the refusal")
    siege.attacker("victim").join(actor_id="theirs", incarnation=6)
    good_goes_on(siege)


def test_a_mistake_in_the_list_changes_nothing(siege: Siege) -> None:
    path = ring(siege).list_file
    good = path.read_text()
    for text, words in (
        ("[good\n", "not TOML"),
        (good.replace("client_ids", "clientids", 1), "did you mean 'client_ids'"),
        (good + f"[twin]\nkey = '{ring(siege).pair('good').public}'\nclient_ids = ['*']\nroles = []\n", "the same as"),
        ("a = " + "[" * 5_000, "not TOML"),
        ("", "the file is empty; to remove all users, leave a comment in it"),
        (" \n", "the file is empty"),
        (good.replace("submit", "sudo", 1), "sudo"),
    ):
        ring(siege).replace(text)
        until(lambda w=words: w in siege.status()["security"]["problem"], f"{words!r} in the status")  # type: ignore[misc]
        assert siege.status()["security"]["loads"] == 1 and siege.status()["security"]["alive"]
        siege.attacker("mallory").join(actor_id=f"still-{words[:3].strip()}")
        assert siege.attacker("nobody").failure().name == "handshake_failed.auth"
    path.unlink()
    until(lambda: "cannot be read" in siege.status()["security"]["problem"], "the missing file in the status")
    siege.attacker("mallory").join(actor_id="and-still")
    ring(siege).allow("new")
    reload(siege)
    assert siege.status()["security"]["problem"] == ""
    siege.attacker("new").join(actor_id="new")
    siege.check({"connections.handshake_failed.auth": 7, "security.denied.unlisted": 7})


def test_a_list_without_users_is_a_comment(siege: Siege) -> None:
    ring(siege).replace("# no users\n")
    until(lambda: siege.status()["security"]["listed"] == 0, "the empty list")
    assert siege.status()["security"]["problem"] == ""
    assert siege.attacker("mallory").failure().name == "handshake_failed.auth"


def test_a_list_that_is_being_written_is_not_in_force(siege: Siege) -> None:
    """An editor truncates the file first. An empty list is valid, and would remove all users."""
    text = ring(siege).list_file.read_text() + "\n# changed\n"
    pause = threading.Event()
    with ring(siege).list_file.open("w") as file:
        for line in text.splitlines(keepends=True):
            file.write(line)
            file.flush()
            pause.wait(0.002)
    until(lambda: siege.status()["security"]["loads"] == 2, "the new list")
    siege.check({})


def expired(siege: Siege) -> Socket:
    """Return the subscriber of a key that has expired while it was connected."""
    ring(siege).allow("brief", expires="2999-01-01")
    reload(siege)
    attacker = siege.attacker("brief")
    welcome = attacker.join(actor_id="brief")
    subscriber = siege.subscriber("brief")
    subscriber.subscribe(b"W" + welcome.topic)
    until(subscriber.recv, "a diff")
    soon = time.time() + 0.2
    ring(siege).allow("brief", expires=time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(soon)) + f".{int(soon % 1 * 1000):03}Z")
    reload(siege)
    until(lambda: time.time() > soon, "the time")
    until(lambda: attacker.refused(Heartbeat(0)) == "forbidden", "the refusal")
    return subscriber


def test_a_key_expires_while_its_actor_streams(siege: Siege) -> None:
    """It also hears no more diffs: the gateway checks the time every second."""
    subscriber = expired(siege)
    assert siege.attacker("brief").failure().name == "handshake_failed.auth"
    assert siege.status()["security"]["denied.expired"] >= 1

    def deaf() -> bool:
        while subscriber.recv() is not None:
            pass
        siege.good.served(3)
        return subscriber.recv() is None

    until(deaf, "the end of the diffs")
    good_goes_on(siege)


def test_a_check_that_stands_still_lets_nobody_in(siege: Siege, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connected peers are not affected, and no new peer gets in."""
    asked, answer = threading.Event(), threading.Event()
    check = AccessListWatcher.check

    def slow(self: AccessListWatcher, credentials: Any) -> Any:
        asked.set()
        answer.wait(PATIENCE_S)
        return check(self, credentials)

    # The domain has the bound method, so the check of the list is made slow.
    authenticator = siege.learner._authenticator
    assert authenticator is not None
    monkeypatch.setattr(authenticator._domain, "check", slow.__get__(authenticator.watcher))
    late = siege.attacker("mallory")
    late.say(hello())
    assert asked.wait(PATIENCE_S)
    siege.good.served(2)
    assert late.listen(0.1) is None
    if SOAK:
        assert (failure := late.failure()).name == "handshake_failed.no_detail" and failure.detail == 11
    answer.set()
    late.hear(Welcome)
    siege.good.served(2)


@pytest.mark.parametrize(
    ("broken", "thread"), [("zap._ZapThread._serve", "rl4sys-zap"), ("authenticator.load_access", "rl4sys-access")]
)
def test_the_death_of_a_thread_that_checks_keys_is_told(
    siege: Siege, monkeypatch: pytest.MonkeyPatch, broken: str, thread: str
) -> None:
    """Connected peers stay connected."""
    monkeypatch.setattr(f"rl4sys_zmq.security.{broken}", lambda *given: 1 / 0)
    ring(siege).write()
    siege.attacker("mallory").say(hello())
    until(lambda: not siege.status()["security"]["alive"], "the death to show")
    with pytest.raises(WorkerDied, match=thread):
        siege.learner.raise_if_dead()
    siege.good.served(2)


def test_other_machines_need_keys_or_insecure(tmp_path: Path, stack: ExitStack) -> None:
    bind = "tcp://0.0.0.0:0"
    with pytest.raises(ConfigError, match="give --keys DIR"):
        LearnerConfig(bind=bind, run_dir=None)
    with pytest.raises(ConfigError, match="pub: other machines"):
        LearnerConfig(bind="tcp://127.0.0.1:0", pub=bind, run_dir=None)
    keys = KeyRing(tmp_path / "keys")
    keys.allow("good")
    keys.write()
    for options, file in (({"keys": keys.folder}, keys.file("good")), ({"insecure": True}, None)):
        learner = stack.enter_context(Learner(LearnerConfig(bind=bind, run_dir=None, **options)))
        address = learner.address.replace("0.0.0.0", "127.0.0.1")
        agent = stack.enter_context(join(address, algorithm_name=ALGORITHM, keys=file))
        play(agent, STEPS)
        agent.wait_version(1, PATIENCE_S)
        assert (learner.status()["security"] is None) == (file is None)


@pytest.mark.parametrize(
    ("spoil", "remedy"),
    [(lambda path: path.chmod(0o644), "chmod 600"), (Path.unlink, "create the keys first")],
    ids=["mode", "missing"],
)
def test_a_key_file_that_is_wrong(tmp_path: Path, spoil: Callable[[Path], None], remedy: str) -> None:
    """The start of a learner and of an actor fails with one line that names the file and the remedy."""
    keys = KeyRing(tmp_path / "keys")
    keys.allow("good")
    keys.write()
    actor, learner = keys.file("good"), keys.folder / "learner.secret"
    for path in (actor, learner):
        spoil(path)
    with pytest.raises(ConfigError, match=remedy) as caught:
        Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, keys=keys.folder)).start()
    assert str(learner) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=remedy) as caught:
        join("tcp://127.0.0.1:1", algorithm_name=ALGORITHM, keys=actor)
    assert str(actor) in str(caught.value) and "\n" not in str(caught.value)


def test_a_list_that_is_missing_or_wrong(tmp_path: Path) -> None:
    keys = KeyRing(tmp_path / "keys")
    config = LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, keys=keys.folder)
    with pytest.raises(ConfigError, match="--user NAME"):
        Learner(config).start()
    keys.list_file.write_text("[good]\nroles = []")
    with pytest.raises(ConfigError, match=r"good\.key is missing"):
        Learner(config).start()
    keys.list_file.write_text(f"[good]\nkey = '{new_key_pair().public}'")
    with pytest.raises(ConfigError, match=r"good\.client_ids is missing"):
        Learner(config).start()
    with pytest.raises(ConfigError, match=r"learner\.secret"):
        Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, keys=tmp_path / "nowhere")).start()


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(True),
        pytest.param(False, marks=[pytest.mark.soak, pytest.mark.skipif(not SOAK, reason="takes 6 s: RL4SYS_SOAK=1")]),
    ],
    ids=["cut", "left"],
)
def test_corrupted_bytes_are_rejected(tmp_path: Path, seed: int, spawn: Spawn, cut: bool) -> None:
    """CURVE rejects them before the library receives them. The connection is made again, and nothing is lost.

    The test uses separate processes: libzmq 4.3.5 aborted one (``!_io_error``) at its next heartbeat, if the connection was
    reset after a message that could not be decrypted, on a monitored socket. The monitor event replaces EPROTO in errno, and
    the engine is stopped instead of ended.
    """
    keys = KeyRing(tmp_path / "keys")
    keys.allow("good")
    keys.write()
    learner = spawn("learner", {"bind": "tcp://127.0.0.1:0", "config": {"keys": str(keys.folder)}})
    with ChaosProxy(learner.hear()["address"], seed=seed) as proxy:
        actor = spawn("guest", {"agent": agent_options(proxy.address, keys=str(keys.file("good"))), "ending": "close"})
        actor.hear()
        actor.ask("play", 5)
        actor.ask("flush")
        proxy.faults = NetworkFaults(corrupt_probability=0.5)
        until(lambda: actor.ask("play", 1) or proxy.counters.get("corrupted") >= 1, "corrupted bytes", every_s=0.05)
        proxy.faults = NetworkFaults()
        if cut:
            proxy.cut()
            threading.Event().wait(2.5 if SOAK else 0.0)  # libzmq's heartbeats came every 2 s
            for child in (learner, actor):
                if child.process.poll() is not None:
                    child.end(-6, expect="")
                    pytest.fail(f"{child.name} was aborted: {child.errors[:200]}")
        began = time.monotonic()
        actor.ask("flush")
        assert not SOAK or time.monotonic() - began < 10.0
        stats = actor.ask("stats")
        check_law(stats)
        assert stats["accepted"] == stats["submitted"] > 5 and stats["in_doubt"] == 0
        counters = learner.ask("status")["counters"]
        never = ("checksum", "magic", "malformed", "kind", "dtype", "shape", "spec")
        assert not [code for code in never if counters.get(f"refused.{code}")]
        actor.end()
        learner.end()


def test_a_sidecar_has_the_keys(siege: Siege) -> None:
    agent = siege.agent("mallory", sidecar=True, actor_id="beside")
    play(agent, STEPS)
    agent.wait_version(agent.version + 2, PATIENCE_S)
    settled(agent)
    assert agent.digest == siege.learner.digest("lab", agent.version)
