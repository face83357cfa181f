"""The parts of ``examples/adaptive_compression.py``: a sender that picks the zstd level of each block.

====================  ==============================================================
`data`                blocks of five kinds, and their sizes and times at each level
`bandwidth`           the bandwidth of a link over time: the ten profiles
`view`                the observation of the sender
`virtual`             a sender in virtual time, and the training with it
`sockets`             a sender with threads and a TCP socket
`methods`             fixed levels, a rule, ``zstd --adapt``, and the policy
`report`              the comparison, its table and its picture
====================  ==============================================================
"""
