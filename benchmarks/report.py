"""The tables and the picture of ``docs/explanation/performance.md``, written from the records in ``benchmarks/results``.

    python benchmarks/report.py

The script replaces the text between ``<!-- NAME -->`` and ``<!-- end -->`` in the page. The other text stays.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks/results", ROOT / "docs/explanation/performance.md"
PICTURE = PAGE.with_suffix(".png")
MARKDOWN_WIDTH = 119


def main() -> None:
    """Rewrite the tables of the page and draw the picture."""
    text = PAGE.read_text()
    for name, table in TABLES.items():
        before, opening, rest = text.partition(f"<!-- {name} -->\n")
        _, closing, after = rest.partition("<!-- end -->")
        if not closing:
            raise SystemExit(f"{PAGE} has no place for {name}")
        text = before + opening + table() + closing + after
    PAGE.write_text(text)
    draw()


def load(name: str) -> dict[str, Any]:
    """Return the record of this name."""
    record: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return record


def number(value: float) -> str:
    """Return a number with three significant digits, or as an integer from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def pairs_row(label: str, found: dict[str, Any], goal: str = "-", reached: bool | None = None) -> str:
    low, high = found["ratio_spread"]
    ratio = f"{found['ratio']:.2f} ({low:.2f}-{high:.2f})"
    return f"| {label} | {number(found['ours'])} | {number(found['baseline'])} | {ratio} | {goal} | {_mark(reached)} |\n"


def _mark(reached: bool | None) -> str:
    return {None: "-", True: "yes", False: "**no**"}[reached]


