"""The recipes in examples/deploy: their commands exist, and each system's own tools accept them if the tools are installed."""

import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from kit import open_agent, play, until, write_keys

from rl4sys_zmq.child_process import child_environment
from rl4sys_zmq.cli.actor import main as actor
from rl4sys_zmq.cli.learner import main as learner
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm

RECIPES = Path(__file__).resolve().parents[2] / "examples/deploy"
UNITS = sorted((RECIPES / "systemd").glob("*.service"))
MANIFESTS = ("learner.yaml", "actors.yaml", "network.yaml")
PROGRAMS: dict[str, click.Group] = {"rl4sys-learner": learner, "rl4sys-actor": actor}
KEY_CHARS = 40
"""The length of a CURVE key as text."""
MAX_EXPOSURE = 20
"""The largest exposure of a unit by `systemd-analyze security`, from 0 to 100: below 20 it is "OK"."""


def documents(name: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return [found for found in yaml.safe_load_all((RECIPES / name).read_text()) if found]


def has(tool: str) -> str:
    found = shutil.which(tool) or shutil.which(tool, path=Path(sys.executable).parent)
    if found is None:
        pytest.skip(f"{tool} is not installed")
    return found


def has_module(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"the Python package {name} is not installed (extra recipes)")


def accepted(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def arguments_of(words: list[str]) -> list[str]:
    """Return the words of a command of the shell up to a redirection or the next command."""
    return list(itertools.takewhile(lambda word: word != "||" and not word.startswith(">"), words))


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield each command of this library in a recipe: the file, and the arguments that begin with the name of the program."""
    pattern = re.compile(r"(?:\S*/)?(rl4sys-(?:learner|actor))$")
    for unit in UNITS:
        for line in re.findall(r"^Exec\w+=(.*)$", unit.read_text(), re.MULTILINE):
            words = [word for part in shlex.split(line) for word in shlex.split(part)]
            for at, word in enumerate(words):
                if found := pattern.match(word):
                    text = " ".join(arguments_of(words[at + 1 :]))
                    yield unit.name, [found[1], *text.replace("%S", "/var/lib").replace("%i", "a").replace("%H", "h").split()]
    compose = documents("docker/compose.yaml")[0]
    for name, service in compose["services"].items():
        yield "compose.yaml", [service["image"], *service["command"]]
        if "healthcheck" in service:
            assert name == "learner"
            yield "compose.yaml", arguments_of(shlex.split(service["healthcheck"]["test"][1]))
    for pod in pods():
        for container in pod["containers"]:
            yield "kubernetes", [container["image"], *container["args"]]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if "exec" in container.get(probe, {}):
                    command = container[probe]["exec"]["command"]
                    yield "kubernetes", arguments_of(shlex.split(command[2]) if command[0] == "/bin/sh" else command)
    script = (RECIPES / "slurm/rl4sys.sbatch").read_text().replace("\\\n", " ")
    for program, rest in re.findall(r'"\$\{(learner|actor)\[@\]\}" (.*)', script):
        text = re.sub(r"\$\{RL4SYS_EPISODES:\+(.*)\}", r"\1", re.split(r" >/dev/null| &$", rest)[0])
        text = re.sub(r"\$\(\(.*?\)\)|\$\w+", "1", text)
        yield "rl4sys.sbatch", [f"rl4sys-{program}", *shlex.split(text)]


def pods() -> list[dict[str, Any]]:
    found = [document for name in MANIFESTS for document in documents(f"kubernetes/{name}")]
    return [d["spec"]["template"]["spec"] for d in found if d["kind"] in ("StatefulSet", "Deployment")]


def test_every_command_of_a_recipe_exists_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ENV", "CartPole-v1"), ("LEARNER", "learner:50051"), ("CLIENT_ID", "luna")):
        monkeypatch.setenv(f"RL4SYS_ACTOR_RUN_{name}", value)  # as in the environment file of a unit
    seen: list[tuple[str, str]] = []
    for source, (program, name, *arguments) in commands():
        command = PROGRAMS[program].commands[name]
        context = click.Context(command, info_name=name, auto_envvar_prefix=f"{program.upper().replace('-', '_')}_RUN")
        try:
            command.parse_args(context, arguments)
        except click.ClickException as error:
            pytest.fail(f"{source}: {program} {name} {arguments}: {error.format_message()}")
        seen.append((source, f"{program} {name}"))
    assert set(seen) == {
        *((unit.name, "rl4sys-actor run") for unit in UNITS if "learner" not in unit.name),
        *(
            (source, f"rl4sys-{command}")
            for source in ("compose.yaml", "kubernetes", "rl4sys.sbatch")
            for command in ("learner serve", "learner status", "actor run")
        ),
        ("rl4sys-learner.service", "rl4sys-learner serve"),
        ("rl4sys-learner.service", "rl4sys-learner status"),
        ("rl4sys.sbatch", "rl4sys-learner keys"),
        ("kubernetes", "rl4sys-learner web"),
    }


def checks() -> dict[str, str]:
    """Return the command of the shell in each probe that checks the clients, by recipe."""
    (unit,) = re.findall(r"^ExecStartPost=/bin/sh -c '(.*)'$", (RECIPES / "systemd/rl4sys-learner.service").read_text(), re.M)
    (kind, compose) = documents("docker/compose.yaml")[0]["services"]["learner"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    (body,) = re.findall(r"^(healthy\(\) \{\n.*?^\}$)", (RECIPES / "slurm/rl4sys.sbatch").read_text(), re.M | re.S)
    slurm = f"learner=(rl4sys-learner) head=localhost port=50051 keys=/keys\n{body}\nhealthy"
    found = {"systemd": unit, "compose": compose, "slurm": f"exec bash -c {shlex.quote(slurm)}"}
    return {name: text.replace("$$", "$") for name, text in found.items()}


@pytest.mark.parametrize(("code", "passes"), [(0, True), (1, False), (2, False), (3, True), (130, False)])
def test_a_probe_passes_if_no_client_has_failed(code: int, passes: bool, tmp_path: Path) -> None:
    stub = tmp_path / "rl4sys-learner"
    stub.write_text(f"#!/bin/sh\n[ $1 = status ] && [ $3 = --check ] && exit {code}\nexit 99\n")
    stub.chmod(0o755)
    for text in checks().values():
        command = text.replace("/opt/rl4sys/bin", str(tmp_path))
        done = subprocess.run(["/bin/sh", "-c", command], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=60, check=False)
        assert (done.returncode == 0) is passes, text


def localised(text: str, learner: Learner, folder: Path) -> str:
    """Return a text of a recipe with the address of a learner of this process, and with paths in a folder."""
    for old, new in (
        ("/opt/rl4sys/bin", str(folder)),
        ("port=50051", f"port={learner.address.rpartition(':')[2]}"),
        ("localhost:50051", learner.address),
        ("0.0.0.0:8080", "127.0.0.1:0"),
    ):
        text = text.replace(old, new)
    return re.sub(r"(/etc/rl4sys/keys|/keys/own|/keys)(?=[/\s])", str(folder / "keys"), text)


def probe(text: str, learner: Learner, folder: Path) -> int:
    """Run a probe as it stands in a recipe, with a learner of this process, and return its exit code."""
    program = folder / "rl4sys-learner"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rl4sys_zmq.cli.learner "$@"\n')
    program.chmod(0o755)
    text = localised(text, learner, folder)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(RECIPES.parents[1])}
    return subprocess.run(
        ["/bin/sh", "-c", text], env=environment, stdout=subprocess.DEVNULL, timeout=120, check=False
    ).returncode


def test_every_probe_fails_when_a_client_has_failed_and_not_before(tmp_path: Path) -> None:
    register_algorithm("PROBED", FakeAlgorithm.factory(steps_per_update=8))
    register_algorithm("BREAKS", FakeAlgorithm.factory(steps_per_update=8, fail_after_updates=0))
    write_keys(tmp_path / "keys", {"ops": ["admin"], "actors": ["submit", "read_weights"]})
    config = LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, keys=tmp_path / "keys")
    actors = {"keys": tmp_path / "keys/actors.keys"}
    with Learner(config) as learner, open_agent(learner, "luna", algorithm_name="PROBED", **actors) as agent:
        play(agent, 8, reward=1e13)  # a segment in quarantine is an alarm
        until(lambda: learner.status()["clients"]["luna"]["alarms"], learner.status)
        assert {name: probe(text, learner, tmp_path) for name, text in checks().items()} == dict.fromkeys(checks(), 0)
        with open_agent(learner, "mars", algorithm_name="BREAKS", **actors) as other:
            play(other, 8)
            until(lambda: learner.status()["clients"]["mars"]["state"] == "failed", learner.status)
        assert {name: probe(text, learner, tmp_path) for name, text in checks().items()} == dict.fromkeys(checks(), 1)


def test_a_pod_is_not_ready_when_a_client_has_failed(tmp_path: Path) -> None:
    """Run the container of the page as it stands in the manifest, and make the request of its probe."""
    for needed in ("starlette", "uvicorn", "plotly", "prometheus_client"):
        pytest.importorskip(needed, reason=f"{needed} is not installed (extra web)")
    (container,) = (c for pod in pods() for c in pod["containers"] if "readinessProbe" in c)
    register_algorithm("BREAKS", FakeAlgorithm.factory(steps_per_update=8, fail_after_updates=0))
    write_keys(tmp_path / "keys", {"ops": ["admin"], "actors": ["submit", "read_weights"]})
    (tmp_path / "keys/page.token").write_text("0123456789abcdef\n")
    config = LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, keys=tmp_path / "keys")
    with (
        Learner(config) as learner,
        open_agent(learner, "mars", algorithm_name="BREAKS", keys=tmp_path / "keys/actors.keys") as agent,
    ):
        arguments = [localised(word, learner, tmp_path) for word in container["args"]]
        command = [sys.executable, "-m", "rl4sys_zmq.cli.learner", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment()) as page:
            assert page.stdout is not None
            url = page.stdout.readline().removeprefix("page at ").partition(";")[0].strip()

            def answers() -> int:
                try:
                    with urllib.request.urlopen(url + container["readinessProbe"]["httpGet"]["path"], timeout=30) as reply:
                        return int(reply.status)
                except urllib.error.HTTPError as error:
                    with error:
                        return error.code

            try:
                until(lambda: answers() == 200, learner.status)
                play(agent, 8)
                until(lambda: answers() == 503, learner.status)
                assert learner.status()["clients"]["mars"]["state"] == "failed"
            finally:
                page.terminate()


@pytest.mark.parametrize(("check", "seen"), [(1, "the job ends: a client has failed"), (0, "actors done")])
def test_a_job_ends_when_a_client_has_failed(check: int, seen: str, tmp_path: Path) -> None:
    """Run the batch script with stub programs in place of Slurm's and of this library's."""
    stubs = {
        "scontrol": "echo node",
        "scancel": 'case $* in *.1) touch "$STUBS/drained";; *.0) touch "$STUBS/ended";; esac',
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        "python": """
case $* in
    *"--check"*) touch "$STUBS/checked"; exit $CHECK;;
    *"learner serve"*) until [ -e "$STUBS/ended" ]; do sleep 0.05; done;;
    *"actor run"*)
        until [ -e "$STUBS/drained" ] || { [ "$CHECK" = 0 ] && [ -e "$STUBS/checked" ]; }; do sleep 0.05; done
        echo actors done;;
