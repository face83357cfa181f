"""Traces as files."""

from pathlib import Path

from job_scheduling.trace import Trace


def write_swf(path: Path, trace: Trace) -> Path:
    """Write the jobs of a trace, with times in whole seconds and without requested times."""
    jobs = trace.jobs
    lines = [f"{k} {jobs.submit_s[k]:.0f} -1 {jobs.run_s[k]:.0f} {jobs.processors[k]}" + " -1" * 13 for k in range(len(jobs))]
    path.write_text("\n".join([f"; MaxProcs: {trace.processors}", *lines]))
    return path
