"""The page's server: what it tells of learners that are well, silent, restarted or foreign, and whom it tells."""

import itertools
import math
from typing import Any

import pytest
from ops.test_report import NOW, actor, client, report

from rl4sys_zmq.errors import AddressInUse, ConfigError, TransportError
from rl4sys_zmq.web.views import MAX_CHANGES, MAX_POINTS, PAGE_ROWS, Sparklines

from .page_kit import get, serving

LAB = "lab:50051"
TOKEN = "a-token-of-the-test"


def metrics(step: int, value: float, client_id: str = "luna") -> dict[str, Any]:
    scalars = {"charts/episodic_return": value, "losses/policy_loss": 0.5}
    return {"t": NOW + step, "event": "metrics", "client_id": client_id, "step": step, "update": step, "scalars": scalars}


def test_the_status_has_the_figures_problems_and_curve_of_each_client(stand_in: Any) -> None:
    lab = stand_in(report=report(clients={"luna": client(), "sol": client(state="failed", error="it broke", actors={})}))
    lab.records += [metrics(step, 2.0 * step) for step in range(3)]
    lab.records += [{"t": NOW, "event": "parameters_changed", "client_id": "luna", "changes": {"gamma": [0.9, 0.8]}}]
    with serving([LAB]) as url:
        lab.looked_at()
        (learner,) = get(f"{url}/api/status").json["learners"]
        about = get(f"{url}/api/client?learner={LAB}&client=luna").json
        assert get(f"{url}/readyz").status == 503
    assert learner["error"] == ""
    assert learner["clients"]["luna"]["cells"]["return"] == "-475.2"
    assert "it broke" in learner["clients"]["sol"]["problems"][0]
    assert learner["curves"]["luna"]["points"] == [[0, 0.0], [1, 2.0], [2, 4.0]]
    assert [change["event"] for change in learner["changes"]] == ["parameters_changed"]
    assert about["verdicts"]["quarantined"] == 3
    assert "actors" not in about


def test_actors_come_in_pages_with_the_connected_ones_first(stand_in: Any) -> None:
    actors = {f"edge-{n % 7}.{n}-0a0b": actor(live=n % 10 > 0, accepted_steps=n, silent_s=n / 10) for n in range(1000)}
    lab = stand_in(report=report(clients={"luna": client(actors=actors, actors_total=1200, actors_live=900)}))
    with serving([LAB]) as url:
        lab.looked_at()
        path = f"{url}/api/actors?learner={LAB}&client=luna"
        first, last, beyond = (get(f"{path}&page={page}&sort=accepted_steps").json for page in (0, 39, 10**6))
        by_name = get(f"{path}&sort=actor").json["rows"]
        wrong = get(f"{path}&sort=colour")
        assert len(get(f"{url}/api/status").text) < 10_000
    assert [row["accepted_steps"] for row in first["rows"][:3]] == [999, 998, 997]
    assert len(first["rows"]) == PAGE_ROWS
    assert not any(row["live"] for row in last["rows"])
    assert beyond == last
    assert (first["pages"], first["reported"], first["total"], first["live"]) == (40, 1000, 1200, 900)
    assert sum(count for _, count in first["hosts"]) == 900
    assert by_name[0]["host"] == "edge-0"
    assert wrong.status == 400
    assert "sort is one of" in wrong.text


def test_a_silent_learner_keeps_its_last_figures_and_comes_back(stand_in: Any) -> None:
    lab = stand_in()
    with serving([LAB]) as url:
        lab.looked_at()
        assert "start the learner" in get(f"{url}/api/status").json["learners"][0]["error"]
        assert get(f"{url}/healthz").status == 503
        lab.report = report()
        lab.looked_at()
        assert get(f"{url}/healthz").status == 200
        lab.report = None
        lab.looked_at()
        (learner,) = get(f"{url}/api/status").json["learners"]
        assert "start the learner" in learner["error"]
        assert learner["clients"]["luna"]["state"] == "running"