esac""",
    }
    for name, text in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    variables = {
        "STUBS": tmp_path,
        "CHECK": check,
        "RL4SYS_PYTHON": tmp_path / "python",
        "RL4SYS_CHECK_S": 0.05,
        "SLURM_JOB_ID": 7,
    }
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_NODELIST": "node",
        "SLURM_JOB_NUM_NODES": "1",
        **{name: str(value) for name, value in variables.items()},
    }
    script = ["bash", str(RECIPES / "slurm/rl4sys.sbatch"), str(tmp_path / "run"), "CartPole-v1", "pole"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == check, done.stdout + done.stderr
    assert seen in done.stdout + done.stderr
    assert (tmp_path / "ended").exists()


def exported() -> dict[str, set[str]]:
    """Return the names that queries can use, with the labels of each."""
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed (extra web)")
    from rl4sys_zmq.web.metrics import FIGURES

    return {figure.full_name: {*labels, *figure.labels} for labels, figures in FIGURES for figure in figures}


def queries() -> dict[str, str]:
    """Return the queries of the rules and of the dashboard, by the name of the rule or the panel."""
    dashboard = json.loads((RECIPES / "grafana/rl4sys.json").read_text())
    found = {f"{p['title']}, {t['refId']}": t["expr"] for p in dashboard["panels"] for t in p["targets"]}
    (group,) = documents("prometheus/rules.yml")[0]["groups"]
    return {**found, **{rule["alert"]: rule["expr"] for rule in group["rules"]}}


def test_queries_use_names_and_labels_that_are_exported() -> None:
    names = exported()
    for title, query in queries().items():
        used = re.findall(r"\b((?:rl4sys|process|system)_\w+)(?:\{(.*?)\})?", query)
        assert used or title == "RL4SysPageDown", title
        for name, selectors in used:
            assert set(re.findall(r"(\w+)=", selectors)) <= names[name], (title, name)


def test_the_variables_and_legends_of_the_dashboard_exist() -> None:
    dashboard, labels = json.loads((RECIPES / "grafana/rl4sys.json").read_text()), set().union(*exported().values())
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard["panels"]))) <= {*variables, "__rate_interval"}
    assert set(re.findall(r"\{\{(\w+)\}\}", json.dumps(dashboard["panels"]))) <= labels
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_promtool_accepts_the_rules_and_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    tool, folder = has("promtool"), RECIPES / "prometheus"
    assert f"{sum(title.startswith('RL4Sys') for title in queries())} rules found" in accepted(
        tool, "check", "config", folder / "prometheus.yml"
    )
    accepted(tool, "test", "rules", folder / "rules_test.yml")
    tested = (folder / "rules_test.yml").read_text()
    assert not [title for title in queries() if title.startswith("RL4Sys") and f"alertname: {title}\n" not in tested]
    rules = [
        {"record": f"panel_{number}", "expr": query.replace("$__rate_interval", "1m")}
        for number, query in enumerate(queries().values())
    ]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    accepted(tool, "check", "rules", tmp_path / "panels.yml")


def test_no_recipe_holds_a_secret_or_turns_keys_off() -> None:
    for path in (p for p in RECIPES.rglob("*") if p.is_file()):
        text = path.read_text()
        assert "--insecure" not in text, path
        assert not re.search(r"kind: Secret\b|BEGIN .*PRIVATE|password|secret_key", text, re.IGNORECASE), path
        assert not [
            word for word in re.split(r"[\s\"']+", text) if len(word) == KEY_CHARS and "/" not in word and not word.islower()
        ], path


@pytest.fixture
def stubbed(tmp_path: Path) -> list[Path]:
    """The units with paths of stub programs in place of /opt/rl4sys/bin."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in PROGRAMS:
        stub = folder / name
        stub.write_text("#!/bin/sh\n")
        stub.chmod(0o755)
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/rl4sys/bin", str(folder)))
    return [tmp_path / unit.name for unit in UNITS]


