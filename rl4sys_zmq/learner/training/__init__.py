"""The training of one client: `learner_thread` runs `train_loop` with an algorithm, and publishes its weights."""
