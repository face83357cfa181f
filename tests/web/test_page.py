"""The page in a browser: what it shows of learners that are well and not, and how it behaves by keyboard and on a phone."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import PATIENCE_S, open_agent, play
from ops.test_report import NOW, actor, client, report

from rl4sys_zmq.child_process import child_environment
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm

from .page_kit import serving

LAB = "lab:50051"
MARKUP = ("<script>document.title='broken'</script>", "\"><img src=x onerror=document.title='broken'>", "שלום", "x" * 200)
LONG_MS = 30_000


@pytest.fixture
def tab(chromium: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield an empty page of the browser, in which nothing may fail, be refused by the policy, or be asked of another server."""
    faults: list[str] = []
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, **getattr(request, "param", {}))
    context.set_default_timeout(LONG_MS)
    tab = context.new_page()
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("console", lambda line: faults.append(line.text) if "Content Security Policy" in line.text else None)
    tab.on(
        "request", lambda asked: faults.append(asked.url) if not asked.url.startswith(("http://127.0.0.1:", "data:")) else None
    )
    yield tab
    context.close()
    assert faults == []


def figures(step: int, value: float) -> dict[str, Any]:
    scalars = {"charts/episodic_return": value, "losses/policy_loss": 1 / (step + 1), "eval/mean_return": value + 1}
    return {"t": NOW + step, "event": "metrics", "client_id": "luna", "step": step, "update": step, "scalars": scalars}


def filled(lab: Any, **changes: Any) -> None:
    """Give a stand-in a client with a curve, changes, parameters, a dead letter and figures of its machine."""
    alarms = {"segment_quarantined": {"count": 2, "text": "not finite", "first_unix_s": NOW, "last_unix_s": NOW}}
    whole = client(alarms=alarms, parameters={"gamma": 0.99}, policy_lags={"0": 900, "1": 90, "2": 9}, **changes)
    machine = {
        "host": "hall",
        "role": "learner",
        "pid": 7,
        "cpu": 1.5,
        "rss_bytes": 2e8,
        "host_cpu": 0.25,
        "disk_free_bytes": 1e10,
    }
    lab.report = report(clients={"luna": whole}, system=[machine])
    lab.records += [figures(step, step / 10) for step in range(300)]
    lab.records += [{"t": NOW + t, "event": "system", **machine} for t in range(0, 300, 10)]
    lab.records.append(
        {"t": NOW + 150, "event": "parameters_changed", "client_id": "luna", "changes": {"gamma": [0.9, 0.99]}, "by": "operator"}
    )
    lab.records.append(
        {"t": NOW + 200, "event": "item_refused", "client_id": "luna", "actor_id": "a", "reason": "spec: 3 columns"}
    )


def opened(tab: Any, url: str, client_id: str | None = None, learner: str = LAB) -> None:
    from urllib.parse import urlencode

    tab.goto(url if client_id is None else f"{url}/client?{urlencode({'learner': learner, 'client': client_id})}")
    tab.wait_for_selector("h1")