def test_systemd_accepts_the_units(stubbed: list[Path]) -> None:
    tool = has("systemd-analyze")
    done = subprocess.run([tool, "verify", *map(str, stubbed)], capture_output=True, text=True, timeout=60, check=False)
    ours = [line for line in done.stderr.splitlines() if "rl4sys" in line]
    assert not ours, done.stderr
    assert len(stubbed) == 3


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_exposed_to_little(unit: Path) -> None:
    tool = has("systemd-analyze")
    if "offline" not in subprocess.run([tool, "--help"], capture_output=True, text=True, check=False).stdout:
        pytest.skip("this systemd-analyze cannot examine the security of a file")
    accepted(tool, "security", "--offline=true", f"--threshold={MAX_EXPOSURE}", unit)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_restarts_runs_as_a_user_and_keeps_its_files_private(unit: Path) -> None:
    lines = set(unit.read_text().splitlines())
    assert lines >= {"User=rl4sys", "UMask=0077", "StateDirectoryMode=0700", "NoNewPrivileges=yes", "ProtectSystem=strict"}
    assert lines & {"Restart=always", "Restart=on-failure"}


def test_hadolint_accepts_the_dockerfile() -> None:
    accepted(has("hadolint"), RECIPES / "docker/Dockerfile")


def test_the_images_run_as_a_user_and_take_only_what_the_build_needs() -> None:
    text = (RECIPES / "docker/Dockerfile").read_text()
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    final = {stage.split(" AS ")[1].split()[0]: stage for stage in stages if "ENTRYPOINT" in stage}
    assert set(final) == {"actor", "learner"}
    for name, stage in final.items():
        assert re.search(r"^USER 10001:10001$", stage, re.MULTILINE)
        assert re.search(rf'^ENTRYPOINT \["rl4sys-{name}"\]$', stage, re.MULTILINE)
    assert not re.search(r"^ADD|:latest|keys", re.sub(r"^#.*", "", text, flags=re.MULTILINE), re.MULTILINE)
    copied = {word for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE) for word in line.split()[:-1]}
    allowed = set(re.findall(r"^!(\S+)$", (RECIPES / "docker/Dockerfile.dockerignore").read_text(), re.MULTILINE))
    assert copied == allowed
    root = RECIPES.parents[1]
    assert all((root / name).exists() for name in copied)


