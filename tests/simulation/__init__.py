"""Delivery under random schedules of faults, without sockets, threads or a clock; `simulation.simulator` runs one schedule."""