@pytest.mark.parametrize(
    "garbage",
    [
        {},
        {"clients": 3},
        report(clients={"luna": {}}),
        report(clients={"luna": client(mean_return="much")}),
        report(clients={"luna": client(actors={"a": 3})}),
        report(clients={"luna": client(alarms={"a": {"count": None}})}),
        report(counters=[1]),
        report(uptime_s={}),
        report(started_unix_s="today"),
    ],
)
def test_a_status_of_another_form_is_named_and_the_page_goes_on(stand_in: Any, garbage: Any) -> None:
    lab = stand_in(report=garbage)
    with serving([LAB]) as url:
        lab.looked_at()
        (learner,) = get(f"{url}/api/status").json["learners"]
        assert learner["error"] == "its status cannot be read; it has another version: install the same one on both sides"
        for path in ("/", "/metrics", "/healthz", f"/api/client?learner={LAB}&client=luna", f"/api/history?learner={LAB}"):
            assert get(f"{url}{path}").status in (200, 400, 404, 503)
        lab.report = report()
        lab.looked_at()
        assert get(f"{url}/api/status").json["learners"][0]["error"] == ""


@pytest.mark.parametrize("field", ["pending", "accepted_steps", "address"])
def test_an_actor_of_another_form_costs_only_its_table(stand_in: Any, field: str) -> None:
    actors = {"one": actor(), "two": actor(**{field: {"not": ["a", math.nan]}})}
    lab = stand_in(report=report(clients={"luna": client(actors=actors)}))
    with serving([LAB]) as url:
        lab.looked_at()
        assert get(f"{url}/api/actors?learner={LAB}&client=luna&sort={'actor' if field == 'address' else field}").status in (
            200,
            400,
        )
        assert get(f"{url}/api/status").status == 200


def test_numbers_that_json_does_not_have_become_null(stand_in: Any) -> None:
    lab = stand_in(report=report(clients={"luna": client(scalars={"x": math.inf}, policy_lag=math.nan)}))
    lab.records.append(metrics(1, math.nan))
    with serving([LAB]) as url:
        lab.looked_at()
        assert get(f"{url}/api/client?learner={LAB}&client=luna").json["scalars"] == {"x": None}
        assert get(f"{url}/api/status").json["learners"][0]["clients"]["luna"]["lag"] is None
        assert get(f"{url}/api/history?learner={LAB}").json["records"][0]["scalars"]["charts/episodic_return"] is None


def test_the_history_is_read_once_and_begins_again_with_another_learner(stand_in: Any) -> None:
    lab = stand_in(report=report(started_unix_s=1.0))
    lab.records += [metrics(0, 1.0), metrics(0, 1.0, "sol"), {"t": NOW, "event": "learner_started"}]
    with serving([LAB]) as url:
        lab.looked_at()
        first = get(f"{url}/api/history?learner={LAB}&client=luna&since=0").json
        assert [record["event"] for record in first["records"]] == ["metrics", "learner_started"]
        lab.records.append(metrics(1, 1.0))
        lab.looked_at()
        later = get(f"{url}/api/history?learner={LAB}&client=luna&since={first['next']}").json
        assert [record["step"] for record in later["records"]] == [1]
        assert later["epoch"] == first["epoch"]
        lab.records[:] = [metrics(7, 1.0)]
        lab.report = report(started_unix_s=2.0)
        lab.looked_at(3)
        again = get(f"{url}/api/history?learner={LAB}&since=0").json
        assert [record["step"] for record in again["records"]] == [7]
        assert again["epoch"] != first["epoch"]


def test_a_relay_is_not_a_learner(stand_in: Any) -> None:
    lab = stand_in(report={"relay": True, "clients": {}})
    with serving([LAB]) as url:
        lab.looked_at()
        assert "give the address of its learner" in get(f"{url}/api/status").json["learners"][0]["error"]