def test_the_compose_file_follows_the_specification() -> None:
    has_module("check_jsonschema")
    path = RECIPES / "docker/compose.yaml"
    accepted(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", path)


def test_services_of_the_compose_file_are_locked_down() -> None:
    compose = documents("docker/compose.yaml")[0]
    for service in compose["services"].values():
        assert service["read_only"] and service["init"] and service["cap_drop"] == ["ALL"]
        assert service["user"] == "10001:10001" and service["security_opt"] == ["no-new-privileges:true"]
        assert "environment" not in service and "ports" not in service
        assert (RECIPES / "docker" / service["build"]["context"] / service["build"]["dockerfile"]).resolve().is_file()


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_manifests_follow_the_schemas(name: str) -> None:
    has_module("kubernetes_validate")
    text = accepted(sys.executable, "-m", "kubernetes_validate", "--strict", RECIPES / "kubernetes" / name)
    assert "passed" in text or not text


def test_kustomize_joins_the_manifests() -> None:
    text = accepted(has("kubectl"), "kustomize", RECIPES / "kubernetes")
    assert len(re.findall(r"^kind: ", text, re.MULTILINE)) == 6
    assert set(re.findall(r"image: (\S+)", text)) == {f"registry.example/rl4sys-{name}:0.1.0" for name in ("learner", "actor")}


def test_pods_are_locked_down_and_are_given_time_to_drain() -> None:
    assert len(pods()) == 2
    for pod in pods():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        for container in (*pod["initContainers"], *pod["containers"]):
            locked = container["securityContext"]
            assert locked["readOnlyRootFilesystem"] and locked["allowPrivilegeEscalation"] is False
            assert locked["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            assert all("value" not in variable for variable in container.get("env", ()))
        secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        assert [secret["defaultMode"] for secret in secrets] == [0o400]
    manifest = {document["kind"]: document for document in documents("kubernetes/learner.yaml")}
    shutdown_s = json.loads(manifest["ConfigMap"]["data"]["learner.json"])["shutdown_timeout_s"]
    learner_pod, actor_pod = pods()
    assert learner_pod["terminationGracePeriodSeconds"] >= shutdown_s + 5
    grace_s = float(next(w for w in actor_pod["containers"][0]["args"] if w.startswith("--grace=")).removeprefix("--grace="))
    assert actor_pod["terminationGracePeriodSeconds"] >= grace_s + 10


def test_the_secret_files_that_a_pod_copies_are_accepted(tmp_path: Path) -> None:
    """Run the shell command of the init containers with folders of this machine."""
    secret, keys = tmp_path / "secret", tmp_path / "keys"
    secret.mkdir()
    keys.mkdir()
    real = secret / "..data"
    real.mkdir()
    (real / "actors.keys").write_text("x")
    (real / "actors.keys").chmod(0o440)
    (secret / "actors.keys").symlink_to("..data/actors.keys")
    script = {pod["initContainers"][0]["command"][-1] for pod in pods()}
    assert len(script) == 1
    accepted("/bin/sh", "-ec", script.pop().replace("/secret", str(secret)).replace("/keys", str(keys)))
    copied = keys / "own" / "actors.keys"
    assert stat.S_IMODE(copied.stat().st_mode) == 0o600 and not copied.is_symlink()
    assert stat.S_IMODE(copied.parent.stat().st_mode) == 0o700


def test_network_policies_allow_the_ports_of_the_learner_only() -> None:
    pytest.importorskip("yaml")
    learner_policy, actor_policy = documents("kubernetes/network.yaml")
    (service,) = (d for d in documents("kubernetes/learner.yaml") if d["kind"] == "Service")
    ports = {port["port"] for port in service["spec"]["ports"]}
    (page,) = (p["name"] for pod in pods() for c in pod["containers"] for p in c.get("ports", ()) if c["args"][0] == "web")
    assert [rule["port"] for rule in learner_policy["spec"]["ingress"][1]["ports"]] == [page]
    assert {rule["port"] for rule in learner_policy["spec"]["ingress"][0]["ports"]} == {"data", "weights"}
    assert learner_policy["spec"]["egress"] == [] and actor_policy["spec"]["ingress"] == []
    assert {rule["port"] for rule in actor_policy["spec"]["egress"][0]["ports"]} == ports


def test_the_batch_script_is_a_sound_shell_script() -> None:
    script = RECIPES / "slurm/rl4sys.sbatch"
    accepted("bash", "-n", script)
    accepted(has("shellcheck"), script)
