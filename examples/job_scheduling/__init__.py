"""Batch scheduling of a cluster, learned: the example of RL4Sys's and RLScheduler's papers. Read the modules in this order.

- `trace`: the jobs, from a file in the Standard Workload Format. `lublin` generates such jobs.
- `simulator`: a cluster that runs jobs in the order that a scheduler decides, and the measures of a schedule.
- `heuristics`: the classic schedulers FCFS, SJF, WFP3, UNICEP and F1 to F4.
- `planning`: what it costs the waiting jobs if one of them is next.
- `features`: what an agent sees of the waiting jobs.
- `environment`: the Gymnasium environment in which an agent is the scheduler.
- `policy`: a policy that scores each job, in numpy for actors. `network` is its torch form, and `plugin` makes it known to a
  learner.
- `train`: training with a learner and actors in processes of their own.
- `evaluate`: the comparison of a trained scheduler with the classic ones, as a table and box plots.
- `rl4sys_form`: training with a configuration file of RL4Sys.
- `check_golden`: a comparison with the results of another simulator.
"""