def test_a_curve_stays_short_and_spans_the_whole_training() -> None:
    sparklines = Sparklines()
    for step in range(100_000):
        sparklines.add(metrics(step, float(step)))
        sparklines.add({"event": f"change-{step}"})
    points = sparklines.of("luna")["points"]
    assert MAX_POINTS / 2 <= len(points) <= MAX_POINTS
    steps = [step for step, _ in points]
    gaps = {b - a for a, b in itertools.pairwise(steps[:-1])}
    assert len(gaps) == 1
    assert steps[-1] == 99_999
    assert len(sparklines.changes()) == MAX_CHANGES
    sparklines.add({"event": "metrics", "scalars": [], "step": "x"})
    assert sparklines.of("nobody") == {"name": "", "points": []}


# ---- who may read


def test_every_answer_forbids_foreign_scripts_frames_and_caches(stand_in: Any) -> None:
    stand_in(report=report())
    with serving([LAB]) as url:
        for path in ("/", "/client", "/static/page.js", "/static/plotly.min.js", "/api/status", "/metrics", "/nothing"):
            headers = get(f"{url}{path}").headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self';" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] in ("no-store", "no-cache")
        assert get(f"{url}/static/server.py").status == 404
        assert get(f"{url}/static/..%2fserver.py").status == 404
        assert {get(f"{url}/api/status", method).status for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS")} == {405}
        tag = get(f"{url}/static/plotly.min.js", accept_encoding="gzip").headers
        assert tag["content-encoding"] == "gzip"
        assert int(tag["content-length"]) < 2_000_000
        assert get(f"{url}/static/plotly.min.js", if_none_match=tag["etag"]).status == 304


@pytest.mark.parametrize(("host", "status"), [("localhost:80", 200), ("127.0.0.1", 200), ("[::1]:9", 200), ("evil.example", 421)])
def test_a_foreign_name_for_this_machine_is_refused(stand_in: Any, host: str, status: int) -> None:
    stand_in(report=report())
    with serving([LAB]) as url:
        assert get(f"{url}/api/status", Host=host).status == status


def test_a_token_opens_all_and_without_it_only_the_probes_answer(stand_in: Any) -> None:
    lab = stand_in(report=report(clients={"luna": client(state="failed", error="secret")}))
    with serving([LAB], token=TOKEN) as url:
        lab.looked_at()
        paths = ("/api/status", "/metrics", f"/api/history?learner={LAB}", f"/api/client?learner={LAB}&client=luna", "/login")
        for wrong in ({}, {"Authorization": "Bearer no"}, {"Authorization": TOKEN}, {"Cookie": f"rl4sys_web={TOKEN}"}):
            assert {get(f"{url}{path}", **wrong).status for path in paths} == {401}
        assert (get(f"{url}/").status, get(f"{url}/static/page.css").status) == (401, 200)
        assert (get(f"{url}/readyz").status, get(f"{url}/readyz").text) == (503, "no\n")
        allowed = {"Authorization": f"Bearer {TOKEN}"}
        assert {get(f"{url}{path}", **allowed).status for path in paths} == {200, 204}
        assert "secret" in get(f"{url}/readyz", **allowed).text
        cookie = get(f"{url}/login", **allowed).headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
        assert TOKEN not in cookie
        assert get(f"{url}/api/status", Cookie=cookie.partition(";")[0], Host="page.example").status == 200


def test_an_address_for_others_needs_a_token_and_a_port_that_is_free(stand_in: Any) -> None:
    stand_in(report=report())
    with pytest.raises(ConfigError, match="give --token-file"), serving([LAB], "0.0.0.0:0"):
        pass
    with pytest.raises(ConfigError, match="at least 16"), serving([LAB], token="short"):
        pass
    with serving([LAB]) as url, pytest.raises(AddressInUse), serving([LAB], url.removeprefix("http://")):
        pass
    with pytest.raises(TransportError, match="an address of this machine"), serving([LAB], "203.0.113.9:0", TOKEN):
        pass
