"""Tools of the end-to-end tests and gates: child processes that a test kills, their traces, and unreliable links."""
