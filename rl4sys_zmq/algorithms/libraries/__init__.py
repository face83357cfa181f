"""Algorithms of other libraries, by names such as ``sb3:TRPO``: one adapter for each library, which trains.

A library is imported only in the worker process that trains with it; the modules ``*_entries`` import neither it nor torch.
"""
