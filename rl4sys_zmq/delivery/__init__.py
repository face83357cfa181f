"""The delivery protocol: sequence numbers, acknowledgements, credit, and the journal. Import its modules by their names.

- `session`: the actor's side: handshake, window, resends, credit.
- `stream`, `table`: the learner's record of one stream, and of all streams of a client.
- `intake`: the new, duplicate and malformed segments of a message, and entries of the journal for training after a rollback.
- `credit`: the division of the steps that a learner thread can use among its actors.
- `weight_history`: the recent versions of a policy's weights.
- `journal`: entries, rows and operations. `disk_journal`: the thread that does them. `journal_rows`, `journal_marks`: the
  tables on disk, and the second record of clients and streams. `journal_file`: to open, repair or replace the file.
"""
