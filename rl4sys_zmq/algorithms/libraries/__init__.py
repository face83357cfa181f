"""Algorithms of other libraries, by names such as ``sb3:TRPO``: one adapter for each library.

The library trains. Everything around it is that of the built-in algorithms: segments and their accounting, the replay buffer,
checkpoints, and the policy, whose weights actors run in numpy. A library is imported only in the worker process that trains with
it. The modules ``*_entries`` import neither a library nor torch.
"""
