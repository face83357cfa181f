"""The reader of traces: fields, repairs that are counted, and errors that name the line."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from job_scheduling.trace import Repairs, Trace, parse_swf, read_swf
from rl4sys_zmq.errors import ConfigError

HEADER = ["; Version: 2.2", "; MaxNodes: 4", "; MaxProcs: 8", ";", "", "; Note: free text"]


def line(submit: object = 0, run: object = 10, allocated: object = 1, requested: object = -1, requested_s: object = -1) -> str:
    return f"1 {submit} -1 {run} {allocated} -1 -1 {requested} {requested_s} -1 1 -1 -1 -1 0 -1 -1 -1"


def test_fields_are_those_of_the_format() -> None:
    trace = parse_swf([*HEADER, line(3, 20, 2), line(5.5, 30, -1, 4, 60)])
    jobs = trace.jobs
    assert (trace.processors, trace.repairs) == (8, Repairs())
    assert jobs.submit_s.tolist() == [3, 5.5]
    assert jobs.run_s.tolist() == [20, 30]
    assert jobs.requested_s.tolist() == [20, 60]  # unknown: the run time
    assert jobs.processors.tolist() == [2, 4]  # unknown: as requested


def test_the_machine_is_that_of_the_argument_or_the_header() -> None:
    assert parse_swf([*HEADER, line()], 16).processors == 16
    assert parse_swf(["; MaxNodes: 4 (all of them)", line()]).processors == 4
    with pytest.raises(ConfigError, match="MaxProcs"):
        parse_swf(["; MaxProcs: unknown", line()])


def test_repairs_are_counted_and_said() -> None:
    trace = parse_swf([*HEADER, line(9), line(4), line(5, 0), line(6, -1), line(7, 10, 0, 0), line(8), line(9)])
    assert trace.jobs.submit_s.tolist() == [4, 8, 9, 9]
    assert trace.repairs == Repairs(without_run_time=2, without_processors=1, out_of_order=1)
    assert str(trace.repairs) == "2 jobs without run time, 1 jobs without processors, 1 jobs out of order"
    assert str(Repairs()) == "none"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("1 2 3", "line 7 has 3 fields; a job has 18"),
        (line("soon"), "line 7: could not convert string to float: 'soon'"),
        (line("1,024"), "line 7: .*'1,024'; write numbers without a separator of thousands"),
        (line("nan"), "line 7 has a number that is not finite"),
        (line(-3), "line 7: the submit time -3 is negative"),
        (line(0, 10, 9), "line 7: the job needs 9 processors and the machine has 8"),
        (line(0, 0), r"no jobs that can run \(left out: 1\)"),
        ("", r"no jobs that can run \(left out: 0\)"),
    ],
)
def test_a_bad_line_is_named(bad: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_swf([*HEADER, bad])


def test_a_file_may_be_compressed(tmp_path: Path) -> None:
    text = "\n".join([*HEADER, line(1), line(2)])
    (tmp_path / "a.swf").write_text(text)
    (tmp_path / "a.swf.gz").write_bytes(gzip.compress(text.encode()))
    plain, compressed = read_swf(tmp_path / "a.swf"), read_swf(tmp_path / "a.swf.gz")
    assert plain.jobs.submit_s.tolist() == compressed.jobs.submit_s.tolist() == [1, 2]


@pytest.mark.parametrize("first", [";", "; MaxProcs: 8", line(1)])
def test_a_byte_order_mark_is_left_out(tmp_path: Path, first: str) -> None:
    (tmp_path / "a.swf").write_text("\n".join([first, "; MaxNodes: 4", line(1)]), encoding="utf-8-sig")
    assert read_swf(tmp_path / "a.swf").processors == (8 if "MaxProcs" in first else 4)


def test_a_file_in_utf_16_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.swf").write_text("\n".join([*HEADER, line(1)]), encoding="utf-16")
    with pytest.raises(ConfigError, match="UTF-16"):
        read_swf(tmp_path / "a.swf")


def test_a_number_of_processors_with_a_separator_is_named_and_not_passed_over() -> None:
    with pytest.raises(ConfigError, match="MaxProcs is '1,024'"):
        parse_swf(["; MaxProcs: 1,024", "; MaxNodes: 4", line()])


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_swf(tmp_path / "none.swf")
    (tmp_path / "bad.swf.gz").write_text("not compressed")
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_swf(tmp_path / "bad.swf.gz")


def test_windows_follow_one_another() -> None:
    trace = parse_swf([*HEADER, *(line(second) for second in range(7))])
    assert isinstance(trace, Trace)
    assert np.concatenate([trace.window(index, 3).submit_s for index in (0, 1)]).tolist() == list(range(6))
    for index in (2, -1):
        with pytest.raises(ConfigError, match="outside the trace, which has 7 jobs"):
            trace.window(index, 3)