def where() -> str:
    """Return the machine, the versions and the commands of the records that the page shows."""
    rows = "| record | command |\n|---|---|\n"
    for name in ("diffs", "durable", "fanout", "infer", "ingress", "one_call", "step", "train", "web"):
        rows += f"| `{name}.json` | `{load(name)['command'].replace(f'{ROOT}/', '')}` |\n"
    machine = load("step")
    parts = [machine["machine"]["cpu"], f"{machine['machine']['cores']} cores", f"{machine['machine']['memory_gib']} GiB"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    text = f"{', '.join(parts)}; {versions}; seed {machine['seed']}, {machine['pairs']} pairs each."
    return f"{textwrap.fill(text, MARKDOWN_WIDTH, break_on_hyphens=False)}\n\n{rows}"


def step(record: str) -> str:
    results = load(record)["results"]
    tight, paced = results["step"]["tight loop"], results["step"]["100 us apart"]
    foot, over = results["footprint"], results["overhead"]
    out = "| question | ours | baseline | ratio | goal | reached |\n|---|---|---|---|---|---|\n"
    for label, found, goal in (("in a tight loop", tight, 0.25), ("100 us apart", paced, 0.30)):
        median, p99 = found["median_us"], found["p99_us"]
        words = f"one step, {label}"
        if record == "step":
            out += pairs_row(f"{words}, median, us", median, f"{goal} x plain", median["ratio"] <= goal)
            out += pairs_row(f"{words}, p99, us", p99, "0.5 x plain", p99["ratio"] <= 0.5)
        else:
            out += pairs_row(f"{words}, median, us", median, "8 us", median["ours"] <= 8)
            out += pairs_row(f"{words}, p99, us", p99, "25 us", p99["ours"] <= 25)
    out += pairs_row("import, s", foot["import_s"], "0.15 s", foot["import_s"]["ours"] <= 0.15)
    resident = foot["resident_kib"]
    out += pairs_row("resident after import, KiB", resident, "36 MB", resident["ours"] <= 36_000)
    running = foot["running_mib"]
    out += f"| resident while acting, MiB | {running:.1f} | - | - | - | - |\n"
    added, plain = over["added_percent"], over["plain_percent"]
    label, mark = "1 kHz loop: CPU time added, % of wall time", "yes" if added <= 0.6 * plain else "**no**"
    out += f"| {label} | {added:.2f} | {plain:.2f} | {added / plain:.2f} | 0.6 x plain | {mark} |\n"
    for env, goal in (("CartPole-v1", 55_000), ("LunarLander-v3", 22_000)):
        found = results["collect"][env]
        out += pairs_row(f"{env}, steps/s through a learner that counts", found, f"{goal:,}", found["ours"] >= goal)
    return out


def label_text(label: str) -> str:
    """Return the label of a record as the page shows it."""
    return label.removesuffix(", M steps/s").replace(" 1 senders", " 1 sender").replace(" a message", " per message")


def ingress(record: str) -> str:
    results = load(record)["results"]["ingress"]
    out = "| M env-steps/s | ours | bare ROUTER | ratio | goal | reached |\n|---|---|---|---|---|---|\n"
    for label, found in results.items():
        if "ratio" not in found:
            out += f"| {label_text(label)} | - | {found['steps_per_s'] / 1e6:.3f} | - | - | - |\n"
        elif label.startswith("P1"):
            goal = ("8 M", found["ours"] >= 8.0) if "64 a message" in label else ()
            out += pairs_row(label_text(label), found, *goal)
        else:
            out += pairs_row(label_text(label), found, "0.80 of raw", found["ratio"] >= 0.8)
    for label, found in load("durable")["results"]["durable"].items() if record == "ingress" else ():
        words = f"P1, on disk, {label_text(label)}, {found['items_per_commit']:.0f} per commit (baseline: append + fdatasync)"
        out += pairs_row(words, found, "0.50 of append", found["ratio"] >= 0.5)
    return out


def diffs() -> str:
    out = "| pair | wire | changed | ratio | XOR + shuffle + zstd | goal | reached |\n" + "|---" * 7 + "|\n"
    for row in load("diffs")["rows"]:
        cells = [f"{row['pair']} ({row['parameters']:,})", row["dtype"], f"{row['density']:.1%}"]
        cells += [f"{row[key]:g}" for key in ("ratio", "baseline", "goal")]
        out += "| " + " | ".join([*cells, "yes" if row["ratio"] >= row["goal"] else "**no**"]) + " |\n"
    return out


def coder() -> str:
    out = "| pair | wire | encode, us (memcpys) | apply, us (memcpys) |\n|---|---|---|---|\n"
    for row in load("diffs")["rows"]:
        out += (
            f"| {row['pair']} | {row['dtype']} | {row['encode_us']:,} ({row['encode_copies']:,.0f}) "
            f"| {row['apply_us']:,} ({row['apply_copies']:,.0f}) |\n"
        )
    return out


def fanout(record: str) -> str:
    out = "| weights | ours | bare PUB and SUB | ratio | goal | reached |\n|---|---|---|---|---|---|\n"
    for label, found in load(record)["results"]["fanout"].items():
        if label.startswith("1000"):
            out += pairs_row(label, found, "2 x raw", found["ratio"] <= 2.0)
        else:
            goal = 0.4 if label.startswith("75") else 1.5
            out += pairs_row(label, found, f"{goal} ms", found["ours"] <= goal)
    return out


def infer() -> str:
    out = "| remote inference | ours | bare REQ and REP | ratio | goal | reached |\n|---|---|---|---|---|---|\n"
    for label, found in load("infer")["results"]["infer"].items():
        if "ratio" not in found:
            out += f"| {label}; {found['median_us']} us at the median | - | {number(found['calls_per_s'])} | - | - | - |\n"
            continue
        goal = ("1.3 x raw", found["ratio"] <= 1.3) if label.startswith("round trip") else ("4 x raw", found["ratio"] >= 4.0)
        out += pairs_row(label, found, *goal)
    return out


def train() -> str:
    rows = load("train")["rows"]
    out = "| seed | ours | steps/s |" + "".join(f" {rows[0][p]['peer']} | steps/s |" for p in peers_of(rows)) + "\n"
    out += "|---" * (3 + 2 * len(peers_of(rows))) + "|\n"
    for row in rows:
        cells = [f"{row['seed']}", f"{row['ours']['seconds']} s", f"{row['ours']['steps_per_s']:,.0f}"]
        for name in peers_of(rows):
            peer = row[name]
            cells += [f"{'' if peer['reached'] else 'not within '}{peer['seconds']} s", f"{peer['steps_per_s']:,}"]
        out += "| " + " | ".join(cells) + " |\n"
    return out


def peers_of(rows: list[dict[str, Any]]) -> list[str]:
    return [name for name in ("sb3", "rllib") if name in rows[0]]


def web() -> str:
    results = load("web")["results"]
    out = "| question | with the page | without | ratio | goal | reached |\n|---|---|---|---|---|---|\n"
    goals = {"ingress, M steps/s": (0.97, "at least 0.97"), "ack, median, ms": (1.05, "within 5 %"), "ack, p99, ms": (None, "-")}
    for name, (limit, words) in goals.items():
        ratio = results[name]["ratio"]
        reached = None if limit is None else ratio >= limit if limit < 1 else ratio <= limit
        out += pairs_row(name, results[name], words, reached)
    greatest = results["page, resident, MB"]["greatest"]
    return out + f"| page, resident, MB, greatest | {number(greatest)} | - | - | below 120 | {_mark(greatest < 120)} |\n"


def one_call() -> str:
    out = "| task | lines | ours, s | Stable-Baselines3, s | ratio | our return | its return |\n|---|---|---|---|---|---|---|\n"
    for task in load("one_call")["tasks"]:
        returns = [sorted(row[side]["return"] for row in task["rows"]) for side in ("ours", "theirs")]
        shown = [f"{values[len(values) // 2]:.0f} ({values[0]:.0f} to {values[-1]:.0f})" for values in returns]
        times, lines, (low, high) = task["seconds"], task["lines"], task["seconds"]["ratio_spread"]
        out += f"| {task['task']}, {task['steps']:,} steps | {lines[0]} and {lines[1]} | {number(times['ours'])} | "
        out += f"{number(times['baseline'])} | {times['ratio']:.2f} ({low:.2f}-{high:.2f}) | {shown[0]} | {shown[1]} |\n"
    return out


TABLES: dict[str, Callable[[], str]] = {
    "where": where,
    "step": partial(step, "step"),
    "step_pure": partial(step, "step_pure"),
    "ingress": partial(ingress, "ingress"),
    "ingress_pure": partial(ingress, "ingress_pure"),
    "diffs": diffs,
    "coder": coder,
    "fanout": partial(fanout, "fanout"),
    "fanout_pure": partial(fanout, "fanout_pure"),
    "infer": infer,
    "train": train,
    "web": web,
    "one_call": one_call,
}


def draw() -> None:
    """Draw three panels: trajectories in, bytes of weights, time to solve a task."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.6), constrained_layout=True)
    rates: dict[str, float] = {}
    for label, found in load("ingress")["results"]["ingress"].items():
        if "ratio" in found and label.startswith("P1, 64 a message, 1 "):
            rates |= {"a bare ROUTER loop": found["baseline"], "ours, in memory": found["ours"]}
        elif "steps_per_s" in found and ", 1 senders" in label:
            rates[found["peer"]] = found["steps_per_s"] / 1e6
    durable = next(iter(load("durable")["results"]["durable"].values()))
    rates["ours, on disk"] = durable["ours"]
    bars(left, rates, "Million environment steps a second into a learner\n(200 steps of 8 floats; log scale)")
    left.set_xscale("log")
    rows = [row for row in load("diffs")["rows"] if row["dtype"] == "bf16"]
    names = [row["pair"] for row in rows]
    shown: tuple[tuple[str, list[float]], ...] = (
        ("XOR + shuffle + zstd", [row["baseline"] for row in rows]),
        ("ours", [row["ratio"] for row in rows]),
    )
    for index, (label, values) in enumerate(shown):
        middle.barh([n + 0.2 - 0.4 * index for n in range(len(names))], values, height=0.38, label=label)
    middle.set_yticks(range(len(names)), names, fontsize=8)
    middle.set_xscale("log")
    middle.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.06))
    middle.set_title("bf16 weights over the bytes of a diff (log scale)", fontsize=10)
    training = load("train")["rows"]
    times: dict[str, float] = {"ours, two actors over tcp": median(r["ours"]["seconds"] for r in training)}
    for name in peers_of(training):
        words = training[0][name]["peer"] + ("" if all(r[name]["reached"] for r in training) else "\n(not all reached it)")
        times[words] = median(r[name]["seconds"] for r in training)
    bars(right, times, "Seconds to a mean return of 475\non CartPole-v1, median")
    figure.savefig(PICTURE, dpi=110)


def median(values: Any) -> float:
    ordered = sorted(values)
    return float(ordered[len(ordered) // 2])


def bars(axes: Any, values: dict[str, float], title: str) -> None:
    ordered = sorted(values.items(), key=lambda item: item[1])
    drawn = axes.barh([name for name, _ in ordered], [value for _, value in ordered])
    axes.bar_label(drawn, [f" {number(value)}" for _, value in ordered], fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.margins(x=0.15)
    axes.set_title(title, fontsize=10)


if __name__ == "__main__":
    main()