def holds(tab: Any, expression: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until an expression is true in the page. Playwright's own way needs eval, which the page's policy forbids."""
    deadline = time.monotonic() + patience_s
    while not tab.evaluate(expression):
        assert time.monotonic() < deadline, expression
        tab.wait_for_timeout(50)


def drawn(tab: Any, chart: str = "Return") -> None:
    tab.wait_for_selector(f".chart[aria-label^='{chart}'] .main-svg")


def test_a_client_has_curves_with_marks_lags_dead_letters_parameters_and_commands(tab: Any, stand_in: Any) -> None:
    lab = stand_in()
    filled(lab)
    with serving([LAB]) as url:
        opened(tab, url, "luna")
        drawn(tab)
        text = tab.inner_text("main")
        names = tab.evaluate("[...document.querySelectorAll('.chart')].map(c => c.getAttribute('aria-label'))")
        traces = tab.evaluate("document.querySelector('.chart').data.map(t => [t.name, t.x.length])")
        marks = tab.evaluate("document.querySelector('.chart').data.at(-1).text")
    for shown in (
        "gamma",
        "spec: 3 columns",
        "3 quarantined",
        "rl4sys-learner client lab:50051 luna restart",
        "hall",
        "200 MB",
        "25 %",
    ):
        assert shown in text
    assert traces == [["return", 300], ["mean of 10", 300], ["evaluation", 300], ["changes", 1]]
    assert marks == ["parameters: parameters changed: gamma 0.9 → 0.99, by operator"]
    assert {"steps by lag on arrival (versions)", "policy loss: newest 0.003333"} <= set(names)
    assert any(name.startswith("CPU cores") for name in names)


def test_a_failed_client_says_what_failed_and_how_to_restart_it(tab: Any, stand_in: Any) -> None:
    lab = stand_in(report=report(clients={"luna rossa": client(state="failed", error="loss is nan")}))
    with serving([LAB]) as url:
        lab.looked_at()
        opened(tab, url)
        tab.wait_for_selector("text=1 client failed")
        problems = tab.inner_text("section.wrong")
    assert "loss is nan" in problems
    assert "rl4sys-learner client lab:50051 'luna rossa' restart" in problems


def test_a_learner_that_is_silent_and_comes_back_is_said_with_its_last_figures(tab: Any, stand_in: Any) -> None:
    lab = stand_in()
    filled(lab)
    with serving([LAB]) as url:
        lab.looked_at()
        opened(tab, url)
        tab.wait_for_selector("td:has-text('answers')")
        good, lab.report = lab.report, None
        tab.wait_for_selector("text=1 learner silent")
        assert "start the learner" in tab.inner_text("section.wrong")
        assert "-475.2" in tab.inner_text("main")
        lab.report = {"clients": 3}
        tab.wait_for_selector("text=its status cannot be read")
        lab.report = good
        tab.wait_for_selector("td:has-text('answers')")


def test_the_page_says_when_its_own_process_has_ended(tab: Any, stand_in: Any) -> None:
    lab = stand_in()
    filled(lab)
    with serving([LAB]) as url:
        lab.looked_at()
        opened(tab, url)
        tab.wait_for_selector("td:has-text('answers')")
    tab.wait_for_selector("#alert:has-text('does not answer')")
    assert "-475.2" in tab.inner_text("main")


def test_names_are_text_wherever_they_stand(tab: Any, stand_in: Any) -> None:
    hostile = {name: client(actors={name: actor(library=name, address=name)}, parameters={name: name}) for name in MARKUP}
    lab = stand_in(report=report(clients=hostile, version=MARKUP[0]))
    lab.records += [{"t": NOW, "event": "client_failed", "client_id": name, "error": f"{name}\u202e\x00"} for name in MARKUP]
    with serving([LAB]) as url:
        lab.looked_at()
        opened(tab, url)
        for name in MARKUP:
            tab.get_by_role("rowheader", name=name, exact=True).wait_for()
        for name in MARKUP:
            opened(tab, url, name)
            tab.wait_for_selector("#parameters")
            assert tab.inner_text("h1 bdi") == name
            assert name in tab.inner_text("main")
            assert "\\u202e\\u0000" in tab.inner_text("main")
            assert "broken" not in tab.title().replace(name, "")
        assert tab.evaluate("document.querySelectorAll('main script, main img').length") == 0
        opened(tab, url, "nobody")
        tab.wait_for_selector("text=has no such client")


def test_a_thousand_actors_and_64_clients_stay_a_short_page(tab: Any, stand_in: Any) -> None:
    many = {f"edge-{n % 30}.{n}-0a0b": actor(accepted_steps=n) for n in range(1000)}
    clients = {f"client-{n:02}": client() for n in range(63)} | {"luna": client(actors=many, actors_total=1000, actors_live=1000)}
    lab = stand_in(report=report(clients=clients))
    with serving([LAB]) as url:
        lab.looked_at()
        opened(tab, url)
        tab.wait_for_selector("text=1,063 actors")
        assert tab.locator("table[aria-label=Clients] tbody tr").count() == 20
        tab.click("button[data-page=clients]:has-text('Next')")
        tab.wait_for_selector("text=page 2 of 4")
        tab.wait_for_selector("text=client-20")
        opened(tab, url, "luna")
        tab.wait_for_selector("text=page 1 of 40")
        assert tab.locator("table[aria-label=Actors] tbody tr").count() == 25
        tab.click("th button:has-text('steps')")
        tab.wait_for_selector("td:has-text('999')")
        assert tab.evaluate("document.querySelectorAll('*').length") < 3000


@pytest.mark.parametrize("tab", [{"color_scheme": "dark"}], indirect=True)
def test_the_dark_page_is_dark(tab: Any, stand_in: Any) -> None:
    lab = stand_in()
    filled(lab)
    with serving([LAB]) as url:
        opened(tab, url, "luna")
        drawn(tab)
        shade = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
        assert max(tab.evaluate(shade)) < 60
        tab.emulate_media(color_scheme="light")
        assert min(tab.evaluate(shade)) > 200
        accent = "getComputedStyle(document.documentElement).getPropertyValue('--accent')"
        ink = f"document.querySelector('.chart').data[1].line.color === {accent}"
        holds(tab, ink)


def test_nothing_is_wider_than_a_phone(tab: Any, stand_in: Any) -> None:
    lab = stand_in()
    filled(lab)
    lab.report["clients"] |= {name: client() for name in MARKUP}
    tab.set_viewport_size({"width": 400, "height": 800})
    with serving([LAB]) as url:
        lab.looked_at()
        for which in (None, "luna", MARKUP[3]):
            opened(tab, url, which)
            tab.wait_for_selector("section")
            assert tab.evaluate("document.documentElement.scrollWidth") <= 400
        opened(tab, url, "luna")
        drawn(tab)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400


def test_all_can_be_done_by_keyboard_and_the_focus_stays_while_figures_change(tab: Any, stand_in: Any) -> None:
    lab = stand_in()
    filled(lab)
    focused = "document.activeElement.innerText"
    with serving([LAB]) as url:
        lab.looked_at()
        opened(tab, url)
        tab.wait_for_selector("th >> text=luna")
        tab.keyboard.press("Tab")
        assert tab.evaluate(focused) == "Skip to the content"
        for _ in range(10):
            tab.keyboard.press("Tab")
            if tab.evaluate("document.activeElement.closest('tbody') !== null"):
                break
        lab.report["clients"]["luna"]["steps"] += 1
        tab.wait_for_selector("text=12,345,679")
        assert tab.evaluate(focused) == "luna"
        tab.keyboard.press("Enter")
        drawn(tab)
        extent = "document.querySelector('.chart').layout.xaxis.range?.map(Number)"
        tab.focus("button[aria-label='Zoom in']")
        tab.keyboard.press("Enter")
        holds(tab, "document.querySelector('.chart').layout.xaxis.autorange === false")
        low, high = tab.evaluate(extent)
        assert (low, high) == (74.75, 224.25)
        tab.keyboard.press("Tab")
        tab.keyboard.press("Tab")
        tab.keyboard.press("Enter")
        holds(tab, f"({extent})[0] < 74")
        assert tab.evaluate("document.querySelectorAll('.chart')[1].layout.xaxis.range[0]") == tab.evaluate(extent)[0]
        tab.focus("#axis")
        tab.keyboard.press("ArrowDown")
        holds(tab, "document.querySelector('.chart').layout.xaxis.type === 'date'")


def test_a_zoom_by_mouse_holds_for_all_curves_until_a_double_click(tab: Any, stand_in: Any) -> None:
    lab = stand_in()
    filled(lab)
    with serving([LAB]) as url:
        opened(tab, url, "luna")
        drawn(tab)
        box = tab.locator(".chart .nsewdrag").first.bounding_box()
        middle = box["y"] + box["height"] / 2
        tab.mouse.move(box["x"] + box["width"] / 4, middle)
        tab.mouse.down()
        tab.mouse.move(box["x"] + box["width"] / 2, middle, steps=5)
        tab.mouse.up()
        holds(tab, "[...document.querySelectorAll('.chart')].filter(c => c.layout?.xaxis.autorange === false).length > 2")
        lab.records.append(figures(301, 1.0))
        holds(tab, "document.querySelector('.chart').data[0].x.length === 301")
        assert tab.evaluate("document.querySelector('.chart').layout.xaxis.range[1]") < 200
        tab.mouse.dblclick(box["x"] + box["width"] / 2, middle)
        holds(tab, "document.querySelector('.chart').layout.xaxis.autorange !== false")


def test_a_browser_left_open_for_a_day_keeps_a_bounded_page_and_a_hidden_one_is_silent(tab: Any, stand_in: Any) -> None:
    lab = stand_in()
    filled(lab)
    with serving([LAB]) as url:
        tab.clock.install()
        opened(tab, url, "luna")
        drawn(tab)
        counted = "document.querySelectorAll('*').length"
        before = tab.evaluate(counted)
        for part in range(1, 12):  # three hours of records, a second of the page's clock at a time
            lab.records += [figures(300 + step, 30.0) for step in range(part * 1000, part * 1000 + 1000)]
            lab.looked_at()
            with tab.expect_response("**/api/history**"):
                tab.clock.run_for(1100)
        newest, deadline = 0, time.monotonic() + PATIENCE_S
        while newest < 12_299 and time.monotonic() < deadline:
            with tab.expect_response("**/api/history**"):  # else the page's clock gives the request up
                tab.clock.run_for(1100)
            newest = tab.evaluate("document.querySelector('.chart').data[0].x.at(-1)")
        points = tab.evaluate("document.querySelector('.chart').data[0].x")
        assert 200 < len(points) <= 600
        assert (points[0] < 300, points[-1]) == (True, 12_299)
        assert tab.evaluate(counted) < 1.2 * before
        tab.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        tab.clock.run_for(3000)
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.clock.run_for(60_000)
        assert asked == []
        tab.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        with tab.expect_request("**/api/status"):
            tab.clock.run_for(1100)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(tab: Any, stand_in: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe_playwright_python is not installed").Axe()
    lab = stand_in()
    filled(lab)
    lab.report["clients"]["sol"] = client(state="failed", error="loss is nan")
    tab.emulate_media(color_scheme=scheme)
    with serving([LAB]) as url, serving([LAB], token="a-token-of-the-test") as closed:
        lab.looked_at()
        for address, which in ((url, None), (url, "luna"), (closed, None)):
            opened(tab, address, which)
            if which is not None:
                drawn(tab)
            found = axe.run(tab).response["violations"]
            serious = [
                (rule["id"], [n["html"] for n in rule["nodes"]][:3])
                for rule in found
                if rule["impact"] in ("serious", "critical")
            ]
            assert serious == []
            levels = tab.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(h => +h.localName[1])")
            assert levels[0] == 1
            assert levels.count(1) == 1


def test_the_token_is_typed_once(tab: Any, stand_in: Any) -> None:
    lab = stand_in()
    filled(lab)
    with serving([LAB], token="a-token-of-the-test") as url:
        lab.looked_at()
        opened(tab, url)
        tab.fill("#token", "wrong")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("text=This is not the token")
        tab.fill("#token", "a-token-of-the-test")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("td:has-text('answers')")
        assert "token" not in tab.url
        assert tab.evaluate("document.cookie") == ""


# ---- with learners


@pytest.mark.slow
def test_cartpole_learns_on_screen_and_a_killed_learner_comes_back(tab: Any, tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    page = [sys.executable, "-m", "rl4sys_zmq.cli.learner", "serve", "--port", "0", "--run-dir", str(tmp_path / "run")]
    ends: list[subprocess.Popen[str]] = []

    def started(*command: str) -> subprocess.Popen[str]:
        ends.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment(), start_new_session=True))
        return ends[-1]

    def line(process: subprocess.Popen[str], begin: str) -> str:
        assert process.stdout is not None
        return next(line for line in process.stdout if line.startswith(begin)).split()[2].strip(";,")

    try:
        learner = started(*page, "--web", "127.0.0.1:0")
        address, url = line(learner, "learner at"), line(learner, "page at")
        player = [
            sys.executable,
            "-m",
            "rl4sys_zmq.cli.actor",
            "run",
            "--env",
            "CartPole-v1",
            "--client-id",
            "pole",
            "--algorithm",
            "PPO",
        ]
        started(*player, "--learner", address, "--seed", "1")
        opened(tab, url)
        tab.wait_for_selector("th >> text=pole")
        opened(tab, url, "pole", address)
        drawn(tab)
        holds(tab, "document.querySelector('.chart').data[0].y.at(-1) > 150", 100.0)
        learner.send_signal(signal.SIGKILL)
        learner.wait()
        tab.wait_for_selector("#alert:has-text('does not answer')")  # the page of `serve --web` has ended with it
        again = [*page[:-3], address.rpartition(":")[2], *page[-2:]]
        line(started(*again, "--web", url.removeprefix("http://")), "page at")
        holds(tab, "document.getElementById('alert').textContent === ''")
        tab.locator("td:has-text('learner started')").nth(1).wait_for()
    finally:
        for process in reversed(ends):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)


def test_a_real_client_that_fails_is_shown_with_its_actor(tab: Any, tmp_path: Path) -> None:
    register_algorithm("SHOWN", FakeAlgorithm.factory(steps_per_update=8, fail_after_updates=1))
    config = LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=tmp_path / "run")
    with (
        Learner(config) as learner,
        open_agent(learner, "luna", algorithm_name="SHOWN") as agent,
        serving([learner.address]) as url,
    ):
        play(agent, 8)
        agent.wait_version(1, timeout_s=PATIENCE_S)
        opened(tab, url)
        tab.wait_for_selector("th >> text=luna")
        opened(tab, url, "luna", learner.address)
        tab.wait_for_selector("text=1 actor")
        play(agent, 8)
        tab.wait_for_selector("section.wrong:has-text('the fake algorithm fails after 1 updates')")
        assert f"rl4sys-learner client {learner.address} luna restart" in tab.inner_text("section.wrong")
