"""Simulations of the delivery under random faults, on a virtual clock. `simulation.simulator` runs one schedule."""
