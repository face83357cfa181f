"""The figures of processes and machines in the logs of runs, and their picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl4sys_zmq.learner.run.log_files import read_log
from rl4sys_zmq.ops.curves import add_legend, new_figure, save_figure, shown, style_legend, write_csv

NAMED = 8
"""Largest number of processes in the legend: those that used the most memory."""

Series = dict[str, list[Mapping[str, Any]]]
"""The records of each process or machine by its label, oldest first."""

PROCESS = (("cores used by the process", "cpu", 1.0), ("memory of the process, GB", "rss_bytes", 1e9))
MACHINE = (
    ("used part of the machine's cores", "host_cpu", 1.0),
    ("free memory of the machine, GB", "host_memory_free_bytes", 1e9),
    ("sent by the machine, MB/s", "net_sent_bytes_s", 1e6),
    ("received by the machine, MB/s", "net_received_bytes_s", 1e6),
    ("free on the disk, GB", "disk_free_bytes", 1e9),
)
COLUMNS = (
    *("t", "host", "role", "client_id", "name", "pid", "cpu", "rss_bytes", "threads"),
    *("host_cpu", "host_memory_bytes", "host_memory_free_bytes", "disk_free_bytes", "net_sent_bytes_s", "net_received_bytes_s"),
)


def read_system(run_dirs: Sequence[Path]) -> Series:
    """Return the records ``system`` of each process in the logs of run directories. Errors are those of `read_log`."""
    series: Series = {}
    for run_dir in run_dirs:
        for record in read_log(run_dir):
            if record["event"] == "system":
                parts = (record["role"], record["client_id"], record["name"], f"(process {record['pid']} on {record['host']})")
                series.setdefault(" ".join(filter(None, parts)), []).append(record)
    return {label: sorted(records, key=lambda record: record["t"]) for label, records in series.items()}


def write_system(series: Series, path: Path) -> None:
    """Write a CSV file with a row for each record. Raise RunDirectoryError if it cannot be written."""
    write_csv(path, COLUMNS, ([record[column] for column in COLUMNS] for records in series.values() for record in records))


def draw_system(series: Series, path: Path) -> None:
    """Draw each process and each machine over the time, in minutes since the first record. Errors are those of `draw_curves`."""
    began = min(records[0]["t"] for records in series.values())
    largest = sorted(series, key=lambda label: -max(record["rss_bytes"] for record in series[label]))[:NAMED]
    figure = new_figure(11, 12)
    plots = figure.subplots(4, 2, sharex=True).flat
    last = plots[-1]
    machines = {records[0]["host"]: records for records in sorted(series.values(), key=len)}  # those of the longest series
    for lines, panels in ((series, PROCESS), (machines, MACHINE)):
        for title, key, unit in panels:
            plot = next(plots)
            for label, records in lines.items():
                named = lines is not series or label in largest
                x, y = [(record["t"] - began) / 60 for record in records], [record[key] / unit for record in records]
                plot.plot(x, y, linewidth=1.2, color=None if named else "0.8", label=shown(label) if named else None)
            plot.set_title(title, fontsize="medium")
            plot.set_ylim(0, 1.1 * max(record[key] for records in lines.values() for record in records) / unit or 1)
            plot.grid(alpha=0.3)
            if key == "cpu":  # the last place is free for the names
                last.set_axis_off()
                last.legend(*plot.get_legend_handles_labels(), loc="upper left", fontsize="small", frameon=False)
            elif key == "host_cpu":
                add_legend(plot)
    style_legend(last.get_legend())
    figure.supxlabel("minutes since the first record")
    save_figure(figure, path)
