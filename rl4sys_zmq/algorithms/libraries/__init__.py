"""Algorithms of other libraries, with names such as ``sb3:TRPO``. Each library has one adapter, which trains with it.

A library is imported only in the worker process that trains with it; the modules ``*_entries`` import neither the library nor
torch.
"""
