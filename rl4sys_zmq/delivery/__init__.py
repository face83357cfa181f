"""The delivery protocol: sequence numbers, acknowledgements, credit, and the journal.

- `ActorSession`: the actor's side: handshake, window, resends, credit.
- `SegmentStream`: the learner's record of one stream. `StreamTable`: the streams of one client.
- `take_submit` separates the new, duplicate and malformed segments of a message. `replay_entry` prepares entries of the
  journal for training after a rollback.
- `CreditAllocator`: divides the steps that a learner thread can use among its actors.
- `weight_history.WeightHistory`: the recent versions of a policy's weights.
- `Journal`: the seam of the record of accepted segments. `DiskJournal` writes a file, in a thread of its own.
"""
